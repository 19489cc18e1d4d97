"""A store's trials as rows: one per trial, and one per cell and metric."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .grid import flatten
from .records import Trial
from .statistics import METRICS, Cell, Metric, Run, Trim, summarize
from .store import open_store

Row = dict[str, Any]

# Not `lr`, which the last epoch's schedule has lowered: the trial's own is what names it.
_MEASURED = ("epoch", "train_loss", "clean_train_loss", "test_accuracy", "test_loss", "images_per_second")


@dataclass(frozen=True)
class CellResult:
    """A cell of the sweep: what its trials share, what they gave, and how many still owe a result."""

    shared: Row
    """The config by the names of its axes, without `lr` and `seed`."""
    summary: Cell
    trials: int
    unfinished: int
    failures: int
    """Trials that raised: they have no result."""


def results(folder: str | Path, *, best: int | None = None, of: int | None = None) -> dict[str, list[Row]]:
    """The results of a sweep as rows: `trials`, and `cells` (all but rate and seed) for each metric.

    Args:
        folder: of the sweep.
        best: average the best `best` of `of` runs; the paper's 5 of 7, or 12 of 15, where not given.
        of: runs that count, lowest seeds first.
    """
    if (best is None) != (of is None):
        raise ConfigError("best and of belong together, as in the best 5 of 7")
    trim = Trim(best, of) if best is not None and of is not None else None
    with open_store(Path(folder)) as store:
        trials = store.trials()
    return {
        "trials": [trial_row(trial) for trial in trials],
        "cells": [cell_row(cell) for cell in cells(trials, trim)],
    }


def cells(trials: Iterable[Trial], trim: Trim | None = None) -> list[CellResult]:
    """Every cell and metric, in the order of the trials; `trim` is the paper's where it is not given."""
    groups: defaultdict[tuple[object, ...], list[Trial]] = defaultdict(list)
    everything = list(trials)
    for trial in everything:
        groups[_cell_key(trial)].append(trial)
    trim = trim or Trim.of_paper(len({trial.config.seed for trial in everything}))
    return [_cell(group, trim, metric) for group in groups.values() for metric in METRICS]


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
    """One cell and metric, flat but for `rates`, which holds a row per learning rate."""
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
    """Those of `names` that tell rows apart."""
    return [name for name in names if len({row[name] for row in rows}) > 1]


def _cell_key(trial: Trial) -> tuple[object, ...]:
    flat = flatten(trial.config)
    return tuple(value for name, value in flat.items() if name not in ("lr", "seed"))


def _cell(trials: Sequence[Trial], trim: Trim, metric: Metric) -> CellResult:
    shared = {k: v for k, v in flatten(trials[0].config).items() if k not in ("lr", "seed")}
    runs = [_run(trial) for trial in trials if trial.has_result]
    failures = sum(trial.state == "failed" for trial in trials)
    summary = summarize(runs, metric, trim, (trial.config.lr for trial in trials))
    return CellResult(shared, summary, len(trials), len(trials) - len(runs) - failures, failures)


def _run(trial: Trial) -> Run:
    accuracy = loss = None
    if trial.state == "finished" and trial.last:
        accuracy, loss = trial.last.test_accuracy, trial.last.train_loss
    assert trial.classes is not None, "a trial with a result has been started"
    return Run(trial.config.lr, trial.config.seed, trial.classes, accuracy, loss)
