"""Processes that share a run: their start, and batch norm of a shared batch against one norm of the whole.

Of batch norm, threads stand for the processes.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from skipinit.errors import ConfigError
from skipinit.nets.merges import GhostBatchNorm2d
from skipinit.training import world as world_module
from skipinit.training.world import RunningStatistics, World, open_world, share_statistics, torch_as_new

_CPU = torch.device("cpu")
_EXACT = {"rtol": 1e-12, "atol": 1e-12}
Together = Callable[[int, Callable[[World], Any]], list[Any]]


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> Together:
    """Runs a function in so many threads, each with its world; they add up what they reduce."""
    monkeypatch.setattr(torch.compiler, "disable", lambda function: function)

    def run(size: int, work: Callable[[World], Any]) -> list[Any]:
        here, parts, meet = threading.local(), [torch.zeros(())] * size, threading.Barrier(size, timeout=20)

        def all_reduce(tensor: Tensor) -> None:
            parts[here.rank] = tensor.clone()
            meet.wait()
            tensor.copy_(sum(parts[1:], parts[0]))
            meet.wait()

        def start(rank: int) -> Any:
            here.rank = rank
            return work(World(_CPU, rank, size))

        monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
        with ThreadPoolExecutor(size) as threads:
            return list(threads.map(start, range(size)))

    return run


def _random(norm: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(torch.linspace(0.5, 1.5, parameter.numel()))
    return norm.double()


def _draw(*shape: int, seed: int = 0) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values * torch.arange(1, shape[1] + 1).view(-1, *[1] * (len(shape) - 2)) + values[:1]


def _shared(norm: nn.Module, world: World) -> nn.Module:
    model = nn.Sequential(copy.deepcopy(norm))
    share_statistics(model, world)
    return model


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("norm", "axes"),
    [
        (GhostBatchNorm2d(4, eps=0.1, momentum=0.3), (3, 2)),
        (nn.BatchNorm2d(4, eps=0.1, momentum=0.3), (3, 2)),
        (nn.BatchNorm2d(4, momentum=None), (3, 2)),
        (nn.BatchNorm2d(4, affine=False), (1, 2)),
        (nn.BatchNorm1d(4), ()),
        (nn.BatchNorm3d(4, track_running_stats=False), (2, 1, 2)),
    ],
)
def test_parts_of_a_batch_are_normalized_as_the_whole(
    norm: nn.Module, axes: tuple[int, ...], size: int, together: Together
) -> None:
    """Outputs, gradients and running averages, over two batches; gradients of parameters add up."""
    whole = _random(copy.deepcopy(norm))
    batches = [(_draw(6, 4, *axes, seed=n), _draw(6, 4, *axes, seed=n + 7)) for n in range(2)]

    def train(world: World) -> tuple[list[Tensor], nn.Module]:
        model, seen = _shared(whole, world), []
        for batch, upstream in batches:
            part = world.share(batch).clone().requires_grad_()
            out = model(part)
            out.backward(world.share(upstream))
            seen += [out.detach(), part.grad]
        return seen, model[0]

    ranks = together(size, train)
    expected = []
    for batch, upstream in batches:
        inputs = batch.clone().requires_grad_()
        out = whole(inputs)
        out.backward(upstream)
        expected += [out.detach(), inputs.grad]
    for index, wanted in enumerate(expected):
        torch.testing.assert_close(torch.cat([seen[index] for seen, _ in ranks]), wanted, **_EXACT)
    for name, parameter in whole.named_parameters():
        found = sum(own.get_parameter(name).grad for _, own in ranks)
        torch.testing.assert_close(found, parameter.grad, **_EXACT)
    for _, own in ranks:
        for name, buffer in whole.named_buffers():
            torch.testing.assert_close(own.get_buffer(name), buffer, **_EXACT)


@pytest.mark.parametrize(
    "norm",
    [
        GhostBatchNorm2d(4, ghost_batch=2, batch_statistics_at_test=True),
        GhostBatchNorm2d(4, batch_statistics_at_test=True),
        nn.BatchNorm2d(4, track_running_stats=False),
    ],
)
def test_unequal_parts_of_a_test_batch_are_normalized_as_the_whole(
    norm: nn.Module, together: Together
) -> None:
    whole, batch = _random(copy.deepcopy(norm)).eval(), _draw(7, 4, 3, 2)
    ranks = together(2, lambda world: _shared(whole, world).eval()(world.share(batch)))
    assert [len(out) for out in ranks] == [4, 3]
    torch.testing.assert_close(torch.cat(ranks), whole(batch), **_EXACT)


@pytest.mark.parametrize("norm", [GhostBatchNorm2d(4), nn.BatchNorm2d(4)])
def test_running_averages_normalize_each_example_of_a_test_batch_alone(
    norm: nn.Module, together: Together
) -> None:
    whole, batch = _random(copy.deepcopy(norm)), _draw(6, 4, 3, 2)
    whole(batch)
    ranks = together(2, lambda world: _shared(whole.eval(), world)(world.share(batch)))
    torch.testing.assert_close(torch.cat(ranks), whole(batch), **_EXACT)


def test_ghosts_of_a_training_batch_stay_in_their_process(together: Together) -> None:
    whole = _random(GhostBatchNorm2d(4, ghost_batch=2, batch_statistics_at_test=True))
    batch = _draw(8, 4, 3, 2)
    ranks = together(2, lambda world: _shared(whole, world)(world.share(batch)))
    torch.testing.assert_close(torch.cat(ranks), whole(batch), **_EXACT)


def test_statistics_of_bfloat16_images_are_float32(together: Together) -> None:
    """Rounded to 8 bits at the end, and nowhere before."""
    norm, batch = GhostBatchNorm2d(4), (_draw(64, 4, 5, 5) + 3).bfloat16()
    ranks = together(2, lambda world: _shared(norm, world)(world.share(batch)))
    out = torch.cat(ranks)
    assert out.dtype == torch.bfloat16
    expected = nn.functional.batch_norm(batch.double(), None, None, training=True)
    assert (out.double() - expected).abs().max() <= 2**-8 * expected.abs().max()


@pytest.mark.parametrize("size", [2, 3])
def test_averages_over_ghosts_are_those_of_one_process_that_saw_them_in_turn(
    size: int, together: Together
) -> None:
    unlike = (
        GhostBatchNorm2d(4, ghost_batch=2, momentum=0.3),
        GhostBatchNorm2d(4, ghost_batch=1, momentum=0.1),
    )
    start = nn.Sequential(*unlike).double()
    start(_draw(4, 4, 3, 2, seed=1))  # so that the averages are not those of a new layer
    batch = _draw(12, 4, 3, 2)

    def train(world: World) -> nn.Module:
        model = copy.deepcopy(start)
        statistics = RunningStatistics(model, world, len(batch))
        for _ in range(2):
            before = statistics.remember()
            model(world.share(batch))
            statistics.join(before)
        return model

    ranks = together(size, train)
    for _ in range(2):
        start(batch)
    for model in ranks:
        for name, buffer in start.named_buffers():
            torch.testing.assert_close(model.get_buffer(name), buffer, **_EXACT)


def test_nothing_is_joined_in_one_process_or_without_ghosts() -> None:
    ghosts, whole = GhostBatchNorm2d(4, ghost_batch=2), GhostBatchNorm2d(4)
    assert RunningStatistics(ghosts, World(_CPU), 8).remember() is None
    assert RunningStatistics(whole, World(_CPU, 0, 2), 8).remember() is None
    RunningStatistics(ghosts, World(_CPU), 8).join(None)
    assert ghosts.running_mean is not None
    assert ghosts.running_mean.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("variables", "lacks"),
    [
        ({"WORLD_SIZE": "x"}, "that is no number of processes"),
        ({"WORLD_SIZE": "2"}, "there is no RANK"),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost"}, "there is no MASTER_PORT"),
    ],
)
def test_variables_of_torchrun_that_are_incomplete_are_refused(
    variables: dict[str, str], lacks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)  # another test's trainer may have set it
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"WORLD_SIZE is '.', but {lacks}; start with torchrun"):
        open_world("cpu").__enter__()


def test_an_empty_world_size_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "")
    with open_world("cpu") as world:
        assert world.size == 1


def test_a_process_of_many_has_the_threads_of_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their number changes how sums are rounded. torchrun sets OMP_NUM_THREADS; other launchers do not."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name, value in {
        "WORLD_SIZE": "2",
        "RANK": "1",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(world_module, "_join_group", lambda backend: None)
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: None)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    torch.set_num_threads(2)
    try:
        with open_world("cpu") as world:
            assert (world.rank, world.size, torch.get_num_threads()) == (1, 2, 1)
        assert torch.get_num_threads() == 2, "as before"
    finally:
        torch.set_num_threads(1)


def test_threads_that_train_at_once_give_the_default_type_back() -> None:
    first, second = torch_as_new(), torch_as_new()
    torch.set_default_dtype(torch.float64)
    try:
        first.__enter__()
        second.__enter__()
        assert torch.get_default_dtype() == torch.float32
        first.__exit__(None, None, None)
        second.__exit__(None, None, None)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
