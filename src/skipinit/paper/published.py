"""The numbers of Tables 1 to 7, read from `exhibits.toml`, and what each table and figure trains."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Literal

from ..errors import ConfigError, unknown_name
from ..sweeping.statistics import Metric
from .measured import Address, BestRate, Measurements, Outcome

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
