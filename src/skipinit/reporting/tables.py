"""A table of the paper beside what was measured, as plain rows for the page and the terminal; each cell's
distance in words and in units of the spread, the paper's and the measured one together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..notation import rate_text
from ..paper.cells import ExhibitCell
from ..paper.claims.points import FEWEST_RATES
from ..paper.exhibits import METHODS, Exhibit, Result, decimals
from ..sweeping.summary import Metric

Agreement = Literal["agrees", "differs", "open"]

FAR = 2.0
"""Spreads from which a number of the paper's own protocol counts as different."""
_FAILS = "fails"
_AT_CHANCE = "at chance"
"""A failure after too few epochs to say that it would not learn later."""


@dataclass(frozen=True)
class Comparison:
    """How a measured cell compares with the published one."""

    agreement: Agreement
    """On the number if both train, otherwise on who trains and who fails."""
    training: Agreement
    """On who trains and who fails alone."""
    words: str


def compare(published: Result | None, cell: ExhibitCell, metric: Metric) -> Comparison:
    """Who trains and who fails can be compared whatever the data and the epochs.

    A network that is at chance after a training too short to say that it fails is open. Any network fails at
    some rate: a failure that the paper does not have counts only at its best rate, in proportion to the batch
    size, or at `FEWEST_RATES` rates or more. A number agrees or differs only where everything is as in the
    paper's protocol; it is open otherwise.
    """
    measured = cell.results.get(metric)
    if published is None or measured is None:
        return Comparison("open", "open", "unfinished" if published else "not in the paper")
    if not cell.preset.decides:
        return Comparison("open", "open", f"{_does(measured)}; the preset decides nothing")
    if measured.failed or published.failed:
        here, there = _does(measured), _does(published)
        if here == _AT_CHANCE:
            return Comparison("open", "open", f"{here} {measured.reservation}; in the paper it {there}")
        if here == there:
            return Comparison("agrees", "agrees", f"{here}, as in the paper")
        enough = len(measured.tried) >= FEWEST_RATES or _tried_best(published, measured, cell)
        if measured.failed and not enough:
            return Comparison("open", "open", f"{measured}; too few rates to say")
        return Comparison("differs", "differs", f"{here}; in the paper it {there}")
    agreement, words = _compare_numbers(published, measured, cell)
    return Comparison(agreement, "agrees", words)


def _does(result: Result) -> str:
    if not result.failed:
        return "trains"
    return _AT_CHANCE if result.too_short and not result.failing else _FAILS


def _tried_best(published: Result, measured: Result, cell: ExhibitCell) -> bool:
    """Whether a rate within the error bar of the paper's best one was tried."""
    scale = cell.config.batch_size / (cell.exhibit.batch_size or cell.at)
    best = published.rate
    return best is not None and any(best.low * scale <= lr <= best.high * scale for lr in measured.tried)


def _compare_numbers(published: Result, measured: Result, cell: ExhibitCell) -> tuple[Agreement, str]:
    if cell.config.data != cell.exhibit.data:
        return "open", f"trains, as in the paper; {cell.config.data} in place of {cell.exhibit.data}"
    assert measured.value is not None, "it has not failed"
    assert published.value is not None, "it has not failed"
    digits = decimals(published.metric)
    difference = measured.value - published.value
    rounded = round(difference, digits) + 0.0  # +0.0 in place of -0.0
    words = f"{rounded:+.{digits}f}{' points' * (published.metric == 'test_accuracy')}"
    if cell.departures:
        return "open", f"{words}, {', '.join(cell.departures)}"
    if published.spread is None:
        return "open", f"{words}; the paper gives no spread"
    if published.rate and not _tried_best(published, measured, cell):
        return "open", f"{words}; the paper's best rate, {published.rate}, was not tried"
    # A printed zero is less than half of the last decimal.
    least = 0.5 * 10.0**-digits
    if published.spread < least and abs(difference) <= least:
        return "agrees", f"{words}, equal in the printed decimals"
    theirs = max(published.spread, least)
    # One run shows no spread, yet it scatters: as the paper's runs do, for want of anything better.
    spread = math.hypot(theirs, theirs if measured.spread is None else measured.spread)
    # Rounded, because 93.3 - 93.1 must not miss two spreads of 0.1 by the last bit.
    spreads = round(abs(difference) / spread, 9)
    shown = f"{spreads:.1f}"
    if spreads > FAR and float(shown) <= FAR:
        shown = f"just over {FAR:.1f}"
    words = f"{words}, {'at least ' * (published.spread < least)}{shown} spreads"
    return "agrees" if spreads <= FAR else "differs", words


@dataclass(frozen=True)
class TableRow:
    """One row: a method at one depth or batch size."""

    method: str
    at: int
    paper: str
    measured: str
    comparison: Comparison
    paper_rate: str
    measured_rate: str
    runs: str


@dataclass(frozen=True)
class ResultTable:
    """One metric of a table or figure under one set of measurements."""

    exhibit: Exhibit
    metric: Metric
    label: str
    """Of the set of measurements."""
    conditions: str
    """Data, network, epochs and precision."""
    groups: Mapping[str, tuple[TableRow, ...]]
    """By the label of the method."""

    @property
    def title(self) -> str:
        """The set of measurements, after the metric where the exhibit has two."""
        metric = {"test_accuracy": "Test accuracy", "train_loss": "Training loss"}[self.metric]
        return f"{metric}, preset {self.label}" if len(self.exhibit.metrics) > 1 else f"Preset {self.label}"

    @property
    def id(self) -> str:
        """Its name within a page."""
        return re.sub(r"\W+", "-", f"{self.exhibit.name} {self.metric} {self.label}").strip("-")

    @property
    def differing(self) -> list[TableRow]:
        """The cells that do not agree with the paper."""
        return [row for rows in self.groups.values() for row in rows if row.comparison.agreement == "differs"]

    @property
    def failed(self) -> list[str]:
        """Which methods failed where; a curve cannot show it."""
        places = {
            f"{label} {words}": ", ".join(str(row.at) for row in rows if row.measured == value)
            for label, rows in self.groups.items()
            for value, words in ((_FAILS, "fails"), (_AT_CHANCE, "is at chance"))
        }
        return [f"{words} at {at}" for words, at in places.items() if at]


def make_table(exhibit: Exhibit, metric: Metric, cells: Sequence[ExhibitCell]) -> ResultTable | None:
    """The exhibit's cells out of those of a set, and only them; None where nothing of it was measured."""
    mine = {(cell.method.name, cell.at): cell for cell in cells if cell.exhibit.name == exhibit.name}
    if not any(metric in cell.results for cell in mine.values()):
        return None
    methods = dict.fromkeys(method for method, _ in mine)
    groups = {METHODS[method].label: tuple(_rows(exhibit, metric, method, mine)) for method in methods}
    found = list(mine.values())
    printed = len(exhibit.cells.keys() & mine.keys())
    part = f"{printed} of {len(exhibit.cells)} cells · " if printed < len(exhibit.cells) else ""
    return ResultTable(exhibit, metric, found[0].label, f"{part}{conditions(exhibit, found)}", groups)


def _rows(
    exhibit: Exhibit, metric: Metric, method: str, mine: Mapping[tuple[str, int], ExhibitCell]
) -> Iterator[TableRow]:
    for at in sorted(at for name, at in mine if name == method):
        published, cell = exhibit.cells.get((method, at)), mine[method, at]
        found = cell.results.get(metric)
        yield TableRow(
            METHODS[method].label,
            at,
            _value(published) if published else "",
            _value(found) if found else "unfinished",
            compare(published, cell, metric),
            _rate(published),
            _rate(found),
            cell.runs(metric),
        )


def conditions(exhibit: Exhibit, cells: list[ExhibitCell]) -> str:
    """Data, network, epochs, batch size and precision of the cells, in words."""
    configs = [cell.config for cell in cells]
    epochs = sorted({config.epochs for config in configs})
    batches = sorted({config.batch_size for config in configs})
    words = [
        f"data {', '.join(sorted({config.data for config in configs}))}",
        _networks_text(exhibit, sorted({config.model.name for config in configs})),
        f"{_listed(epochs)} epoch{'s' * (epochs != [1])}",
        "" if exhibit.axis == "batch_size" else f"batch {_listed(batches)}",
        ", ".join(sorted({config.precision for config in configs})),
        "" if all(config.augment for config in configs) else "no augmentation",
        *_earlier(exhibit, cells),
    ]
    return " · ".join(word for word in words if word)


def _networks_text(exhibit: Exhibit, names: list[str]) -> str:
    """The width where rows have the depth; otherwise the network, and the paper's if it differs."""
    if exhibit.axis == "depth":
        return f"width {', '.join(sorted({name.partition('_')[2] for name in names}))}"
    return ", ".join(names) + ("" if names == [exhibit.network] else f" in place of {exhibit.network}")


def _earlier(exhibit: Exhibit, cells: list[ExhibitCell]) -> Iterator[str]:
    """Which cells have trials of an earlier protocol, and how that differs."""
    for words in sorted({cell.earlier for cell in cells if cell.earlier}):
        places = sorted({cell.at for cell in cells if cell.earlier == words})
        yield f"{words} at {exhibit.axis_name} {', '.join(map(str, places))}"


def _listed(numbers: list[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} or {last}" if most else last


def _value(result: Result) -> str:
    top5 = "" if result.top5 is None else f" (top-5 {result.top5})"
    return _does(result) if result.failed else f"{result}{top5}"


def _rate(result: Result | None) -> str:
    rate = result.rate if result else None
    if rate is None:
        return ""
    bar = "" if rate.low == rate.high else f" ({rate_text(rate.low)} to {rate_text(rate.high)})"
    tried = result.tried if result else ()
    edge = ", only rate" if len(tried) == 1 else ", end of grid" if rate.at_edge else ""
    return f"{rate}{bar}{edge}"
