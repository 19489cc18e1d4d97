"""What only a GPU runs: the Triton convolutions, and a pack captured as one graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from skipinit.config import ModelConfig, Precision
from skipinit.nets.create import build
from skipinit.sweeping.engine import run_sweep
from skipinit.sweeping.grid import Grid
from skipinit.sweeping.results import watched
from skipinit.sweeping.single import train
from skipinit.sweeping.store import open_store
from skipinit.training.loop import OneGraph
from skipinit.training.protocol import identity
from skipinit.training.run import Run
from support.runs import SMALL

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),  # compiling raises what torch itself warns of
]

_CONFIG = replace(SMALL, batch_size=64)


def _error(found: Tensor, expected: Tensor) -> float:
    return float((found.detach().double() - expected.detach()).norm() / expected.detach().norm())


@pytest.mark.parametrize(
    ("images", "channels", "out", "height", "width"),
    [
        (64, 32, 32, 32, 32),
        (64, 16, 32, 32, 32),
        (64, 64, 64, 16, 16),
        (64, 128, 128, 8, 8),
        (3, 32, 64, 7, 5),
    ],
)
def test_a_bfloat16_convolution_equals_float64_to_its_rounding(
    images: int, channels: int, out: int, height: int, width: int
) -> None:
    """bfloat16 keeps 8 bits: relative errors of 2e-3; the weight gradient is summed and kept in float32."""
    from skipinit.training.kernels.bfloat16 import RoundedWeights

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(channels, out, 3, padding=1, bias=False)).cuda()
    model.to(memory_format=torch.channels_last)
    exact = nn.Conv2d(channels, out, 3, padding=1, bias=False).cuda().double()
    exact.weight.data = model[0].weight.data.bfloat16().double()
    RoundedWeights(model)
    x = torch.randn(images, channels, height, width, device="cuda").bfloat16()
    gradient = torch.randn(images, out, height, width, device="cuda").bfloat16()
    ours, theirs = x.clone().requires_grad_(), x.double().requires_grad_()
    y, y_exact = model(ours), exact(theirs)
    y.backward(gradient)
    y_exact.backward(gradient.double())
    assert _error(y, y_exact) < 3e-3
    assert _error(ours.grad, theirs.grad) < 3e-3
    assert model[0].weight.grad.dtype == torch.float32
    assert _error(model[0].weight.grad, exact.weight.grad) < 1e-5


def test_the_last_of_more_values_than_32_bits_can_number_is_convolved_like_a_first_one() -> None:
    from skipinit.training.kernels.convolution import convolve_3x3, weight_gradient_3x3

    images, channels, side = 1025, 32, 256
    assert images * channels * side**2 > 2**31
    if torch.cuda.mem_get_info()[0] < 20 * 2**30:
        pytest.skip("needs 20 GiB of GPU memory")
    torch.manual_seed(0)
    shape = (images, channels, side, side)
    many = torch.empty(shape, dtype=torch.bfloat16, device="cuda", memory_format=torch.channels_last)
    many.zero_()[-1].normal_()
    one = many[-1:].clone(memory_format=torch.channels_last)
    weight = torch.randn(channels, channels, 3, 3, device="cuda").bfloat16()
    weight = weight.contiguous(memory_format=torch.channels_last)
    for to_input in (False, True):
        found = convolve_3x3(many, weight, to_input)
        assert torch.equal(found[-1:], convolve_3x3(one, weight, to_input))
        assert not found[:-1].any()
        del found
    # Tensor cores cut off what does not fit into a sum, 3e-4 over the whole image: a short sum is left.
    many[-1, :, :-2] = one[:, :, :-2] = 0
    expected = weight_gradient_3x3(one, one).double()  # the others are 0, and only the order of sums differs
    assert _error(weight_gradient_3x3(many, many), expected) < 1e-5


@pytest.mark.parametrize(
    ("name", "scheme", "alpha"),
    [("wrn16_2", "skipinit", 0.5), ("wrn22_1", "skipinit", 0.0), ("wrn16_2", "divide-sqrt2", None)],
)
def test_a_chain_of_blocks_errs_no_more_than_autocast(name: str, scheme: str, alpha: float | None) -> None:
    """Against float64, both in bfloat16: the chain rounds at fewer places."""
    from skipinit.training.kernels.bfloat16 import RoundedWeights, chain_blocks

    ours, theirs, exact = (
        build(ModelConfig(name, scheme, alpha=alpha), seed=1).cuda().to(memory_format=torch.channels_last)
        for _ in range(3)
    )
    RoundedWeights(ours, chain_blocks(ours.blocks)).refresh()
    exact.double()
    torch.manual_seed(0)
    images = torch.randn(64, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    gradient = torch.randn(64, 10, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        found, autocast = ours(images), theirs(images)
        with torch.no_grad():  # another compilation, another rounding at most
            assert _error(ours(images), found) < 3e-3
    found.float().backward(gradient)
    autocast.float().backward(gradient)
    out = exact(images.double())
    out.backward(gradient.double())
    assert _error(found, out) < 1.2 * _error(autocast, out)
    for mine, its, right in zip(_gradients(ours), _gradients(theirs), _gradients(exact), strict=True):
        if right.norm() == 0:
            assert mine.norm() == 0
        else:
            assert _error(mine, right) < 1.5 * _error(its, right) + 2e-3


def _gradients(model: nn.Module) -> list[Tensor]:
    """Of every weight; of all scalars as one vector, because one number may be right by chance."""
    weights = [weight.grad for weight in model.parameters() if weight.dim() > 0]
    scalars = [scalar.grad for scalar in model.parameters() if scalar.dim() == 0]
    return [*weights, torch.stack(scalars)] if scalars else weights


def test_a_chain_shows_values_that_are_not_finite() -> None:
    from skipinit.training.kernels.bfloat16 import RoundedWeights, chain_blocks

    model = (
        build(ModelConfig("wrn16_2", "skipinit", alpha=1.0), seed=1)
        .cuda()
        .to(memory_format=torch.channels_last)
    )
    RoundedWeights(model, chain_blocks(model.blocks)).refresh()
    with torch.autocast("cuda", torch.bfloat16):
        out = model(torch.full((2, 3, 32, 32), torch.nan, device="cuda"))
    assert out.isnan().all()


def test_a_captured_graph_trains_as_the_cpu_does() -> None:
    on_cpu, on_gpu = (train(_CONFIG, device=device, progress=False) for device in ("cpu", "cuda"))
    for ours, theirs in zip(on_gpu.records, on_cpu.records, strict=True):
        assert ours.train_loss == pytest.approx(theirs.train_loss, rel=1e-3)


def test_a_users_model_trains_beside_the_graph_as_alone(tmp_path: Path) -> None:
    own = ModelConfig("support.own_models:normalized_blocks", "own", num_classes=10, in_channels=1)
    configs = (_CONFIG, replace(_CONFIG, model=own), replace(_CONFIG, seed=5))
    run_sweep(Grid(configs), tmp_path / "pack", device="cuda", pack_size=3, progress=False)
    with open_store(tmp_path / "pack") as store:
        together = {trial.id: trial.last for trial in store.trials()}
    for config in configs:
        alone = train(config, device="cuda", progress=False).final
        found = together[identity(config)]
        assert found is not None
        assert alone is not None
        assert found.train_loss == pytest.approx(alone.train_loss, rel=1e-3)


def test_a_pack_whose_graph_does_not_fit_is_halved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory ends while the graph of four runs is captured; two at a time fit."""
    captured: list[int] = []
    warm_up, capture = OneGraph._warm_up, OneGraph._capture
    total = torch.cuda.get_device_properties("cuda").total_memory

    def limit_memory_after(graph: OneGraph, work: Callable[[Run], object]) -> None:
        warm_up(graph, work)
        captured.append(len(graph.runs))
        torch.cuda.empty_cache()
        if len(graph.runs) > 2:
            torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / total)

    def lift_limit_after(graph: OneGraph, work: Callable[[Run], Any]) -> Any:
        try:
            return capture(graph, work)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)

    monkeypatch.setattr(OneGraph, "_warm_up", limit_memory_after)
    monkeypatch.setattr(OneGraph, "_capture", lift_limit_after)
    configs = tuple(replace(_CONFIG, seed=seed) for seed in range(4))
    run_sweep(Grid(configs), tmp_path / "pack", device="cuda", pack_size=4, progress=False)
    assert captured[0] == 4
    assert set(captured[1:]) == {2}
    with open_store(tmp_path / "pack") as store:
        halved = {trial.id: trial.last for trial in store.trials()}
    monkeypatch.undo()
    for config in configs:
        alone, found = train(config, device="cuda", progress=False).final, halved[identity(config)]
        assert alone is not None
        assert found is not None
        # cuDNN chooses its float32 kernels by timing them, so that equal runs may round differently.
        assert found.train_loss == pytest.approx(alone.train_loss, rel=1e-3)


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_steps_beside_the_graph_are_watched_and_equal_but_for_rounding(
    tmp_path: Path, precision: Precision
) -> None:
    model = replace(_CONFIG.model, scheme="regularized-skipinit")
    config = replace(_CONFIG, precision=precision, model=model)
    plain = train(config, tmp_path / "plain", device="cuda", progress=False)
    seen = train(replace(config, watch=10), tmp_path / "seen", device="cuda", progress=False)
    for ours, theirs in zip(seen.records, plain.records, strict=True):
        assert ours.train_loss == pytest.approx(theirs.train_loss, rel=1e-3)
    [report] = watched(tmp_path / "seen").values()
    assert report.steps == (0, 10, 20, 30, 40)
    assert len(report.blocks) == 3
    assert all(row.update_ratio is not None for each in report.measurements for row in each.rows)


def test_chains_are_not_watched_which_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = replace(_CONFIG, precision="bfloat16", epochs=1, watch=10)
    train(config, tmp_path, device="cuda", progress=False)
    assert "which cannot be watched" in capsys.readouterr().err
    assert not watched(tmp_path)


@pytest.mark.parametrize("scheme", ["batchnorm", "regularized-skipinit"])
def test_bfloat16_trains(scheme: str) -> None:
    model = replace(_CONFIG.model, scheme=scheme)
    result = train(
        replace(_CONFIG, model=model, epochs=10, precision="bfloat16"), device="cuda", progress=False
    )
    assert result.final is not None
    assert result.final.test_accuracy > 90
