"""Rules that compare methods at one depth or batch size after the other.

A `Span` is for statements about all batch sizes in a range: those that were measured count. Where the paper
names depths or batch sizes, every one of them is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...sweeping.summary import Metric
from ..exhibits import EXHIBITS, BestRate, Result, told_apart
from .claim import Finding, MeasurementSet, Rule, decided, missing

FEWEST_RATES = 3
"""A cell counts as failed only when this many rates were tried: any network fails at one absurd rate."""
SIMILAR = 2.0
"""The factor within which losses and best rates are similar."""


@dataclass(frozen=True)
class Span:
    """Every batch size measured from `low` to `high`, which must be at least `fewest`."""

    low: int = 1
    high: int | None = None
    fewest: int = 1

    def __str__(self) -> str:
        count = f"{self.fewest} or more batch sizes" if self.fewest > 1 else "a batch size"
        return f"{count} from {self.low} {'up' if self.high is None else f'to {self.high}'}"

    def __contains__(self, at: int) -> bool:
        return self.low <= at and (self.high is None or at <= self.high)


At = tuple[int, ...] | Span


def needs(exhibit: str, methods: tuple[str, ...], at: At, metric: Metric) -> tuple[str, str]:
    """What a rule reads, in words: the table or figure, and what of it."""
    facts = EXHIBITS[exhibit]
    where = str(at) if isinstance(at, Span) else f"{facts.axis_name} {', '.join(map(str, at))}"
    return facts.panel(metric), f"{', '.join(methods)} at {where}"


def located(exhibit: str, at: At, metric: Metric) -> str:
    """The table or figure, and the depths or batch sizes, that a criterion is about."""
    facts = EXHIBITS[exhibit]
    if isinstance(at, Span):
        where = f"every batch size measured from {at.low} {'up' if at.high is None else f'to {at.high}'}"
    else:
        where = f"{facts.axis_name} {', '.join(map(str, at))}"
    return f"{facts.panel(metric)}, {where}"


def still_open(results: Mapping[str, Result], how_well: bool = True) -> Finding | None:
    """What must be measured before these results decide, or None.

    `how_well`: the rule compares numbers or rates, not only whether a network trains.
    """
    for name, result in results.items():
        if result.failed and len(result.tried) < FEWEST_RATES:
            return missing(f"{name} at {FEWEST_RATES} rates or more; {result}")
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
    """`compare` gets the results of the methods, in their order, at each point.

    The metric is the exhibit's first if not given.
    """
    read = metric or EXHIBITS[exhibit].metrics[0]

    def judge(measurements: MeasurementSet) -> list[Finding]:
        measured = {method: measurements.series(exhibit, method, read) for method in methods}
        points: Sequence[int] = at if isinstance(at, tuple) else ()
        if isinstance(at, Span):  # what every method was measured at
            points = sorted(point for point in set.intersection(*map(set, measured.values())) if point in at)
        findings = [
            judge_at(point, {m: series[point] for m, series in measured.items() if point in series})
            for point in points
        ]
        if isinstance(at, Span) and len(points) < at.fewest:
            findings.append(missing(*needs(exhibit, methods, at, read)))
        return findings

    def judge_at(point: int, results: Mapping[str, Result]) -> Finding:
        if absent := tuple(method for method in methods if method not in results):
            return missing(*needs(exhibit, absent, (point,), read))
        found = still_open(results, how_well) or compare(*results.values())
        words = f"{found.words} at {EXHIBITS[exhibit].axis_name} {point}"
        reservations = dict.fromkeys(each.reservation for each in results.values() if each.reservation)
        if reservations and found.state != "not measured yet":
            words += f" ({', '.join(reservations)})"
        return Finding(found.state, words, EXHIBITS[exhibit].panel(read))

    return Rule(exhibit, needs(exhibit, methods, at, read), criterion, judge, located(exhibit, at, read))


def _says_whether(trained: bool, exhibit: str, method: str, at: At, criterion: str) -> Rule:
    def compare(result: Result) -> Finding:
        return decided(result.failed != trained, f"{method} {result}")

    return _at_each(exhibit, (method,), at, criterion, compare, how_well=False)


def trains(exhibit: str, method: str, at: At) -> Rule:
    """The method is above chance at some rate."""
    return _says_whether(True, exhibit, method, at, f"{method} is above chance at some rate")


def fails(exhibit: str, method: str, at: At) -> Rule:
    """The method is at chance at every rate."""
    criterion = f"{method} is at chance at every rate tried, {FEWEST_RATES} or more"
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
