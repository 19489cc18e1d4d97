"""What the store holds: a trial, with its last epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ..config import TrainConfig
from ..provenance import Provenance
from ..training.records import EpochRecord

State = Literal["pending", "running", "failed", "diverged", "finished"]
"""`failed`: it raised, and may be tried again. `diverged`: it went non-finite, which is a result."""

STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True)
class Trial:
    """One trial as the store knows it."""

    id: str
    config: TrainConfig
    state: State = "pending"
    reason: str | None = None
    traceback: str | None = None
    classes: int | None = None
    """Classes of the data set, known once the trial has started."""
    provenance: Provenance | None = None
    started: str | None = None
    ended: str | None = None
    seconds: float = 0.0
    """What it cost: its share of the device's time, over all attempts."""
    last: EpochRecord | None = None
    """The last epoch recorded: of a finished trial, its result."""

    @property
    def has_result(self) -> bool:
        """Whether it need never run again."""
        return self.state in ("finished", "diverged")

    @property
    def epochs_done(self) -> int:
        """Epochs that are not left to train; what raised is not tried again by itself."""
        if self.has_result or self.state == "failed":
            return self.config.epochs
        return self.last.epoch if self.last else 0
