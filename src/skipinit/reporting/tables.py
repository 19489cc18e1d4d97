"""A table of the paper beside what was measured, as plain rows for the page and the terminal; each cell's
distance in words and in units of the paper's spread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from ..paper.collect import MeasuredCell, MeasuredSet
from ..paper.published import Address, Exhibit, Outcome, SingleRunCell, rate_text
from ..paper.recipes import METHODS

Agreement = Literal["agrees", "differs", "open"]


FAR = 2.0
"""Spreads from which a number of the paper's own protocol counts as different."""


@dataclass(frozen=True)
class Comparison:
    """How a measured cell stands to the published one."""

    agreement: Agreement
    words: str


def compare(exhibit: Exhibit, published: Outcome | None, cell: MeasuredCell | None) -> Comparison:
    """Who trains and who fails is compared always, numbers where data and network are the paper's."""
    measured = cell.outcome if cell else None
    if published is None or cell is None or measured is None:
        return Comparison("open", "not measured" if published else "not in the paper")
    if measured.failed or published.failed:
        here, there = _does(measured), _does(published)
        if here == there:
            return Comparison("agrees", f"{here}, as in the paper")
        return Comparison("differs", f"{here}; in the paper it {there}")
    if cell.config.data != exhibit.data:
        return Comparison("agrees", "trains, as in the paper")
    assert measured.value is not None, "it has not failed"
    assert published.value is not None, "it has not failed"
    difference = measured.value - published.value
    words = f"{difference:+.{exhibit.decimals}f}"
    if published.spread is None:
        return Comparison("agrees", f"{words}; the paper gives no spread")
    # A printed zero is less than half of the last decimal.
    least = 0.5 * 10.0**-exhibit.decimals
    # Rounded, because 93.3 - 93.1 must not miss two spreads of 0.1 by the last bit.
    spreads = round(abs(difference) / max(published.spread, least), 9)
    words = f"{words}, {'at least ' * (published.spread < least)}{spreads:.1f} spreads"
    if cell.config.epochs != exhibit.epochs:
        return Comparison("agrees", f"{words}; {cell.config.epochs} of {exhibit.epochs} epochs")
    return Comparison("agrees" if spreads <= FAR else "differs", words)


def _does(outcome: Outcome) -> str:
    return "fails" if outcome.failed else "trains"


_FAILS = "fails"


@dataclass(frozen=True)
class Row:
    """One cell."""

    method: str
    at: int
    paper: str
    measured: str
    comparison: Comparison
    paper_rate: str
    measured_rate: str
    tried: str
    """The rates tried."""
    runs: str


@dataclass(frozen=True)
class Group:
    """The cells of one method."""

    label: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class ResultTable:
    """One exhibit under one set of measurements."""

    exhibit: Exhibit
    preset: str
    conditions: str
    """Data, network, epochs and precision: what a reader must know before comparing."""
    groups: tuple[Group, ...]

    @property
    def differing(self) -> list[Row]:
        """The cells that do not agree with the paper."""
        return [row for group in self.groups for row in group.rows if row.comparison.agreement == "differs"]

    @property
    def failed(self) -> list[str]:
        """Who failed where: what a curve cannot show."""
        places = {
            group.label: ", ".join(str(row.at) for row in group.rows if row.measured == _FAILS)
            for group in self.groups
        }
        return [f"{label} fails at {at}" for label, at in places.items() if at]


def make_table(exhibit: Exhibit, measured: MeasuredSet) -> ResultTable | None:
    """The exhibit's cells; None where nothing of it was measured."""
    mine = {a: cell for a, cell in measured.cells.items() if a.exhibit == exhibit.name}
    if not any(cell.outcome for cell in mine.values()):
        return None
    methods = dict.fromkeys((*exhibit.methods, *(address.method for address in mine)))
    groups = tuple(
        Group(METHODS[method].label, rows)
        for method in methods
        if (rows := tuple(_rows(exhibit, method, mine, measured.preset.decides)))
    )
    return ResultTable(exhibit, measured.label, conditions(exhibit, list(mine.values())), groups)


def _rows(exhibit: Exhibit, method: str, mine: dict[Address, MeasuredCell], decides: bool) -> Iterator[Row]:
    places = {at for name, at in exhibit.cells if name == method}
    places |= {address.at for address in mine if address.method == method}
    for at in sorted(places):
        published = exhibit.cells.get((method, at))
        cell = mine.get(Address(exhibit.name, method, at))
        told = published.outcome(exhibit.metric) if published else None
        found = cell.outcome if cell else None
        comparison = compare(exhibit, told, cell)
        yield Row(
            METHODS[method].label,
            at,
            f"{published.top1} / {published.top5}" if isinstance(published, SingleRunCell) else _value(told),
            _value(found) if cell else "",
            comparison if decides else replace(comparison, agreement="open"),
            _rate(told),
            _rate(found),
            _tried(cell) if cell else "",
            cell.runs if cell else "",
        )


def conditions(exhibit: Exhibit, cells: list[MeasuredCell]) -> str:
    """What the cells were trained on and for how long."""
    configs = [cell.config for cell in cells]
    epochs = sorted({config.epochs for config in configs})
    batches = sorted({config.batch_size for config in configs})
    networks = sorted(
        {config.model.name.partition("_")[2] for config in configs if "wrn" in config.model.name}
    )
    words = [
        f"data {', '.join(sorted({config.data for config in configs}))}",
        f"width {', '.join(networks)}" if networks else "",
        f"{_listed(epochs)} epoch{'s' * (epochs != [1])}",
        "" if exhibit.axis == "batch_size" else f"batch {_listed(batches)}",
        ", ".join(sorted({config.precision for config in configs})),
        "" if all(config.augment for config in configs) else "no augmentation",
    ]
    return " · ".join(word for word in words if word)


def _listed(numbers: list[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} or {last}" if most else last


def _value(outcome: Outcome | None) -> str:
    if outcome is None:
        return "unfinished"
    return _FAILS if outcome.failed else str(outcome)


def _rate(outcome: Outcome | None) -> str:
    rate = outcome.rate if outcome else None
    if rate is None:
        return ""
    bar = "" if rate.low == rate.high else f" ({rate_text(rate.low)} to {rate_text(rate.high)})"
    return f"{rate}{bar}{', end of grid' * rate.at_edge}"


def _tried(cell: MeasuredCell) -> str:
    rates = [rate_text(rate.lr) for rate in cell.result.summary.rates]
    return rates[0] if len(rates) == 1 else f"{rates[0]} to {rates[-1]}" if rates else ""
