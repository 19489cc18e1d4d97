"""What training gave, cell by cell, in the one form that published and measured numbers share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..sweeping.statistics import Cell, Metric


@dataclass(frozen=True)
class Address:
    """Where a cell stands: in which table or figure, under which method, at which depth or batch size."""

    exhibit: str
    method: str
    at: int


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
class Outcome:
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
        digits = 1 if self.metric == "test_accuracy" else 3
        spread = "" if self.spread is None else f" ± {self.spread:.{digits}f}"
        return f"{self.value:.{digits}f}{spread}"

    @classmethod
    def of_cell(cls, cell: Cell, unfinished: int = 0, reservation: str = "") -> Outcome | None:
        """The outcome of a sweep's cell; None where it has none yet, `unfinished` trials being still to come.

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


Row = Mapping[str, float | None]


@dataclass(frozen=True)
class Measurements:
    """All that claims are checked against: cells of training, and rows of networks at initialization."""

    cells: Mapping[Address, Outcome] = field(default_factory=dict)
    rows: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    """By figure: one row per residual block, with the names of the probe's columns."""

    def series(self, exhibit: str, method: str) -> dict[int, Outcome]:
        """The cells of one method by depth or batch size, smallest first."""
        found = {
            address.at: outcome
            for address, outcome in self.cells.items()
            if (address.exhibit, address.method) == (exhibit, method)
        }
        return dict(sorted(found.items()))


def rate_text(lr: float) -> str:
    """A rate as the paper writes it: a power of two where it is one."""
    if lr == 0:
        return "no rate"
    exponent = math.log2(lr)
    return f"2^{exponent:.0f}" if exponent.is_integer() else f"{lr:g}"


def rates_text(rates: Sequence[float]) -> str:
    """Several rates in few words."""
    if len(rates) < 2:
        return f"rate {', '.join(map(rate_text, rates))}" if rates else "rates not known"
    return f"{len(rates)} rates from {rate_text(min(rates))} to {rate_text(max(rates))}"
