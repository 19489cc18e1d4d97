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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from ..errors import ConfigError
from ..notation import check_value

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
        best = check_value("best", best, int | None, ", 1 or more")
        of = check_value("of", of, int | None, ", 1 or more")
        if (best is None) != (of is None):
            raise ConfigError("best and of belong together, as in the best 5 of 7")
        return None if best is None or of is None else cls(best, of)

    @classmethod
    def of_paper(cls, seeds: int) -> Trim:
        """12 of 15 (the figures) if there are 15 seeds, otherwise 5 of 7 (the tables)."""
        return cls(12, 15) if seeds >= 15 else cls(5, 7)


@dataclass(frozen=True)
class TrialResult:
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


def summarize(runs: Iterable[TrialResult], metric: Metric, trim: Trim, grid: Iterable[float] = ()) -> Cell:
    """The cell of these runs; `grid` has all rates asked for, also those without a result yet."""
    by_rate: defaultdict[float, list[TrialResult]] = defaultdict(list)
    for run in runs:
        by_rate[run.lr].append(run)
    rates = tuple(_rate(lr, by_rate[lr], metric, trim) for lr in sorted(by_rate))
    failed = bool(rates) and all(rate.at_chance for rate in rates)
    if failed or not rates:
        return Cell(metric, rates, failed, None, None, None, None)
    best = _best(rates, metric)
    near = [rate.lr for rate in rates if abs(rate.mean - best.mean) <= (best.std or 0.0)]
    return Cell(metric, rates, False, best, min(near), max(near), _edge(best.lr, {*grid, *by_rate}))


def _rate(lr: float, runs: Sequence[TrialResult], metric: Metric, trim: Trim) -> Rate:
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
