"""What a run leaves behind: a record of every epoch and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class EpochRecord:
    """What is written after every epoch."""

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
    """Of this run in training; evaluation and checkpoints do not count."""
    clean_train_loss: float | None = None
    """Cross entropy over the unaugmented training set after the epoch, where asked for."""


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
