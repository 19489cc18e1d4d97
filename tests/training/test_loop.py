"""Runs that share a device, micro-batches that make up a batch: neither may change a run's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import pytest
import torch

from skipinit.config import ModelConfig, TrainConfig
from skipinit.data.catalog import describe
from skipinit.data.images import ImageSet, standardize
from skipinit.errors import ConfigError
from skipinit.nets.merges import GhostBatchNorm2d
from skipinit.training.control import Stop
from skipinit.training.loop import BesideGraph, OneGraph, train_together
from skipinit.training.records import EpochRecord
from skipinit.training.run import Run, _fit_micro_batch
from skipinit.training.sources import DeviceImages, _score, open_data
from skipinit.training.world import World

_WORLD = World(torch.device("cpu"))


class _Listener:
    def __init__(self) -> None:
        self.losses: list[float] = []
        self.broke: dict[int, int] = {}

    def advanced(self, runs: Sequence[Run], position: int) -> None:
        self.losses += [float(run.epoch_losses()[-1]) for run in runs]

    def recorded(self, run: Run, record: EpochRecord) -> None:
        assert run.records[-1] == record

    def diverged(self, run: Run, step: int) -> None:
        self.broke[run.config.seed] = step

    def paused(self, runs: Sequence[Run], last: bool) -> None:
        pass


def _config(scheme: str, seed: int = 0, lr: float = 0.025, **options: Any) -> TrainConfig:
    model = ModelConfig("wrn10_1", scheme, num_classes=10, in_channels=1, **options)
    return TrainConfig(model, "digits", lr=lr, batch_size=256, epochs=2, seed=seed)


def _train(*configs: TrainConfig, micro_batch: int = 1024) -> tuple[list[Run], _Listener]:
    data, listener = open_data("digits", _WORLD.device), _Listener()
    runs = [Run(config, data.source(config, _WORLD), _WORLD, micro_batch) for config in configs]
    train_together(runs, data, listener, Stop())
    return runs, listener


def _numbers(run: Run) -> list[dict[str, Any]]:
    return [{k: v for k, v in asdict(record).items() if k != "images_per_second"} for record in run.records]


def _assert_bit_equal(one: Run, other: Run) -> None:
    assert _numbers(one) == _numbers(other)
    for mine, theirs in zip(one.changing_tensors(), other.changing_tensors(), strict=True):
        assert torch.equal(mine, theirs)
    assert torch.equal(one.generator.get_state(), other.generator.get_state())


def test_a_run_is_bit_equal_alone_and_beside_others_even_one_that_diverges() -> None:
    normal = _config("batchnorm", seed=1)
    dropping = _config("regularized-skipinit", seed=2)
    hopeless = _config("none", seed=3, lr=1e6)
    pack, listener = _train(normal, hopeless, dropping)
    for config, beside in ((normal, pack[0]), (dropping, pack[2])):
        (alone,), _ = _train(config)
        assert len(alone.records) == 2
        _assert_bit_equal(alone, beside)
    assert list(listener.broke) == [3]
    (_,), lonely = _train(hopeless)
    assert lonely.broke == listener.broke


def test_a_clean_training_loss_is_recorded_only_where_asked_for() -> None:
    plain = _config("skipinit", seed=1)
    asking = replace(plain, seed=2, clean_train_loss=True)
    (first, second), _ = _train(plain, asking)
    assert [record.clean_train_loss for record in first.records] == [None, None]
    assert all(record.clean_train_loss is not None for record in second.records)


def test_the_clean_training_loss_is_that_of_the_unaugmented_set() -> None:
    (run,), _ = _train(replace(_config("skipinit"), clean_train_loss=True))
    data = open_data("digits", _WORLD.device)
    pixels = data.images.train_images.double()
    centred = pixels - pixels.mean((1, 2, 3), keepdim=True)
    images = centred / centred.square().mean((1, 2, 3), keepdim=True).sqrt()
    with torch.no_grad():
        logits = run.model.double().eval()(images)
    loss = torch.nn.functional.cross_entropy(logits, data.images.train_labels)
    assert run.records[-1].clean_train_loss == pytest.approx(float(loss), rel=1e-5)


def test_the_step_of_divergence_is_the_first_non_finite_loss() -> None:
    config = _config("none", lr=1e6)
    (run,), listener = _train(config)
    data = open_data("digits", _WORLD.device)
    again = Run(config, data.source(config, _WORLD), _WORLD, 1024)
    again.source.begin(0, 0)
    steps = 0
    while np.isfinite(float(again.losses[max(steps - 1, 0)])):
        again.train_step()
        steps += 1
    assert listener.broke == {0: steps - 1}
    assert run.records == []


def test_an_update_that_only_the_test_set_finds_exploded_ends_the_run() -> None:
    """The only step of the epoch has a finite loss; after it no output is finite."""
    config = replace(_config("none", lr=1e30), batch_size=1442)
    beside = replace(_config("skipinit", seed=1), batch_size=1442)
    (run, other), listener = _train(config, beside)
    assert len(listener.losses) == 3, "two runs in the first epoch, one in the second"
    assert np.isfinite(listener.losses).all()
    assert listener.broke == {0: 0}
    assert (len(run.records), len(other.records)) == (0, 2)


def test_a_rehearsal_of_more_steps_than_are_left_raises_nothing_and_leaves_no_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a GPU does before it captures a graph, with streams of the CPU: there are none."""
    for name in ("Stream", "current_stream", "graph_pool_handle"):
        monkeypatch.setattr(torch.cuda, name, mock.MagicMock())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    config = replace(_config("regularized-skipinit"), batch_size=512, epochs=1)
    data = open_data("digits", _WORLD.device)
    rehearsed, plain = (Run(config, data.source(config, _WORLD), _WORLD, 1024) for _ in range(2))
    assert plain.total_steps == 2
    for run in (rehearsed, plain):
        run.source.begin(0, 0)
        run.train_step()
    OneGraph([rehearsed], capture_scores=False)._warm_up(lambda run: run.train_step())
    _assert_bit_equal(rehearsed, plain)
    for run in (rehearsed, plain):
        run.train_step()
    _assert_bit_equal(rehearsed, plain)
    for _ in range(20):  # as the speed of a pack is measured
        rehearsed.train_step()


class _FakeStream:
    """A stream of which is known whether the main one must still wait for it."""

    unjoined: ClassVar[set[_FakeStream]] = set()

    def wait_stream(self, other: _FakeStream) -> None:
        if other is _MAIN:
            self.unjoined.add(self)
        self.unjoined.discard(other)


_MAIN = _FakeStream()


class _FakeCapture:
    """`torch.cuda.graph`: an end of the capture with a stream that has not been waited for is an error."""

    def __init__(self, graph: object, pool: object, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"

    def __enter__(self) -> None:
        self.outside = {*_FakeStream.unjoined}

    def __exit__(self, *raised: object) -> None:
        if _FakeStream.unjoined - self.outside:
            raise RuntimeError("CUDA error: cudaErrorStreamCaptureUnjoined")


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = {"Stream": _FakeStream, "current_stream": lambda: _MAIN, "graph": _FakeCapture}
    for name in ("CUDAGraph", "graph_pool_handle", "default_generators", "current_device"):
        fakes[name] = mock.MagicMock()
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())


def _three_runs() -> list[Run]:
    data = open_data("digits", _WORLD.device)
    configs = [_config("skipinit", seed) for seed in range(3)]
    return [Run(config, data.source(config, _WORLD), _WORLD, 1024) for config in configs]


def test_a_lack_of_memory_during_a_capture_is_seen_as_such(fake_cuda: None) -> None:
    """A pack is halved for it, and for no other error."""
    runs = _three_runs()
    calls: list[object] = []

    def work(run: Run) -> None:
        calls.append(run)
        if calls.count(runs[1]) == 3 + 1:  # it is warmed up by three
            raise torch.OutOfMemoryError("CUDA out of memory")

    registered = torch.cuda.CUDAGraph.return_value.register_generator_state  # type: ignore[attr-defined]
    registered.side_effect = lambda generator: calls.append("generator")
    with pytest.raises(torch.OutOfMemoryError):
        OneGraph(runs, capture_scores=False)._capture(work)
    assert calls[:4] == ["generator"] * 4, "memory for the generators is taken first"
    assert calls[-2:] == runs[:2]


def test_the_stream_of_own_models_is_waited_for_when_one_raises(fake_cuda: None) -> None:
    runs = _three_runs()
    runs[2].own = True
    pack = BesideGraph(runs, capture_scores=False)
    with mock.patch.object(Run, "train_step"):
        pack.step()
        with mock.patch.object(pack.own, "step", side_effect=KeyError), pytest.raises(KeyError):
            pack.step()
    assert not _FakeStream.unjoined


@pytest.mark.parametrize(
    ("scheme", "options", "sizes"),
    [
        ("batchnorm", {"ghost_batch": 32}, (32, 64, 128)),
        ("regularized-skipinit", {}, (16, 100)),
    ],
)
def test_micro_batches_equal_one_big_batch(
    scheme: str, options: dict[str, int], sizes: tuple[int, ...]
) -> None:
    config = _config(scheme, **options)
    (whole,), heard = _train(config)
    assert whole.micro_batch == 256
    for size in sizes:
        (split,), listener = _train(config, micro_batch=size)
        assert split.micro_batch < 256
        np.testing.assert_allclose(listener.losses, heard.losses, rtol=0, atol=1e-5)


def test_one_step_leaves_the_same_weights_and_running_averages_however_it_is_split() -> None:
    config = _config("batchnorm", ghost_batch=32)
    data = open_data("digits", _WORLD.device)
    states = []
    for size in (256, 64, 32):
        run = Run(config, data.source(config, _WORLD), _WORLD, size)
        run.source.begin(0, 0)
        run.train_step()
        states.append(run.model.state_dict())
    for split in states[1:]:
        for name, tensor in states[0].items():
            np.testing.assert_allclose(split[name], tensor, rtol=1e-5, atol=1e-6, err_msg=name)


def _sizes_scored(limit: int, **options: Any) -> set[int]:
    """How many examples the network sees at once in evaluation."""
    config = replace(_config("batchnorm", **options), epochs=1, clean_train_loss=True)
    data = open_data("digits", _WORLD.device)
    run = Run(config, data.source(config, _WORLD), _WORLD, limit)
    sizes: set[int] = set()
    run.model.register_forward_pre_hook(
        lambda model, inputs: None if model.training else sizes.add(len(inputs[0]))
    )
    train_together([run], data, _Listener(), Stop())
    assert len(run.records) == 1
    return sizes


def test_a_micro_batch_bounds_what_is_scored_at_once_but_not_a_test_batch_with_statistics() -> None:
    assert max(_sizes_scored(50, ghost_batch=32)) == 50
    assert _sizes_scored(50, batch_statistics_at_test=True) == {355, 1442}


def test_test_batches_are_even_so_that_none_is_a_single_image_without_statistics() -> None:
    """Of 4x4 pixels a WRN's last norm sees one: a batch of one image would have no variance."""
    entry = replace(describe("digits"), shape=(1, 4, 4))
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (2001, 1, 4, 4), dtype=torch.uint8, generator=generator)
    labels = torch.arange(2001) % 10
    data = DeviceImages(entry, ImageSet("digits", 10, images, labels, images, labels))
    config = _config("batchnorm", batch_statistics_at_test=True)
    run = Run(config, data.source(config, _WORLD), _WORLD, 1024)
    run.model.eval()
    loss, _ = data.score_test(run).tolist()
    with torch.no_grad():
        logits = [run.model(standardize(part)) for part in (images[:1001], images[1001:])]
    expected = torch.nn.functional.cross_entropy(torch.cat(logits), labels, reduction="sum")
    assert loss == pytest.approx(float(expected), rel=1e-6)


def test_the_score_is_the_same_however_it_is_split() -> None:
    data = open_data("digits", _WORLD.device)
    config = _config("skipinit")
    scores = []
    for limit in (1024, 100, 1):
        run = Run(config, data.source(config, _WORLD), _WORLD, limit)
        run.model.eval()
        scores.append(data.score_test(run).tolist())
    np.testing.assert_allclose(scores, [scores[0]] * 3, rtol=1e-6)


def test_a_micro_batch_holds_whole_ghosts() -> None:
    data = open_data("digits", _WORLD.device)

    def size(limit: int, **options: Any) -> int:
        config = _config("batchnorm", **options)
        return Run(config, data.source(config, _WORLD), _WORLD, limit).micro_batch

    assert size(256, ghost_batch=32) == 256
    assert size(100, ghost_batch=32) == 96
    assert size(8, ghost_batch=32) == 32
    assert size(8) == 256  # statistics of the whole batch need it whole
    with pytest.raises(ConfigError, match="ghost_batch 48 does not divide the 256"):
        size(256, ghost_batch=48)

    unlike = torch.nn.Sequential(GhostBatchNorm2d(4, ghost_batch=4), GhostBatchNorm2d(4, ghost_batch=6))
    assert _fit_micro_batch(unlike, replace(_config("none"), batch_size=48), _WORLD, 20) == 12


def test_a_process_without_a_part_of_the_test_set_adds_nothing_to_the_score() -> None:
    data, config = open_data("digits", _WORLD.device), _config("skipinit")
    run = Run(config, data.source(config, _WORLD), _WORLD, 1024)
    run.model = torch.nn.Unflatten(0, (0, -1))  # cannot take an empty batch
    empty = data.images.test_images[:0], data.images.test_labels[:0]
    assert _score(run, iter([empty])).tolist() == [0, 0]
