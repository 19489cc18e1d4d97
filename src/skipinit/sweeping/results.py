"""Summarizes the runs of a cell: best k of n, the best rate and its error bar, failures, optima at the edge.

The trials of a cell only differ in learning rate and seed. The rules are the paper's (sections 2.2 and 4,
appendix B). Where it gives none, they are:

- At every rate the runs with the `of` smallest seeds count, and the best `best` of them are kept. If there
  are fewer runs than `of`, still at most `best` are kept; `kept` and `runs` say how many.
- A run whose loss was not finite counts as chance: accuracy 100 / classes, loss ln(classes).
- A run is at chance up to 1.5 times chance accuracy, more than an untrained network reaches by luck (for
  10,000 test images and 100 classes that is 5 standard deviations). A cell failed if all its runs are.
- A rate with one run beside others with several is the best only if it is better by more than two standard
  deviations than the best mean of these, or if some of their runs are at chance. Otherwise one lucky run
  would replace the mean of many.
- If means are equal, the smaller rate is the best. Without a standard deviation (one run) only equal means
  are within the error bar. The bar is a span: rates inside may be further away than one deviation.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from ..errors import ConfigError, system_errors_explained
from ..files import Holder
from ..notation import rate_text
from ..probing.history import WatchReport
from ..training.records import STATES, Trial
from .grid import cell_key, flatten
from .store import Store, open_store

Metric = Literal["test_accuracy", "train_loss"]
METRICS: tuple[Metric, ...] = ("test_accuracy", "train_loss")
_CHANCE_MARGIN = 1.5


@dataclass(frozen=True)
class Trim:
    """The best `best` of `of` runs."""

    best: int
    of: int

    def __post_init__(self) -> None:
        if not 1 <= self.best <= self.of:
            raise ConfigError(f"best {self.best} of {self.of} runs is not allowed; best must be from 1 to of")

    @classmethod
    def asked(cls, best: int | None, of: int | None) -> Trim | None:
        """The trim that a user asked for; None if neither value is given."""
        if (best is None) != (of is None):
            raise ConfigError("best and of belong together, as in the best 5 of 7")
        return None if best is None or of is None else cls(best, of)

    @classmethod
    def of_paper(cls, seeds: int) -> Trim:
        """12 of 15 (the figures) if there are 15 seeds, otherwise 5 of 7 (the tables)."""
        return cls(12, 15) if seeds >= 15 else cls(5, 7)


@dataclass(frozen=True)
class Run:
    """The result of one trial; its metrics are None if it diverged."""

    lr: float
    seed: int
    classes: int
    test_accuracy: float | None
    train_loss: float | None

    @property
    def at_chance(self) -> bool:
        """Whether the network learned nothing."""
        return self.value("test_accuracy") <= _CHANCE_MARGIN * 100 / self.classes

    def value(self, metric: Metric) -> float:
        """The metric; that of a diverged run is at chance."""
        if metric == "test_accuracy":
            return 100 / self.classes if self.test_accuracy is None else self.test_accuracy
        return math.log(self.classes) if self.train_loss is None else self.train_loss


@dataclass(frozen=True)
class Rate:
    """One learning rate of a cell."""

    lr: float
    mean: float
    std: float | None
    """With ddof 1; None if only one run is kept."""
    kept: int
    runs: int
    """Results at this rate, of which `kept` count."""
    at_chance: bool
    """Every run."""
    stable: bool
    """No run that is kept is at chance."""


@dataclass(frozen=True)
class Cell:
    """One metric of a cell over its grid of rates."""

    metric: Metric
    rates: tuple[Rate, ...]
    failed: bool
    """At chance for every rate: the paper's dash."""
    best: Rate | None
    """None if there is no result yet, or the cell failed."""
    lr_low: float | None
    lr_high: float | None
    """The span of rates whose mean is within one standard deviation of the best."""
    edge: Literal["low", "high", "only"] | None
    """Whether the best rate is an end of the grid, or its only rate: the optimum may be outside."""


def summarize(runs: Iterable[Run], metric: Metric, trim: Trim, grid: Iterable[float] = ()) -> Cell:
    """The cell of these runs; `grid` has all rates asked for, also those without a result yet."""
    by_rate: defaultdict[float, list[Run]] = defaultdict(list)
    for run in runs:
        by_rate[run.lr].append(run)
    rates = tuple(_rate(lr, by_rate[lr], metric, trim) for lr in sorted(by_rate))
    failed = bool(rates) and all(rate.at_chance for rate in rates)
    if failed or not rates:
        return Cell(metric, rates, failed, None, None, None, None)
    best = _best(rates, metric)
    near = [rate.lr for rate in rates if abs(rate.mean - best.mean) <= (best.std or 0.0)]
    return Cell(metric, rates, False, best, min(near), max(near), _edge(best.lr, {*grid, *by_rate}))


def _rate(lr: float, runs: Sequence[Run], metric: Metric, trim: Trim) -> Rate:
    counted = sorted(runs, key=lambda run: run.seed)[: trim.of]
    ranked = sorted(counted, key=lambda run: run.value(metric), reverse=metric == "test_accuracy")
    kept = ranked[: trim.best]
    values = [run.value(metric) for run in kept]
    return Rate(
        lr,
        mean=fmean(values),
        std=stdev(values) if len(values) > 1 else None,
        kept=len(kept),
        runs=len(runs),
        at_chance=all(run.at_chance for run in runs),
        stable=not any(run.at_chance for run in kept),
    )


def _best(rates: Sequence[Rate], metric: Metric) -> Rate:
    sign = -1 if metric == "test_accuracy" else 1

    def order(rate: Rate) -> tuple[float, float]:
        return sign * rate.mean, rate.lr

    first = min(rates, key=order)
    repeated = min((rate for rate in rates if rate.std is not None), key=order, default=first)
    alike = abs(first.mean - repeated.mean) <= 2 * (repeated.std or 0.0)
    return repeated if first.std is None and alike and repeated.stable else first


def _edge(lr: float, grid: set[float]) -> Literal["low", "high", "only"] | None:
    if len(grid) == 1:
        return "only"
    return "low" if lr == min(grid) else "high" if lr == max(grid) else None


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
            trial.id: WatchReport(_name(trial), tuple(store.measurements(trial.id)))
            for trial in store.watched()
        }


def _name(trial: Trial) -> str:
    config = trial.config
    scheme = config.convert or config.model.scheme
    return f"{config.model.name}, {scheme}, {config.data}, lr {rate_text(config.lr)}, seed {config.seed}"


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
    runs = [_run(trial) for trial in trials if trial.has_result]
    failures = sum(trial.state == "failed" for trial in trials)
    unfinished = len(trials) - len(runs) - failures
    rates = [trial.config.lr for trial in trials]
    for metric in METRICS:
        summary = summarize(runs, metric, trim, rates)
        yield CellResult(_shared(trials[0]), summary, len(trials), unfinished, failures)


def _run(trial: Trial) -> Run:
    accuracy = loss = None
    if trial.state == "finished" and trial.last:
        accuracy, loss = trial.last.test_accuracy, trial.last.train_loss
    assert trial.classes is not None, "a trial with a result has been started"
    return Run(trial.config.lr, trial.config.seed, trial.classes, accuracy, loss)


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
    elapsed = ((now or datetime.now(UTC)) - datetime.fromisoformat(meta["session_started"])).total_seconds()
    recent = done - meta["session_epochs"]
    known = writer and recent > 0 and elapsed > 0  # a clock can be set back
    left = (total - done) * elapsed / recent if known else None
    return Progress(
        counts, done, total, left, writer, tuple(store.trials("running")), store.failure_reasons()
    )
