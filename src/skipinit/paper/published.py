"""The numbers of Tables 1 to 7, read from `exhibits.toml`, what each table and figure trains, and the one
form that published and measured numbers share.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Literal

from ..errors import ConfigError, unknown_name
from ..sweeping.results import Cell, Metric


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


Axis = Literal["depth", "batch_size"]


RATE_GRID = tuple(2.0**exponent for exponent in range(-10, 3))
"""The rates that a failed cell failed at (caption of Table 1)."""


@dataclass(frozen=True)
class TunedCell:
    """Mean and standard deviation of the best runs at the best rate, and that rate's error bar."""

    value: float
    spread: float
    rate: int
    """Rates are exponents of 2."""
    rate_low: int
    rate_high: int

    def outcome(self, metric: Metric) -> Outcome:
        """The cell as claims read it."""
        rate = BestRate(2.0**self.rate, 2.0**self.rate_low, 2.0**self.rate_high)
        return Outcome(metric, self.value, self.spread, rate)


@dataclass(frozen=True)
class SingleRunCell:
    """The accuracies of the one run at the best rate, which is not published."""

    top1: float
    top5: float

    def outcome(self, metric: Metric) -> Outcome:
        """The cell as claims read it: by its top-1 accuracy."""
        return Outcome(metric, self.top1)


@dataclass(frozen=True)
class FailedCell:
    """A dash: at chance at every rate of the grid."""

    def outcome(self, metric: Metric) -> Outcome:
        """The cell as claims read it."""
        return Outcome(metric, None, tried=RATE_GRID)


PublishedCell = TunedCell | SingleRunCell | FailedCell


@dataclass(frozen=True)
class Exhibit:
    """One table, or the sweep behind one figure: what is trained, how, and the numbers if printed."""

    name: str
    title: str
    section: str
    network: str
    """`{depth}` stands for the depth where that is the axis."""
    data: str
    epochs: int
    axis: Axis
    metric: Metric
    best: int
    """Runs that count, of `of` at each rate."""
    of: int
    methods: tuple[str, ...]
    batch_size: int | None = None
    """None: it is the axis."""
    ghost_batch: int | None = None
    """None: batch statistics are those of the whole batch."""
    cells: Mapping[tuple[str, int], PublishedCell] = field(default_factory=dict)
    """By method and depth or batch size; none in a figure."""

    @property
    def label(self) -> str:
        """`Table 1`, `Figure 3 (accuracy)`."""
        number, _, part = self.name.removeprefix("table").removeprefix("figure").partition("-")
        kind = "Table" if self.name.startswith("table") else "Figure"
        return f"{kind} {number} ({part})" if part else f"{kind} {number}"

    @property
    def decimals(self) -> int:
        """Decimals that the paper prints; a spread of zero means less than half of the last one."""
        return 1 if self.metric == "test_accuracy" else 3

    def cell(self, method: str, at: int) -> PublishedCell:
        """The published cell of a method at a depth or batch size."""
        if method not in self.methods:
            raise unknown_name(f"method of {self.label}", method, self.methods)
        if (method, at) not in self.cells:
            known = ", ".join(str(there) for name, there in self.cells if name == method)
            hint = f"there are {known}" if known else "the paper prints no numbers of it"
            raise ConfigError(f"{self.label}: {self.axis} {at} is not published; {hint}")
        return self.cells[method, at]


@cache
def exhibits() -> Mapping[str, Exhibit]:
    """Every table and sweep of the paper by name."""
    text = files(__package__).joinpath("exhibits.toml").read_text(encoding="utf-8")
    return MappingProxyType({name: _exhibit(name, facts) for name, facts in tomllib.loads(text).items()})


def find_exhibit(name: str) -> Exhibit:
    """The table or sweep of that name."""
    if name not in exhibits():
        raise unknown_name("table or figure", name, exhibits())
    return exhibits()[name]


def published_measurements() -> Measurements:
    """The paper's own numbers as if they had been measured here."""
    return Measurements(
        {
            Address(exhibit.name, method, at): cell.outcome(exhibit.metric)
            for exhibit in exhibits().values()
            for (method, at), cell in exhibit.cells.items()
        }
    )


def _exhibit(name: str, facts: dict[str, Any]) -> Exhibit:
    columns = facts.pop("cells", {})
    methods = facts.pop("methods", columns)
    cells = {
        (method, int(at)): _cell(numbers)
        for method, column in columns.items()
        for at, numbers in column.items()
    }
    return Exhibit(name=name, methods=tuple(methods), cells=MappingProxyType(cells), **facts)


def _cell(numbers: list[Any] | str) -> PublishedCell:
    if numbers == "failed":
        return FailedCell()
    return SingleRunCell(*numbers) if len(numbers) == 2 else TunedCell(*numbers)
