"""What a claim is: a statement of the paper, the rules that decide it, and what they find.

The rules here are those over networks at initialization: rows of named numbers, mostly one per residual
block. The paper measures one set of random weights, so a law is judged over all blocks together.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, linear_regression
from typing import Literal

from ...sweeping.summary import Metric
from ..exhibits import Place, Result

ClaimState = Literal["does not hold", "holds", "not decided yet"]


@dataclass(frozen=True)
class Finding:
    """Whether a claim holds in measurements, and the numbers that show it, in words."""

    state: ClaimState
    words: str
    where: str = ""
    """The table or figure that the numbers are of; empty where the words say it."""


def decided(holds: bool, words: str) -> Finding:
    """The finding about something measured."""
    return Finding("holds" if holds else "does not hold", words)


def missing(*needs: str) -> Finding:
    """The finding about something that is still to be measured; its table or figure may stand before it."""
    *where, what = needs
    return Finding("not decided yet", what, *where)


def all_of(findings: Iterable[Finding]) -> Finding:
    """One contradiction refutes, whatever is missing; otherwise what is missing leaves it open.

    What is as the paper says stands apart from what contradicts or is missing.
    """
    by_state: defaultdict[ClaimState, list[tuple[str, str]]] = defaultdict(list)
    for each in findings:
        by_state[each.state].append((each.where, each.words))
    agreeing = by_state["holds"]
    apart = f". As the paper says: {by_place(agreeing)}" if agreeing else ""
    if against := by_state["does not hold"]:
        return Finding("does not hold", by_place(against) + apart)
    if gone := by_state["not decided yet"]:
        return Finding("not decided yet", f"missing: {by_place(gone)}{apart}")
    return Finding("holds", by_place(agreeing))


def by_place(sayings: Iterable[tuple[str, str]]) -> str:
    """What is said of each place, the place once before it: `Table 1: this; that; Table 3: this`."""
    said: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for where, words in sayings:
        said[where][words] = None
    return "; ".join((f"{where}: " if where else "") + "; ".join(words) for where, words in said.items())


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


@dataclass(frozen=True)
class Rule:
    """How measurements decide."""

    exhibit: str
    """The table, figure or probe it reads."""
    needs: tuple[str, str]
    """What must be measured: the table or figure, and what of it."""
    criterion: str
    """The condition, with our reading of words like `similar`."""
    judge: Callable[[MeasurementSet], Sequence[Finding]]
    """One finding or several, all of which must hold."""
    where: str
    """The table or figure of the criterion, and its depths or batch sizes, if it has any."""


@dataclass(frozen=True)
class Claim:
    """One statement of the paper that measurements can contradict."""

    section: str
    statement: str
    """In our words; it can be read alone."""
    rules: tuple[Rule, ...]
    """It holds if all of them do."""

    @property
    def exhibits(self) -> tuple[str, ...]:
        """The tables, figures and probes to measure."""
        return tuple(dict.fromkeys(rule.exhibit for rule in self.rules))

    @property
    def needs(self) -> str:
        """What must be measured to decide it."""
        return by_place(rule.needs for rule in self.rules)

    @property
    def criterion(self) -> str:
        """What must be so for it to hold."""
        return by_place((rule.where, rule.criterion) for rule in self.rules)

    def check(self, measurements: MeasurementSet) -> Finding:
        """Whether it holds in these measurements."""
        return all_of(finding for rule in self.rules for finding in rule.judge(measurements))


def claim(section: str, statement: str, *rules: Rule) -> Claim:
    """A claim that holds if all the rules do."""
    return Claim(section, statement, rules)


Law = Callable[[float], float]
"""What a quantity of block ℓ should be."""

APPROXIMATELY = 0.1
"""The largest mean relative deviation over the blocks that counts as `approximately equal`: twice what the
squared moving means of a single network, the paper's, scatter by."""
FEWEST_BLOCKS = 10
"""Rows that a law is judged over, at least."""


def _over_rows(
    figure: str,
    columns: tuple[str, ...],
    criterion: str,
    decide: Callable[..., Finding],
    fewest: int = FEWEST_BLOCKS,
) -> Rule:
    """`decide` gets the depths and the columns."""
    where = f"Figure {figure.removeprefix('figure')}" if figure.startswith("figure") else figure
    needs = where, f"{', '.join(columns)} in {fewest} row{'s' * (fewest > 1)} or more"

    def judge(measurements: MeasurementSet) -> list[Finding]:
        rows, names = measurements.rows.get(figure, ()), ("depth", *columns)
        if len(rows) < fewest or any(row.get(name) is None for row in rows for name in names):
            return [missing(*needs)]
        return [replace(decide(*([row[name] for row in rows] for name in names)), where=where)]

    return Rule(figure, needs, criterion, judge, where)


def follows(figure: str, column: str, law: Law, formula: str) -> Rule:
    """The column is approximately the law of the depth ℓ."""

    def decide(depths: list[float], measured: list[float]) -> Finding:
        return _close(f"{column} against {formula}", measured, [law(depth) for depth in depths])

    criterion = f"{column} = {formula} within {APPROXIMATELY:.0%} on average"
    return _over_rows(figure, (column,), criterion, decide)


def equals(figure: str, column: str, other: str) -> Rule:
    """Two columns are approximately equal."""

    def decide(_: list[float], measured: list[float], reference: list[float]) -> Finding:
        return _close(f"{column} against {other}", measured, reference)

    criterion = f"{column} = {other} within {APPROXIMATELY:.0%} on average"
    return _over_rows(figure, (column, other), criterion, decide)


def _close(what: str, measured: list[float], expected: list[float]) -> Finding:
    deviations = [abs(value / reference - 1) for value, reference in zip(measured, expected, strict=True)]
    words = f"{what}: off by {fmean(deviations):.1%} on average and {max(deviations):.1%} at most"
    return decided(fmean(deviations) <= APPROXIMATELY, f"{words}, {len(deviations)} blocks")


def proportional(figure: str, column: str, low: float = 0.0, high: float = math.inf) -> Rule:
    """The column is c ℓ^p with p near 1 and low ≤ c < high."""

    def decide(depths: list[float], measured: list[float]) -> Finding:
        if min(measured) <= 0:
            return decided(False, f"{column} is not positive everywhere")
        power = linear_regression(list(map(math.log, depths)), list(map(math.log, measured))).slope
        coefficient = fmean(value / depth for value, depth in zip(measured, depths, strict=True))
        holds = abs(power - 1) <= APPROXIMATELY and low <= coefficient < high
        return decided(holds, f"{column} ∝ ℓ^{power:.2f}, and {coefficient:.2f} ℓ on average")

    limits = "" if high == math.inf else f", {low:g} ≤ {column} / ℓ < {high:g} on average"
    return _over_rows(figure, (column,), f"{column} ∝ ℓ^p with |p - 1| ≤ {APPROXIMATELY:g}{limits}", decide)


def below(figure: str, column: str, other: str, ratio: float = 1.0, fewest: int = FEWEST_BLOCKS) -> Rule:
    """The column is less than `ratio` times the other in every row."""

    def decide(_: list[float], smaller: list[float], larger: list[float]) -> Finding:
        ratios = [one / two for one, two in zip(smaller, larger, strict=True)]
        words = f"{column} / {other} is {fmean(ratios):.3g} on average, {max(ratios):.3g} at most"
        return decided(max(ratios) < ratio, words)

    criterion = f"{column} < {'' if ratio == 1 else f'{ratio:g} × '}{other} in every row"
    return _over_rows(figure, (column, other), criterion, decide, fewest)
