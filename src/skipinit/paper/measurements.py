"""Results of the cells of tables and figures, published or measured, and the sets that decide claims."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..notation import rate_text, rates_text
from ..sweeping.summary import Cell, Metric


class Place(NamedTuple):
    """Where a result stands: in which table or figure, under which method, at which depth or batch size."""

    exhibit: str
    method: str
    at: int
    metric: Metric = "test_accuracy"


@dataclass(frozen=True)
class BestRate:
    """The rate that served a cell best, and its error bar."""

    lr: float
    low: float
    high: float
    at_edge: bool = False
    """Whether it is an end of its grid: the optimum may lie outside."""

    def __str__(self) -> str:
        return rate_text(self.lr)


@dataclass(frozen=True)
class Result:
    """One cell at its best rate."""

    metric: Metric
    value: float | None
    """None: failed, at chance at every rate tried."""
    spread: float | None = None
    rate: BestRate | None = None
    """None where the cell failed or the paper does not say."""
    tried: tuple[float, ...] = ()
    trained: tuple[float, ...] = ()
    """Of the rates tried, those that left chance behind."""
    reservation: str = ""
    """Why it only says who trains and who fails, not how well or at which rate best; empty where it does."""
    top5: float | None = None
    """Top-5 accuracy, which the paper prints beside the top-1 accuracy of ImageNet."""

    @property
    def failed(self) -> bool:
        """The paper's dash."""
        return self.value is None

    @property
    def score(self) -> float:
        """Larger is better: the accuracy, or minus the loss; nothing is worse than a failure."""
        if self.value is None:
            return -math.inf
        return self.value if self.metric == "test_accuracy" else -self.value

    def __str__(self) -> str:
        if self.value is None:
            return f"failed at {rates_text(self.tried)}"
        digits = decimals(self.metric)
        spread = "" if self.spread is None else f" ± {self.spread:.{digits}f}"
        return f"{self.value:.{digits}f}{spread}"

    @classmethod
    def of_cell(cls, cell: Cell, unfinished: int = 0, reservation: str = "") -> Result | None:
        """The result of a sweep's cell; None where it has none yet, `unfinished` trials being still to come.

        While trials are unfinished, a cell that is at chance so far has not failed.
        """
        tried = tuple(rate.lr for rate in cell.rates)
        if cell.best is None:
            failed = cell.failed and not unfinished
            return cls(cell.metric, None, tried=tried, reservation=reservation) if failed else None
        assert cell.lr_low is not None, "a best rate has an error bar"
        assert cell.lr_high is not None, "a best rate has an error bar"
        rate = BestRate(cell.best.lr, cell.lr_low, cell.lr_high, cell.edge is not None)
        trained = tuple(rate.lr for rate in cell.rates if not rate.at_chance)
        return cls(cell.metric, cell.best.mean, cell.best.std, rate, tried, trained, reservation)


def decimals(metric: Metric) -> int:
    """Decimals that the paper prints; a spread of zero means less than half of the last one."""
    return 1 if metric == "test_accuracy" else 3


BlockRows = Sequence[Mapping[str, float | None]]
"""One row per residual block of a network at initialization, with the names of the probe's columns."""


@dataclass(frozen=True)
class MeasurementSet:
    """What a claim is checked against: results of training, and networks at initialization by figure."""

    results: Mapping[Place, Result] = field(default_factory=dict)
    rows: Mapping[str, BlockRows] = field(default_factory=dict)

    def series(self, exhibit: str, method: str, metric: Metric) -> dict[int, Result]:
        """The results of one method by depth or batch size, smallest first."""
        wanted = exhibit, method, metric
        found = {
            p.at: result for p, result in self.results.items() if (p.exhibit, p.method, p.metric) == wanted
        }
        return dict(sorted(found.items()))
