"""What happens to trials while they train, as plain data that can cross machines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..provenance import Provenance
from ..training.records import EpochRecord


@dataclass(frozen=True)
class Started:
    """A trial trains, from the beginning or on from a checkpoint."""

    id: str
    provenance: Provenance
    classes: int
    epochs_done: int


@dataclass(frozen=True)
class Recorded:
    """Epochs that trials of one pack have behind them, each with its trial's identity."""

    epochs: tuple[tuple[str, EpochRecord], ...]


@dataclass(frozen=True)
class Kept:
    """A checkpoint, as the bytes of its file."""

    id: str
    content: bytes


@dataclass(frozen=True)
class Finished:
    """A trial has its result."""

    id: str
    last: EpochRecord
    seconds: float


@dataclass(frozen=True)
class Diverged:
    """A trial went non-finite after its epoch `last`, if it came that far: a result too."""

    id: str
    last: EpochRecord | None
    reason: str
    seconds: float


@dataclass(frozen=True)
class Failed:
    """A trial raised."""

    id: str
    reason: str
    traceback: str
    seconds: float


Event = Started | Recorded | Kept | Finished | Diverged | Failed
Tell = Callable[[Event], None]
