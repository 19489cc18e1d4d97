"""How many trials of a pack step together, and a share in the process of its worker."""

from __future__ import annotations

import gc
import sys
import weakref
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock
from weakref import WeakSet

import pytest
import torch

from skipinit.config import ModelConfig, TrainConfig
from skipinit.errors import ConfigError
from skipinit.sweeping import trainer
from skipinit.sweeping.trainer import (
    Options,
    Share,
    Trainer,
    Workplace,
    _steps_per_second,
    best_size,
    choose_size,
    train_share,
)
from skipinit.training.control import Stop
from skipinit.training.protocol import identity
from skipinit.training.records import Event, Finished, Kept
from skipinit.training.world import World
from support.runs import SMALL

CIFAR = TrainConfig(ModelConfig("wrn16_2", "batchnorm"), "cifar10", lr=0.1, batch_size=64, epochs=200)


@pytest.mark.parametrize(
    ("gain", "fits", "chosen"), [(1.9, 64, 64), (1.9, 5, 4), (1.02, 64, 1), (1.9, 0, 1), (1.06, 100, 64)]
)
def test_packs_are_doubled_while_that_pays_and_fits(gain: float, fits: int, chosen: int) -> None:
    sizes = []

    def speed(configs: object) -> float | None:
        sizes.append(len(configs))  # type: ignore[arg-type]
        return gain ** (sizes[-1].bit_length() - 1) if sizes[-1] <= fits else None

    assert choose_size([CIFAR] * 100, speed) == chosen
    assert sizes == [1, 2, 4, 8, 16, 32, 64][: len(sizes)]
    assert choose_size([CIFAR] * 3, lambda some: len(some)) == 3


def test_a_doubling_that_brings_nothing_is_looked_past_once() -> None:
    speeds = {1: 100, 2: 99, 4: 170, 8: 171, 16: 172}
    assert choose_size([CIFAR] * 100, lambda some: speeds[len(some)]) == 4
    assert choose_size([CIFAR] * 2, lambda some: speeds[len(some)]) == 1


def test_a_pack_is_larger_if_that_is_faster_by_a_twentieth() -> None:
    for speed, chosen in ((105.0, 2), (104.9, 1)):
        assert choose_size([CIFAR] * 2, lambda some, speed=speed: (100.0, speed)[len(some) - 1]) == chosen


def test_a_trial_that_raises_while_packs_are_measured_ends_the_search_and_not_the_sweep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It raises again when it is trained, where that counts as its failure."""

    def make_run(config: TrainConfig) -> Any:
        raise ConfigError("ghost_batch 48 does not divide the 64 examples of each process")

    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    place: Any = SimpleNamespace(world=World(torch.device("cuda")), make_run=make_run)
    assert best_size([CIFAR] * 4, place) == 1


class _Compiled:
    """A run that is a part of itself, as modules are that torch has compiled."""

    everywhere: ClassVar[WeakSet[_Compiled]] = WeakSet()

    def __init__(self) -> None:
        self.itself, self.source = self, mock.MagicMock()
        self.everywhere.add(self)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A place to train on a GPU, as far as the CPU can tell; `held` is how many runs each new one finds."""
    for name in ("reset_peak_memory_stats", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=1))
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 0)
    monkeypatch.setattr(trainer, "make_executor", lambda *_: mock.MagicMock())
    held: list[int] = []

    def make_run(config: TrainConfig) -> Any:
        held.append(len(_Compiled.everywhere))
        return _Compiled()

    place = SimpleNamespace(world=World(torch.device("cuda")), provenance=None, make_run=make_run, held=held)
    place.data = lambda name: SimpleNamespace(on_device=True, num_classes=10)
    gc.disable()  # it comes when it likes
    yield place
    gc.enable()


def test_runs_of_a_measurement_are_no_memory_of_the_next_one(gpu: Any) -> None:
    for count in (1, 2):
        assert _steps_per_second([CIFAR] * count, gpu)
    assert gpu.held == [0, 0, 1]


def test_a_pack_that_does_not_fit_leaves_its_memory_to_its_halves(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train_together(runs: list[Any], *_: Any) -> None:
        if len(runs) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(trainer, "train_together", train_together)
    options, nothing = Options(4, checkpoint_seconds=60), lambda id: (None, 0.0)
    Trainer(gpu, options, nothing, lambda event: None, Stop()).train([CIFAR] * 4)
    assert gpu.held == [0, 1, 2, 3, 0, 1, 0, 1]


def test_a_data_set_has_left_the_device_when_the_next_one_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two may not fit."""
    place = Workplace(World(torch.device("cpu")))
    images = weakref.ref(place.make_run(SMALL).source.images)
    opened: list[str] = []

    def open_next(name: str, device: torch.device) -> Any:
        assert images() is None
        opened.append(name)

    gc.disable()
    try:
        monkeypatch.setattr(trainer, "open_data", open_next)
        place.data("digits16")
    finally:
        gc.enable()
    assert opened == ["digits16"]


def test_a_worker_keeps_no_checkpoint_of_a_trial_that_has_ended() -> None:
    kept, references = {"held here alone": bytes(1000)}, []

    def take(event: Event) -> None:
        if isinstance(event, Kept):
            kept[event.id] = event.content
        elif isinstance(event, Finished):
            references.extend(map(sys.getrefcount, kept.values()))

    share = Share([SMALL], Options(1, checkpoint_seconds=0), "cpu", {identity(SMALL): b""})
    train_share(share, take, Stop())
    alone, of_the_trial = references
    assert of_the_trial == alone


def test_a_worker_trains_with_one_thread_however_many_its_process_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process of a Ray worker is not ours: torch may have been imported there with a thread per core."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    threads: set[int] = set()
    torch.set_num_threads(2)
    try:
        share = Share([SMALL], Options(1, checkpoint_seconds=60), "cpu", {identity(SMALL): b""})
        train_share(share, lambda event: threads.add(torch.get_num_threads()), Stop())
        assert (threads, torch.get_num_threads()) == ({1}, 2)
    finally:
        torch.set_num_threads(1)
