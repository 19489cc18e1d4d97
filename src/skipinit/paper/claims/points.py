"""Rules that compare methods at one depth or batch size after the other.

A `Span` is for statements about all batch sizes in a range: those that were measured count. Where the paper
names depths or batch sizes, every one of them is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...sweeping.summary import Metric
from ..exhibits import EXHIBITS, BestRate, Exhibit, Result, told_apart
from ..presets import FEWEST_EPOCHS
from .claim import Finding, MeasurementSet, Rule, decided, missing

FEWEST_RATES = 3
"""A cell counts as failed only when it failed at this many rates: any network fails at one absurd rate."""
SIMILAR = 2.0
"""The factor within which losses and best rates are similar: of rates, one step of the paper's grid."""


@dataclass(frozen=True)
class Span:
    """Every batch size measured from `low` to `high`, which must be at least `fewest`."""

    low: int = 1
    high: int | None = None
    fewest: int = 1

    def __str__(self) -> str:
        count = f"{self.fewest} or more batch sizes" if self.fewest > 1 else "a batch size"
        return f"{count} {self.ends}"

    @property
    def ends(self) -> str:
        """`from 2 to 64`, or `from 2 up`."""
        return f"from {self.low} {'up' if self.high is None else f'to {self.high}'}"

    def __contains__(self, at: int) -> bool:
        return self.low <= at and (self.high is None or at <= self.high)


At = tuple[int, ...] | Span


@dataclass(frozen=True)
class Reading:
    """What a rule reads: methods of a table or figure, at depths or batch sizes, in one metric."""

    exhibit: Exhibit
    methods: tuple[str, ...]
    at: At
    metric: Metric

    @property
    def panel(self) -> str:
        """The table or figure, with the metric where there are two."""
        return self.exhibit.panel(self.metric)

    @property
    def needs(self) -> tuple[str, str]:
        """What must be measured: the table or figure, and what of it."""
        points = str(self.at) if isinstance(self.at, Span) else self._list(self.at)
        return self.panel, f"{', '.join(self.methods)} at {points}"

    @property
    def where(self) -> str:
        """The table or figure, and the depths or batch sizes, that a criterion is about."""
        if isinstance(self.at, Span):
            return f"{self.panel}, every batch size measured {self.at.ends}"
        return f"{self.panel}, {self._list(self.at)}"

    def _list(self, points: tuple[int, ...]) -> str:
        return f"{self.exhibit.axis_name} {', '.join(map(str, points))}"

    def series(self, measurements: MeasurementSet) -> dict[str, dict[int, Result]]:
        """What was measured of it, by method and depth or batch size."""
        name, metric = self.exhibit.name, self.metric
        found = {method: measurements.series(name, method, metric) for method in self.methods}
        return {method: {at: each[at] for at in each if at in self.at} for method, each in found.items()}

    def rule(self, criterion: str, judge: Callable[[MeasurementSet], Sequence[Finding]]) -> Rule:
        """The rule that reads it."""
        return Rule(self.exhibit.name, self.needs, criterion, judge, self.where)


def read(exhibit: str, methods: tuple[str, ...], at: At, metric: Metric | None) -> Reading:
    """A reading in the given metric, or in the first of the table or figure."""
    return Reading(EXHIBITS[exhibit], methods, at, metric or EXHIBITS[exhibit].metrics[0])


def still_open(results: Mapping[str, Result], how_well: bool = True) -> Finding | None:
    """What must be measured before these results decide, or None.

    `how_well`: the rule compares numbers or rates, not only whether a network trains.
    """
    for name, result in results.items():
        if result.failed and len(result.tried) < FEWEST_RATES:
            return missing(f"{name} at {FEWEST_RATES} rates or more; {result}")
        if result.failed and len(result.failing) < FEWEST_RATES:
            so_far = f"at chance, but finite ({result.reservation})"
            return missing(f"{name} for {FEWEST_EPOCHS} epochs or more; it is {so_far}")
        if result.reservation and how_well:
            return missing(f"a number of {name} to compare; {result} is {result.reservation}")
    return None


def _at_each(
    exhibit: str,
    methods: tuple[str, ...],
    at: At,
    criterion: str,
    compare: Callable[..., Finding],
    metric: Metric | None = None,
    how_well: bool = True,
) -> Rule:
    """`compare` gets the results of the methods, in their order, at each point."""
    reading = read(exhibit, methods, at, metric)

    def judge(measurements: MeasurementSet) -> list[Finding]:
        measured = reading.series(measurements)
        every = sorted(set.intersection(*map(set, measured.values())))  # what every method was measured at
        points = every if isinstance(at, Span) else at
        findings = [
            judge_at(point, {m: series[point] for m, series in measured.items() if point in series})
            for point in points
        ]
        if isinstance(at, Span) and len(points) < at.fewest:
            findings.append(missing(*reading.needs))
        return findings

    def judge_at(point: int, results: Mapping[str, Result]) -> Finding:
        if absent := tuple(method for method in methods if method not in results):
            return missing(*replace(reading, methods=absent, at=(point,)).needs)
        found = still_open(results, how_well) or compare(*results.values())
        words = f"{found.words} at {reading.exhibit.axis_name} {point}"
        reservations = dict.fromkeys(each.reservation for each in results.values() if each.reservation)
        if reservations and found.state != "not decided yet":
            words += f" ({', '.join(reservations)})"
        return Finding(found.state, words, reading.panel)

    return reading.rule(criterion, judge)


def _says_whether(trained: bool, exhibit: str, method: str, at: At, criterion: str) -> Rule:
    def compare(result: Result) -> Finding:
        return decided(result.failed != trained, f"{method} {result}")

    return _at_each(exhibit, (method,), at, criterion, compare, how_well=False)


def trains(exhibit: str, method: str, at: At) -> Rule:
    """The method is above chance at some rate."""
    return _says_whether(True, exhibit, method, at, f"{method} is above chance at some rate")


def fails(exhibit: str, method: str, at: At) -> Rule:
    """The method is at chance at every rate, and was trained long enough to say so."""
    criterion = (
        f"{method} is at chance at every rate tried, at {FEWEST_RATES} or more of them not finite or after "
        f"{FEWEST_EPOCHS} epochs or more"
    )
    return _says_whether(False, exhibit, method, at, criterion)


def leads(
    exhibit: str,
    first: str,
    second: str,
    at: At,
    over: float = 0.0,
    up_to: float | None = None,
    metric: Metric | None = None,
) -> Rule:
    """over < lead ≤ up_to, the lead being in points of accuracy, or how much lower the loss is."""

    def compare(one: Result, other: Result) -> Finding:
        # Rounded, because 75.0 - 74.5 must not miss a bound of 0.5 by the last bit; two failures lead by NaN.
        lead = round(one.score - other.score, 9)
        within = lead > over and (up_to is None or lead <= up_to)
        return decided(within, _against(first, one, second, other))

    of_loss = (metric or EXHIBITS[exhibit].metrics[0]) == "train_loss"
    criterion = _lead_text(first, second, over, up_to, "lower loss" if of_loss else "higher accuracy")
    return _at_each(exhibit, (first, second), at, criterion, compare, metric)


def _against(first: str, one: Result, second: str, other: Result) -> str:
    mine, others = told_apart((one, other))
    return f"{first} {mine} against {second} {others}"


def _lead_text(first: str, second: str, over: float, up_to: float | None, better: str) -> str:
    if over < 0:
        limit = "" if up_to is None else f" and at most {up_to:g} points ahead"
        return f"{first} is less than {-over:g} points behind {second}{limit}"
    limit = "" if up_to is None else f", by at most {up_to:g} points"
    more = f"more than {over:g} points " if over else ""
    return f"{first} has a {more}{better} than {second}{limit}"


def similar_losses(exhibit: str, first: str, second: str, at: At) -> Rule:
    """The larger loss is at most `SIMILAR` times the smaller."""

    def compare(one: Result, other: Result) -> Finding:
        worst, best = sorted((one.score, other.score))
        return decided(worst >= SIMILAR * best > -math.inf, _against(first, one, second, other))

    criterion = f"of the losses of {first} and {second} the larger is at most {SIMILAR:g} times the smaller"
    return _at_each(exhibit, (first, second), at, criterion, compare)


def similar_rates(exhibit: str, methods: tuple[str, ...], at: At, metric: Metric | None = None) -> Rule:
    """One rate is within a factor of `SIMILAR` of every method's error bar."""

    def compare(*results: Result) -> Finding:
        return rates_agree(dict(zip(methods, results, strict=True)))

    names = ", ".join(methods)
    criterion = f"the error bars of the best rates of {names} are at most a factor of {SIMILAR:g} apart"
    return _at_each(exhibit, methods, at, criterion, compare, metric)


def larger_rates(exhibit: str, first: str, second: str, at: At, metric: Metric | None = None) -> Rule:
    """The best rate of the first is the larger."""

    def compare(one: Result, other: Result) -> Finding:
        rates = best_rates({first: one, second: other})
        if isinstance(rates, Finding):
            return rates
        mine, others = rates
        return decided(mine.lr > others.lr, f"best rates {mine} ({first}), {others} ({second})")

    criterion = f"the best rate of {first} is larger than that of {second}"
    return _at_each(exhibit, (first, second), at, criterion, compare, metric)


def rates_agree(results: Mapping[str, Result]) -> Finding:
    """Whether one rate is within a factor of `SIMILAR` of all error bars."""
    rates = best_rates(results)
    if isinstance(rates, Finding):
        return rates
    agree = max(rate.low for rate in rates) <= SIMILAR * min(rate.high for rate in rates)
    words = ", ".join(f"{rate} ({name})" for name, rate in zip(results, rates, strict=True))
    return decided(agree, f"best rates {words}")


def best_rates(results: Mapping[str, Result]) -> list[BestRate] | Finding:
    """The best rates of named results, in their order, or the finding where one has none.

    A failed cell has no best rate, which contradicts; one at the edge of its grid is not known yet.
    """
    rates = []
    for name, result in results.items():
        if result.failed:
            return decided(False, f"{name} {result}")
        if result.rate is None:
            return missing(f"the best rate of {name}")
        if result.rate.at_edge:
            return missing(f"rates beyond {result.rate} for {name}, the best so far and the end of the grid")
        rates.append(result.rate)
    return rates
