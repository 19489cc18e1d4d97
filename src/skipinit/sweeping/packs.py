"""Which trials step together: the same data, batch size and length, at the same step.

How many of them is a matter of memory and speed, and measured: a pack is doubled for as long as that makes
all runs together clearly faster and they fit.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from ..config import TrainConfig
from ..training.data import Data
from ..training.executor import make_executor
from ..training.run import Run
from ..training.world import World

_LARGEST = 64
_WORTH_IT = 1.05
"""A larger pack must be this many times as fast; otherwise trials only finish later."""
_MEMORY_SHARE = 0.8
_STEPS = 20


@dataclass(frozen=True)
class PackKey:
    """What trials of one pack share."""

    data: str
    batch_size: int
    epochs: int
    position: int
    """Steps taken already."""


def group(trials: Sequence[tuple[TrainConfig, int]]) -> dict[PackKey, list[TrainConfig]]:
    """Trials, each with the steps it has taken, by what they must share."""
    groups: defaultdict[PackKey, list[TrainConfig]] = defaultdict(list)
    for config, position in trials:
        groups[PackKey(config.data, config.batch_size, config.epochs, position)].append(config)
    return dict(groups)


def split(configs: Sequence[TrainConfig], size: int) -> Iterator[list[TrainConfig]]:
    """Packs of at most `size`."""
    for first in range(0, len(configs), size):
        yield list(configs[first : first + size])


def best_size(configs: Sequence[TrainConfig], data: Data, world: World) -> int:
    """How many of these trials to step together, by trying 1, 2, 4, ... of them; on the CPU one."""
    if world.device.type == "cpu":
        return 1
    size, rate = 0, 0.0
    while size < min(len(configs), _LARGEST):
        larger = min(max(2 * size, 1), len(configs), _LARGEST)
        faster = _steps_per_second(configs[:larger], data, world)
        if faster is None or faster < _WORTH_IT * rate:
            break
        size, rate = larger, faster
    return max(size, 1)


def _steps_per_second(configs: Sequence[TrainConfig], data: Data, world: World) -> float | None:
    """Steps of all runs together; None where they do not fit."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    try:
        runs = [Run(config, data.source(config, world), world, data.micro_batch) for config in configs]
        for run in runs:
            run.source.begin(0, 0)
        pack = make_executor(runs, data.on_device)
        pack.step()
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(_STEPS):
            pack.step()
        torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        return None
    if torch.cuda.max_memory_allocated() > _MEMORY_SHARE * torch.cuda.get_device_properties(0).total_memory:
        return None
    return _STEPS * len(configs) / (time.perf_counter() - started)
