"""From runs to a cell: best k of n, the best rate and its error bar, what failed, what lies at the edge.

A cell is everything about a trial except its learning rate and seed. The rules are the paper's (sections 2.2
and 4, appendix B), and where it is silent these:

- At every rate the runs with the `of` smallest seeds count and the best `best` of them are kept. With
  fewer runs than `of` still at most `best` are kept: fewer runs drop fewer, and `kept`, `runs` say so.
- A run that went non-finite counts as chance: accuracy 100 / classes, loss ln(classes).
- A run is at chance up to 1.5 times chance accuracy, by which no luck of an untrained network goes (for
  10,000 test images and 100 classes that is 5 standard deviations). A cell failed if all its runs are.
- Equal means: the smaller rate is the best. Without a standard deviation (one run) only equal means are
  within the error bar. The bar is a span: rates between its ends may lie outside of one deviation.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from ..errors import ConfigError

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
    def of_paper(cls, seeds: int) -> Trim:
        """12 of 15 (the figures) where there are seeds enough, else 5 of 7 (the tables)."""
        return cls(12, 15) if seeds >= 15 else cls(5, 7)


@dataclass(frozen=True)
class Run:
    """The result of one trial; a metric is None where the run went non-finite."""

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
        """The metric as it counts."""
        if metric == "test_accuracy":
            return 100 / self.classes if self.test_accuracy is None else self.test_accuracy
        return math.log(self.classes) if self.train_loss is None else self.train_loss


@dataclass(frozen=True)
class Rate:
    """One learning rate of a cell."""

    lr: float
    mean: float
    std: float | None
    """With ddof 1; None where only one run is kept."""
    kept: int
    runs: int
    """Results there are at this rate; `kept` of them count."""
    at_chance: bool


@dataclass(frozen=True)
class Cell:
    """One metric of a cell over its grid of rates."""

    metric: Metric
    rates: tuple[Rate, ...]
    failed: bool
    """At chance for every rate: the paper's dash."""
    best: Rate | None
    """None where nothing has a result yet, or the cell failed."""
    lr_low: float | None
    lr_high: float | None
    """The span of rates whose mean is within one standard deviation of the best."""
    edge: Literal["low", "high", "only"] | None
    """Where the best rate is an end of the grid, or all of it: the optimum may lie outside."""


def summarize(runs: Iterable[Run], metric: Metric, trim: Trim, grid: Iterable[float] = ()) -> Cell:
    """The cell of these runs; `grid` names rates asked for that may have no result yet."""
    by_rate: defaultdict[float, list[Run]] = defaultdict(list)
    for run in runs:
        by_rate[run.lr].append(run)
    rates = tuple(_rate(lr, by_rate[lr], metric, trim) for lr in sorted(by_rate))
    failed = bool(rates) and all(rate.at_chance for rate in rates)
    if failed or not rates:
        return Cell(metric, rates, failed, None, None, None, None)
    sign = -1 if metric == "test_accuracy" else 1
    best = min(rates, key=lambda rate: (sign * rate.mean, rate.lr))
    near = [rate.lr for rate in rates if abs(rate.mean - best.mean) <= (best.std or 0.0)]
    return Cell(metric, rates, False, best, min(near), max(near), _edge(best.lr, {*grid, *by_rate}))


def _rate(lr: float, runs: Sequence[Run], metric: Metric, trim: Trim) -> Rate:
    counted = sorted(runs, key=lambda run: run.seed)[: trim.of]
    values = sorted((run.value(metric) for run in counted), reverse=metric == "test_accuracy")[: trim.best]
    std = stdev(values) if len(values) > 1 else None
    return Rate(lr, fmean(values), std, len(values), len(runs), all(run.at_chance for run in runs))


def _edge(lr: float, grid: set[float]) -> Literal["low", "high", "only"] | None:
    if len(grid) == 1:
        return "only"
    return "low" if lr == min(grid) else "high" if lr == max(grid) else None
