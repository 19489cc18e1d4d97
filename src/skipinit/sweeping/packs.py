"""Packs: trials that step together. They share data, batch size and epochs, and are at the same step.

The best size is measured: a pack is doubled while it fits into memory and that makes all runs together
clearly faster.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..config import TrainConfig

if TYPE_CHECKING:  # a plan is made without torch
    from ..training.sources import Data
    from ..training.world import World

MEMORY_SHARE = 0.8
"""The part of the device's memory that a pack may use."""
_LARGEST = 64
_WORTH_IT = 1.05
"""A larger pack must be faster by this factor; otherwise its trials only finish later."""
_STEPS = 20


@dataclass(frozen=True)
class PackKey:
    """What the trials of a pack share."""

    data: str
    batch_size: int
    epochs: int
    position: int
    """Steps taken already."""


def group(trials: Sequence[tuple[TrainConfig, int]]) -> dict[PackKey, list[TrainConfig]]:
    """Trials, given with the steps they have taken, grouped by what a pack must share."""
    groups: defaultdict[PackKey, list[TrainConfig]] = defaultdict(list)
    for config, position in trials:
        groups[PackKey(config.data, config.batch_size, config.epochs, position)].append(config)
    return dict(groups)


def split(configs: Sequence[TrainConfig], size: int) -> Iterator[list[TrainConfig]]:
    """Packs of at most `size`."""
    for first in range(0, len(configs), size):
        yield list(configs[first : first + size])


def choose_size(
    configs: Sequence[TrainConfig], speed: Callable[[Sequence[TrainConfig]], float | None]
) -> int:
    """How many of these trials to step together, by trying 1, 2, 4, ... of them.

    The search ends after two doublings in a row without a gain. One is not enough: two runs of 100 layers
    with batch norm were measured to be no faster together than in turn, four were 1.7 times as fast.

    Args:
        configs: the trials.
        speed: how fast some of them are together, in any unit; None if they do not fit.
    """
    most = min(len(configs), _LARGEST)
    size, best, tried, in_vain = 1, 0.0, 1, 0
    while in_vain < 2 and (found := speed(configs[:tried])) is not None:
        if found >= _WORTH_IT * best:
            size, best, in_vain = tried, found, 0
        else:
            in_vain += 1
        if tried == most:
            break
        tried = min(2 * tried, most)
    return size


def best_size(configs: Sequence[TrainConfig], data: Data, world: World) -> int:
    """How many of these trials to step together on this device, measured; one on the CPU."""
    if world.device.type == "cpu":
        return 1
    return choose_size(configs, lambda some: _steps_per_second(some, data, world))


def _steps_per_second(configs: Sequence[TrainConfig], data: Data, world: World) -> float | None:
    """Steps per second of all runs together; None if they do not fit."""
    import torch

    from ..training.loop import make_executor
    from ..training.run import Run

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(world.device)
    try:
        runs = [Run(config, data.source(config, world), world, data.micro_batch) for config in configs]
        for run in runs:
            run.source.begin(0, 0)
        pack = make_executor(runs, data.on_device)
        pack.step()
        torch.cuda.synchronize(world.device)
        started = time.perf_counter()
        for _ in range(_STEPS):
            pack.step()
        torch.cuda.synchronize(world.device)
        elapsed = time.perf_counter() - started
    except torch.OutOfMemoryError:
        return None
    memory = torch.cuda.get_device_properties(world.device).total_memory
    # Reserved, not allocated: a graph is captured run by run, but each run keeps its stream's memory.
    if torch.cuda.max_memory_reserved(world.device) > MEMORY_SHARE * memory:
        return None
    return _STEPS * len(configs) / elapsed
