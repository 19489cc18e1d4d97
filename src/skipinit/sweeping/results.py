"""What a sweep has found and how far it is: trials and cells as plain rows, watched trainings, progress."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..errors import system_errors_explained
from ..files import Holder
from ..probing.history import WatchReport
from ..training.records import STATES, Trial
from .database import damaged
from .grid import cell_key, config_name, flatten
from .store import Store, open_store
from .summary import METRICS, Cell, TrialResult, Trim, summarize

Row = dict[str, Any]
# Not the epoch's `lr`, which the schedule has lowered: a row has that of the trial.
_MEASURED = ("epoch", "train_loss", "clean_train_loss", "test_accuracy", "test_loss", "images_per_second")


@dataclass(frozen=True)
class CellResult:
    """A cell of the sweep: what its trials share, its summary, and how many trials have no result."""

    shared: Row
    """The config by the names of its axes, without `lr` and `seed`."""
    summary: Cell
    trials: int
    unfinished: int
    failures: int
    """Trials that raised: they have no result."""


@system_errors_explained()
def results(folder: str | Path, *, best: int | None = None, of: int | None = None) -> dict[str, list[Row]]:
    """The results of a sweep as plain rows.

    `trials` has a row per trial, `cells` a row per cell and metric. A cell is all trials that differ only in
    rate and seed.

    Args:
        folder: folder of the sweep.
        best: average the best `best` of `of` runs; if not given, the paper's 5 of 7, or 12 of 15.
        of: runs that count, lowest seeds first.
    """
    trim = Trim.asked(best, of)
    with open_store(Path(folder)) as store:
        trials = store.trials()
    return {
        "trials": [trial_row(trial) for trial in trials],
        "cells": [cell_row(cell) for cell in cells(trials, trim)],
    }


@system_errors_explained()
def watched(folder: str | Path) -> dict[str, WatchReport]:
    """The measurements of `watch` in the folder of a run or sweep, by the identities of the trials.

    >>> [report] = skipinit.watched("runs/a").values()
    >>> report.plot("share.png")
    """
    with open_store(Path(folder)) as store:
        return {
            trial.id: WatchReport(config_name(trial.config), tuple(store.measurements(trial.id)))
            for trial in store.watched()
        }


def cells(trials: Sequence[Trial], trim: Trim | None = None) -> list[CellResult]:
    """Every cell and metric, in the order of the trials; `trim` is the paper's by default."""
    groups: defaultdict[tuple[object, ...], list[Trial]] = defaultdict(list)
    for trial in trials:
        groups[cell_key(trial.config)].append(trial)
    trim = trim or Trim.of_paper(len({trial.config.seed for trial in trials}))
    return [cell for group in groups.values() for cell in _cells(group, trim)]


def trial_row(trial: Trial) -> Row:
    """One trial, flat: config, state, result, cost, origin."""
    measured = vars(trial.last) if trial.last else {}
    origin = trial.provenance
    return {
        "id": trial.id,
        "state": trial.state,
        "reason": trial.reason,
        **flatten(trial.config),
        **{name: measured.get(name) for name in _MEASURED},
        "seconds": trial.seconds,
        "started": trial.started,
        "ended": trial.ended,
        "machine": origin and origin.machine,
        "device": origin and origin.device,
        "commit": origin and origin.commit,
    }


def cell_row(cell: CellResult) -> Row:
    """One cell and metric, flat except for `rates`, which holds a row per learning rate."""
    summary, best = cell.summary, cell.summary.best
    return {
        **cell.shared,
        "metric": summary.metric,
        "failed": summary.failed,
        "best_lr": best and best.lr,
        "lr_low": summary.lr_low,
        "lr_high": summary.lr_high,
        "edge": summary.edge,
        "mean": best and best.mean,
        "std": best and best.std,
        "kept": best and best.kept,
        "runs": best and best.runs,
        "trials": cell.trials,
        "unfinished": cell.unfinished,
        "failures": cell.failures,
        "rates": [vars(rate) for rate in summary.rates],
    }


def varying(rows: Sequence[Row], names: Iterable[str]) -> list[str]:
    """Those of `names` in which rows differ."""
    return [name for name in names if len({row[name] for row in rows}) > 1]


def _shared(trial: Trial) -> Row:
    """The options that all trials of a cell have in common."""
    shared = flatten(trial.config)
    del shared["lr"], shared["seed"]
    return shared


def _cells(trials: Sequence[Trial], trim: Trim) -> Iterator[CellResult]:
    """One cell by every metric."""
    runs = [_result(trial) for trial in trials if trial.has_result]
    failures = sum(trial.state == "failed" for trial in trials)
    unfinished = len(trials) - len(runs) - failures
    rates = [trial.config.lr for trial in trials]
    for metric in METRICS:
        summary = summarize(runs, metric, trim, rates)
        yield CellResult(_shared(trials[0]), summary, len(trials), unfinished, failures)


def _result(trial: Trial) -> TrialResult:
    accuracy = loss = None
    if trial.state == "finished" and trial.last:
        accuracy, loss = trial.last.test_accuracy, trial.last.train_loss
    assert trial.classes is not None, "a trial with a result has been started"
    return TrialResult(trial.config.lr, trial.config.seed, trial.classes, accuracy, loss)


@dataclass(frozen=True)
class Progress:
    """The progress of a sweep."""

    counts: dict[str, int]
    """Trials by state."""
    epochs_done: int
    epochs_total: int
    seconds_left: float | None
    """At the pace since the writer started; None if there is no writer, or no new epoch yet."""
    writer: Holder | None
    running: tuple[Trial, ...]
    failures: dict[str, int]
    """Failed trials by reason; the most frequent first."""

    @property
    def trials(self) -> int:
        """How many trials there are."""
        return sum(self.counts.values())


@system_errors_explained()
def status(folder: str | Path) -> Progress:
    """The progress of the sweep in `folder`."""
    with open_store(Path(folder)) as store:
        return progress(store)


def progress(store: Store, now: datetime | None = None) -> Progress:
    """The progress of the sweep in a store."""
    writer, meta, tally = store.writer(), store.meta(), store.tally()
    counts: dict[str, int] = {state: tally[state].trials if state in tally else 0 for state in STATES}
    total = sum(each.epochs for each in tally.values())
    done = sum(each.done for each in tally.values())
    try:
        began = datetime.fromisoformat(meta["session_started"])
        elapsed = ((now or datetime.now(UTC)) - began).total_seconds()
        recent = done - meta["session_epochs"]
    except (KeyError, TypeError, ValueError) as error:  # these rows have no checksum
        raise damaged(store.path) from error
    known = writer and recent > 0 and elapsed > 0  # a clock can be set back
    left = (total - done) * elapsed / recent if known else None
    return Progress(
        counts, done, total, left, writer, tuple(store.trials("running")), store.failure_reasons()
    )
