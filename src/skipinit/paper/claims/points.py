"""Rules that compare methods at one depth or batch size after the other.

Where the paper speaks of all batch sizes in a range, that is a `Span`, and those count that were measured;
where it names depths or batch sizes, every one of them is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..published import Address, BestRate, Measurements, Outcome, find_exhibit
from .claim import Rule, Verdict, all_of, missing, verdict

FEWEST_RATES = 3
"""A cell counts as failed only when this many rates were tried: any network fails at one absurd rate."""


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


def needs(exhibit: str, methods: tuple[str, ...], at: At) -> str:
    """What a rule reads, in words."""
    where = str(at) if isinstance(at, Span) else f"{_axis(exhibit)} {', '.join(map(str, at))}"
    return f"{find_exhibit(exhibit).label}: {', '.join(methods)} at {where}"


def _axis(exhibit: str) -> str:
    return find_exhibit(exhibit).axis.replace("_", " ")


def still_open(outcomes: Mapping[str, Outcome], how_well: bool = True) -> Verdict | None:
    """What is to be measured before these decide; `how_well` and not only whether they train."""
    for name, outcome in outcomes.items():
        if outcome.failed and len(outcome.tried) < FEWEST_RATES:
            return missing(f"{name} at {FEWEST_RATES} rates or more; {outcome}")
        if outcome.reservation and how_well:
            return missing(f"a number of {name} to compare; {outcome} is {outcome.reservation}")
    return None


def _at_each(
    exhibit: str,
    methods: tuple[str, ...],
    at: At,
    criterion: str,
    compare: Callable[..., Verdict],
    how_well: bool = True,
) -> Rule:
    """`compare` gets the outcomes of the methods, in their order, at each point."""

    def judge(measurements: Measurements) -> Verdict:
        points = _common(measurements, exhibit, methods, at) if isinstance(at, Span) else at
        verdicts = [_at(measurements, exhibit, methods, point, compare, how_well) for point in points]
        if isinstance(at, Span) and len(points) < at.fewest:
            verdicts.append(missing(needs(exhibit, methods, at)))
        return all_of(verdicts)

    return Rule(exhibit, needs(exhibit, methods, at), criterion, judge)


def _common(
    measurements: Measurements, exhibit: str, methods: tuple[str, ...], span: Span
) -> tuple[int, ...]:
    measured = [set(measurements.series(exhibit, method)) for method in methods]
    return tuple(sorted(at for at in set.intersection(*measured) if at in span))


def _at(
    measurements: Measurements,
    exhibit: str,
    methods: tuple[str, ...],
    at: int,
    compare: Callable[..., Verdict],
    how_well: bool,
) -> Verdict:
    cells = {method: measurements.cells.get(Address(exhibit, method, at)) for method in methods}
    outcomes = {method: outcome for method, outcome in cells.items() if outcome is not None}
    if absent := cells.keys() - outcomes.keys():
        return missing(needs(exhibit, tuple(method for method in methods if method in absent), (at,)))
    found = still_open(outcomes, how_well) or compare(*outcomes.values())
    where = f"{find_exhibit(exhibit).label}, {_axis(exhibit)} {at}"
    reservations = dict.fromkeys(each.reservation for each in outcomes.values() if each.reservation)
    if reservations and found.state != "not measured yet":
        where += f" ({', '.join(reservations)})"
    return Verdict(found.state, f"{where}: {found.evidence}")


def trains(exhibit: str, method: str, at: At) -> Rule:
    """Some rate leaves chance behind."""

    def compare(outcome: Outcome) -> Verdict:
        return verdict(not outcome.failed, f"{method} {outcome}")

    criterion = f"{method} is above chance at some rate"
    return _at_each(exhibit, (method,), at, criterion, compare, how_well=False)


def fails(exhibit: str, method: str, at: At) -> Rule:
    """At chance at every rate."""

    def compare(outcome: Outcome) -> Verdict:
        return verdict(outcome.failed, f"{method} {outcome}")

    criterion = f"{method} is at chance at every rate tried, {FEWEST_RATES} or more"
    return _at_each(exhibit, (method,), at, criterion, compare, how_well=False)


def leads(
    exhibit: str, first: str, second: str, at: At, over: float = 0.0, up_to: float | None = None
) -> Rule:
    """over < lead ≤ up_to, the lead being in points of accuracy, or how much lower the loss is."""

    def compare(one: Outcome, other: Outcome) -> Verdict:
        # Rounded, because 75.0 - 74.5 must not miss a bound of 0.5 by the last bit; two failures lead by NaN.
        lead = round(one.score - other.score, 9)
        within = lead > over and (up_to is None or lead <= up_to)
        return verdict(within, f"{first} {one} against {second} {other}")

    unit = "points" if find_exhibit(exhibit).metric == "test_accuracy" else "lower loss"
    limit = "" if up_to is None else f" and at most {up_to:g}"
    criterion = f"{first} leads {second} by more than {over:g}{limit} {unit}"
    return _at_each(exhibit, (first, second), at, criterion, compare)


def similar_losses(exhibit: str, first: str, second: str, at: At, factor: float = 2.0) -> Rule:
    """The larger loss is at most `factor` times the smaller."""

    def compare(one: Outcome, other: Outcome) -> Verdict:
        worst, best = sorted((one.score, other.score))
        return verdict(worst >= factor * best > -math.inf, f"{first} {one} against {second} {other}")

    criterion = f"the losses of {first} and {second} are within a factor of {factor:g}"
    return _at_each(exhibit, (first, second), at, criterion, compare)


def similar_rates(exhibit: str, methods: tuple[str, ...], at: At, factor: float = 2.0) -> Rule:
    """One rate is within `factor` of every method's error bar."""

    def compare(*outcomes: Outcome) -> Verdict:
        return rates_agree(dict(zip(methods, outcomes, strict=True)), factor)

    criterion = f"best rates of {', '.join(methods)}, with error bars, are within a factor of {factor:g}"
    return _at_each(exhibit, methods, at, criterion, compare)


def larger_rates(exhibit: str, first: str, second: str, at: At) -> Rule:
    """The best rate of the first is the larger."""

    def compare(one: Outcome, other: Outcome) -> Verdict:
        rates = best_rates({first: one, second: other})
        if isinstance(rates, Verdict):
            return rates
        mine, others = rates
        return verdict(mine.lr > others.lr, f"best rates {mine} ({first}), {others} ({second})")

    criterion = f"the best rate of {first} exceeds that of {second}"
    return _at_each(exhibit, (first, second), at, criterion, compare)


def rates_agree(outcomes: Mapping[str, Outcome], factor: float) -> Verdict:
    """Whether one rate is within `factor` of all error bars."""
    rates = best_rates(outcomes)
    if isinstance(rates, Verdict):
        return rates
    agree = max(rate.low for rate in rates) <= factor * min(rate.high for rate in rates)
    words = ", ".join(f"{rate} ({name})" for name, rate in zip(outcomes, rates, strict=True))
    return verdict(agree, f"best rates {words}")


def best_rates(outcomes: Mapping[str, Outcome]) -> list[BestRate] | Verdict:
    """The best rates of named outcomes, in their order, or the verdict where one has none.

    A failed cell has no best rate, which contradicts; one at the edge of its grid is not known yet.
    """
    rates = []
    for name, outcome in outcomes.items():
        if outcome.failed:
            return verdict(False, f"{name} {outcome}")
        if outcome.rate is None:
            return missing(f"the best rate of {name}")
        if outcome.rate.at_edge:
            return missing(f"rates beyond {outcome.rate} for {name}, the best so far and the end of the grid")
        rates.append(outcome.rate)
    return rates
