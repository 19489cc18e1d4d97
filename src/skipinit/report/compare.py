"""One cell, published against measured, in words and in units of the paper's spread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..paper.collect import MeasuredCell
from ..paper.measured import Outcome
from ..paper.published import Exhibit

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
