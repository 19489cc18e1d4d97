"""How far a sweep is and how long it will take."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime

from ..lock import Holder
from .records import STATES, Trial
from .store import Store


@dataclass(frozen=True)
class Progress:
    """A sweep at one instant."""

    counts: dict[str, int]
    """Trials by state."""
    epochs_done: int
    epochs_total: int
    seconds_left: float | None
    """At the pace since the writer began; None while nobody writes or nothing was done yet."""
    writer: Holder | None
    running: tuple[Trial, ...]

    @property
    def trials(self) -> int:
        """How many trials there are."""
        return sum(self.counts.values())


def progress(store: Store, now: datetime | None = None) -> Progress:
    """Where the sweep stands."""
    writer, meta, trials = store.writer(), store.meta(), store.trials()
    states = Counter(trial.state for trial in trials)
    total = sum(trial.config.epochs for trial in trials)
    done = sum(trial.epochs_done for trial in trials)
    elapsed = (now or datetime.now(UTC)) - datetime.fromisoformat(meta["session_started"])
    recent = done - meta["session_epochs"]
    left = (total - done) * elapsed.total_seconds() / recent if writer and recent > 0 else None
    running = tuple(trial for trial in trials if trial.state == "running")
    return Progress({state: states[state] for state in STATES}, done, total, left, writer, running)
