"""Runs as plain data: the record of an epoch, the trial, the events of its training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from ..config import TrainConfig
from ..probing.history import Measurement
from ..provenance import Provenance


@dataclass(frozen=True)
class EpochRecord:
    """The measurements of an epoch."""

    epoch: int
    """Counted from 1."""
    train_loss: float
    """Mean cross entropy over the epoch's training batches, without L2."""
    test_accuracy: float
    """Percent."""
    test_loss: float
    lr: float
    """Of the epoch's last step."""
    images_per_second: float
    """Training images of this run per second, without the time of evaluation and checkpoints."""
    clean_train_loss: float | None = None
    """Cross entropy over the unaugmented training set after the epoch, if asked for."""


def is_gapless(curve: Sequence[EpochRecord]) -> bool:
    """Whether epochs are consecutive. They need not start at 1: an export may hold only the last one."""
    return all(record.epoch == curve[0].epoch + after for after, record in enumerate(curve))


@dataclass(frozen=True)
class TrainResult:
    """How a run ended."""

    state: Literal["finished", "diverged", "stopped"]
    step: int
    """Steps taken; for a diverged run the step, from 0, whose loss was not finite."""
    records: tuple[EpochRecord, ...]

    @property
    def final(self) -> EpochRecord | None:
        """The last epoch's record, if there is one."""
        return self.records[-1] if self.records else None


State = Literal["pending", "running", "failed", "diverged", "finished"]
"""`failed`: it raised, and may be tried again. `diverged`: it went non-finite, which is a result."""


STATES: tuple[State, ...] = get_args(State)
RESULTS: tuple[State, ...] = ("diverged", "finished")
"""A trial in one of these states has its result and is never run again."""


@dataclass(frozen=True)
class Trial:
    """One trial as the store knows it."""

    id: str
    config: TrainConfig
    state: State = "pending"
    step: int | None = None
    """Steps taken; of a diverged trial the step, from 0, whose loss was not finite."""
    reason: str | None = None
    traceback: str | None = None
    classes: int | None = None
    """Classes of the data set, known once the trial has started."""
    provenance: Provenance | None = None
    started: str | None = None
    ended: str | None = None
    seconds: float = 0.0
    """Its share of the device's time, over all attempts."""
    last: EpochRecord | None = None
    """The last epoch recorded: of a finished trial, its result."""

    @property
    def has_result(self) -> bool:
        """Whether it is finished or diverged."""
        return self.state in RESULTS

    @property
    def is_whole(self) -> bool:
        """Whether it is consistent: a finished trial has recorded its last epoch."""
        return self.state != "finished" or (self.last is not None and self.last.epoch == self.config.epochs)


@dataclass(frozen=True)
class Started:
    """A trial starts, or resumes from a checkpoint."""

    id: str
    provenance: Provenance
    classes: int
    curve: tuple[EpochRecord, ...] = ()
    """The epochs in the checkpoint, but not the run's last: that one is recorded with the result."""


@dataclass(frozen=True)
class Recorded:
    """Epochs that trials of one pack have finished, each with its trial's identity."""

    epochs: tuple[tuple[str, EpochRecord], ...]


@dataclass(frozen=True)
class Measured:
    """Measurements of a watched trial. A resumed trial may measure a step again."""

    id: str
    measurements: tuple[Measurement, ...]


@dataclass(frozen=True)
class Kept:
    """A checkpoint, as the bytes of its file."""

    id: str
    content: bytes


@dataclass(frozen=True)
class Finished:
    """A trial has its result after `step` steps."""

    id: str
    last: EpochRecord
    step: int
    seconds: float


@dataclass(frozen=True)
class Diverged:
    """A trial's loss was not finite at `step`, after its epoch `last` if there is one. This is a result."""

    id: str
    last: EpochRecord | None
    step: int
    seconds: float


@dataclass(frozen=True)
class Failed:
    """A trial raised."""

    id: str
    reason: str
    traceback: str
    seconds: float


Event = Started | Recorded | Measured | Kept | Finished | Diverged | Failed


Emit = Callable[[Event], None]
"""Records an event, or sends it to the process that does."""
