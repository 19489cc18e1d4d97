"""What a sweep will take before it runs: its packs, their time, their memory.

Estimates, of the right size and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..config import TrainConfig
from ..data.catalog import describe
from ..errors import ConfigError
from ..training.protocol import identity
from ..training.records import Trial
from ..training.world import find_device
from .memory import pack_memory
from .pace import Pace
from .packs import MEMORY_SHARE, PackKey, choose_size, group, split
from .store import FILE, open_store


@dataclass(frozen=True)
class Pack:
    """Trials that will step together."""

    key: PackKey
    trials: int
    seconds: float
    memory: int
    """Bytes, beside the data set's images."""


@dataclass(frozen=True)
class Forecast:
    """What a sweep still takes."""

    device: str
    results: int
    """Trials that have a result already."""
    resumed: int
    """Trials that go on from a checkpoint."""
    measured: int
    """Trials whose time is that of finished ones; the others' is estimated from counted work."""
    packs: tuple[Pack, ...]

    @property
    def trials(self) -> int:
        """Trials left to train."""
        return sum(pack.trials for pack in self.packs)

    @property
    def seconds(self) -> float:
        """Of all packs, one after the other."""
        return sum(pack.seconds for pack in self.packs)


def forecast(
    trials: Sequence[TrainConfig], out: Path, device: str = "auto", pack_size: int | None = None
) -> Forecast:
    """What `run_sweep` would do with these trials and this folder."""
    if pack_size is not None and pack_size < 1:
        raise ConfigError(f"pack_size {pack_size} is not allowed; it must be 1 or more")
    stored = _stored_trials(out)
    pace = Pace(find_device(device), stored.values())
    known = [(config, stored.get(identity(config))) for config in trials]
    owing = [(config, trial) for config, trial in known if trial is None or not trial.has_result]
    waiting = [(config, _position(trial, out)) for config, trial in owing]
    return Forecast(
        device=pace.origin.device,
        results=len(trials) - len(owing),
        resumed=sum(position > 0 for _, position in waiting),
        measured=sum(pace.knows(config) for config, _ in owing),
        packs=plan_packs(waiting, pace, pack_size),
    )


def plan_packs(
    waiting: Sequence[tuple[TrainConfig, int]], pace: Pace, pack_size: int | None = None
) -> tuple[Pack, ...]:
    """The packs of some trials, each with the steps it has taken, in the order they would run."""
    packs = []
    for key, members in group(waiting).items():
        for pack in split(members, pack_size or _likely_size(members, pace)):
            seconds = _epochs_left(key) * pace.epoch(pack)
            packs.append(Pack(key, len(pack), seconds, pack_memory(pack, pace.on_gpu)))
    return tuple(packs)


def _likely_size(configs: Sequence[TrainConfig], pace: Pace) -> int:
    """What `best_size` would find by measuring."""
    if not pace.on_gpu:
        return 1
    limit = MEMORY_SHARE * torch.cuda.get_device_properties(pace.device).total_memory

    def speed(some: Sequence[TrainConfig]) -> float | None:
        return len(some) / pace.estimated_epoch(some) if pack_memory(some, on_gpu=True) <= limit else None

    return choose_size(configs, speed)


def _stored_trials(out: Path) -> dict[str, Trial]:
    if not (out / FILE).exists():
        return {}
    with open_store(out) as store:
        return {trial.id: trial for trial in store.trials()}


def _position(trial: Trial | None, out: Path) -> int:
    """Steps that its checkpoint, if there is one, holds."""
    if trial is None or trial.started is None:
        return 0
    from ..training.checkpoint import (
        Checkpoints,  # takes a second to load; a plan of new trials need not wait
    )

    return Checkpoints(out / "checkpoints").position(trial.id)


def _epochs_left(key: PackKey) -> float:
    if not key.position:
        return key.epochs
    return key.epochs - key.position / (describe(key.data).train_size // key.batch_size)


def rough_time(seconds: float) -> str:
    """In the unit that fits."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} s"
