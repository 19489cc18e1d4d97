"""How many trials of a pack step together, and a share in the process of its worker."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from skipinit.config import ModelConfig, TrainConfig
from skipinit.errors import ConfigError
from skipinit.sweeping.trainer import Options, Share, best_size, choose_size, train_share
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
