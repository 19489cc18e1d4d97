"""Rules over how a method changes with depth or batch size, and how two methods compare in that."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, pairwise
from statistics import linear_regression
from typing import Literal, NamedTuple

from ...notation import rate_text
from ...sweeping.summary import Metric
from ..exhibits import Result, told_apart
from .claim import Finding, MeasurementSet, Rule, decided, missing
from .points import SIMILAR, At, Span, best_rates, rates_agree, read, still_open

SAME = 0.5
"""Points of accuracy that are no difference: a few of the paper's standard deviations."""
NEAR_ONE = 1 / 3
"""How far from 1 the power of something proportional may be. Rates double: over a factor of 4 in batch size
the neighbours of the proportional one have powers of 0.5 and 1.5."""
LARGER = 2.0
"""The factor from which on a threshold is significantly larger: one step, since batch sizes double."""
FAR = 4.0
"""The factor from which on a rate is far below another: two steps of the grid."""
WIDE = 4.0
"""The factor between depths or batch sizes from which on they show how the best rate depends on them: over a
factor of 2 a constant rate and a proportional one are within `SIMILAR`."""

Points = dict[int, Result]


def _along(
    exhibit: str,
    methods: tuple[str, ...],
    at: At,
    criterion: str,
    decide: Callable[..., Finding],
    metric: Metric | None = None,
) -> Rule:
    """`decide` gets the series of each method, cut to the points asked for."""
    reading = read(exhibit, methods, at, metric)
    fewest = at.fewest if isinstance(at, Span) else len(at)

    def judge(measurements: MeasurementSet) -> list[Finding]:
        cut = reading.series(measurements)
        for method, series in cut.items():
            if len(series) < fewest:
                lacking = at if isinstance(at, Span) else tuple(point for point in at if point not in series)
                return [missing(*replace(reading, methods=(method,), at=lacking).needs)]
            if found := still_open({f"{method} at {point}": each for point, each in series.items()}):
                return [replace(found, where=reading.panel)]
        return [replace(decide(*cut.values()), where=reading.panel)]

    return reading.rule(criterion, judge)


def _words(method: str, series: Points) -> str:
    values = zip(told_apart(series.values()), series, strict=True)
    return f"{method} " + ", ".join(f"{value} at {at}" for value, at in values)


def constant_rate(exhibit: str, method: str, at: At, metric: Metric | None = None) -> Rule:
    """One rate is within a factor of `SIMILAR` of every error bar, over a factor of `WIDE` or more."""

    def decide(series: Points) -> Finding:
        return _too_narrow(method, series) or rates_agree(
            {f"{method} at {at}": result for at, result in series.items()}
        )

    criterion = (
        f"the error bars of the best rates of {method} are at most a factor of {SIMILAR:g} apart, "
        f"over a factor of {WIDE:g} or more"
    )
    return _along(exhibit, (method,), at, criterion, decide, metric)


def proportional_rate(exhibit: str, method: str, at: Span, metric: Metric | None = None) -> Rule:
    """The best rate grows as a power of the batch size that is near 1, over a factor of `WIDE` or more."""

    def decide(series: Points) -> Finding:
        if narrow := _too_narrow(method, series):
            return narrow
        rates = best_rates({f"{method} at {at}": result for at, result in series.items()})
        if isinstance(rates, Finding):
            return rates
        power = linear_regression(list(map(math.log, series)), [math.log(rate.lr) for rate in rates]).slope
        words = ", ".join(f"{rate} at {at}" for at, rate in zip(series, rates, strict=True))
        return decided(abs(power - 1) <= NEAR_ONE, f"{method} best rates {words}, power {power:.2f}")

    criterion = (
        f"the best rate of {method} is proportional to (batch size)^p with |p - 1| ≤ {NEAR_ONE:.2g}, "
        f"over a factor of {WIDE:g} or more"
    )
    return _along(exhibit, (method,), at, criterion, decide, metric)


def _too_narrow(method: str, series: Points) -> Finding | None:
    """The finding about batch sizes or depths that are less than `WIDE` apart."""
    low, high = min(series), max(series)
    if high >= WIDE * low:
        return None
    return missing(f"{method} over a factor of {WIDE:g}, more than from {low} to {high}")


class Shape(NamedTuple):
    """What the curve of one method over batch size looks like."""

    criterion: str
    """With a place for the method."""
    holds: Callable[[list[float]], bool]
    """Of the scores, of which a larger one is better, from the smallest batch to the largest."""
    metric: Metric = "test_accuracy"


STEADY = Shape(
    f"{{}} varies by at most {SAME:g} points",
    lambda scores: max(scores) - min(scores) <= SAME,
)
FLAT_THEN_FALLING = Shape(  # one point is not flat: a curve that falls from its first batch size on would be
    f"{{}}: the two smallest batches within {SAME:g} points of the best, the largest more than that below",
    lambda scores: max(scores) - min(scores[:2]) <= SAME < max(scores) - scores[-1],
)
NEVER_RISING = Shape(
    f"{{}}: no batch size is more than {SAME:g} points better than a smaller one",
    lambda scores: all(later <= earlier + SAME for earlier, later in combinations(scores, 2)),
)
LOSS_RISING = Shape(
    "the loss of {} rises",
    lambda scores: all(later < earlier for earlier, later in pairwise(scores)),
    "train_loss",
)
LOSS_FALLING = Shape(
    "the loss of {} falls from each batch size to the next",
    lambda scores: all(later > earlier for earlier, later in pairwise(scores)),
    "train_loss",
)


def has_shape(exhibit: str, method: str, at: At, shape: Shape) -> Rule:
    """The curve of the method looks so."""

    def decide(series: Points) -> Finding:
        scores = [result.score for result in series.values()]
        trains = max(scores) > -math.inf  # what fails everywhere has no curve, and does not rise either
        return decided(trains and shape.holds(scores), _words(method, series))

    return _along(exhibit, (method,), at, shape.criterion.format(method), decide, shape.metric)


def peaks(exhibit: str, method: str, low: int, high: int) -> Rule:
    """The best batch size is from `low` to `high`, and both ends are worse by more than its spread.

    A single run has no known spread. Where the best batch size is not more than `SAME` ahead, several runs
    must tell whether it is.
    """

    def decide(series: Points) -> Finding:
        inside = [at for at in series if low <= at <= high]
        if min(series) >= low or max(series) <= high or not inside:
            return missing(f"{method} below batch size {low}, above {high} and in between")
        peak = max(series, key=lambda at: series[at].score)
        top, rivals = series[peak], (min(series), max(series)) if peak in inside else inside
        words = f"best at {peak}: {_words(method, series)}"
        ahead = [top.score - series[at].score > (SAME if top.spread is None else top.spread) for at in rivals]
        if top.spread is None and not top.failed and not all(ahead):
            return missing(f"several runs of {method} at batch size {peak}; {words}")
        return decided(peak in inside and all(ahead), words)

    criterion = (
        f"{method} is best from {low} to {high}; smallest and largest batch are over one spread lower, or "
        f"{SAME:g} points if it is a single run"
    )
    return _along(exhibit, (method,), Span(fewest=3), criterion, decide)


def larger_threshold(exhibit: str, first: str, second: str, at: Span) -> Rule:
    """The first keeps its accuracy up to a batch size `LARGER` times as large as the second does."""

    def decide(one: Points, other: Points) -> Finding:
        mine, others = _threshold(one), _threshold(other)
        if mine is None or others is None:
            return decided(False, f"{_words(first, one)}; {_words(second, other)}")
        if others == max(other):
            return missing(f"{second} at larger batch sizes than {others}, where it is still at its best")
        if mine == min(one):
            return missing(f"{first} at smaller batch sizes than {mine}, from where on it falls")
        words = f"accuracy holds up to batch size {mine} with {first}, {others} with {second}"
        return decided(mine >= LARGER * others, words)

    criterion = (
        f"the largest batch that is within {SAME:g} points of the best is at least {LARGER:g} times as large "
        f"with {first} as with {second}"
    )
    return _along(exhibit, (first, second), at, criterion, decide)


def _threshold(series: Points) -> int | None:
    """The largest batch size as good as the best; None where all failed."""
    best = max(result.score for result in series.values())
    good = (at for at, result in series.items() if not result.failed and result.score >= best - SAME)
    return max(good, default=None)


def larger_stable_rate(exhibit: str, first: str, second: str, at: Span) -> Rule:
    """The largest rate at which the first trains, at any batch size, exceeds that of the second."""

    def decide(one: Points, other: Points) -> Finding:
        mine, others = _largest(one, "trained"), _largest(other, "trained")
        if others == _largest(other, "tried"):
            return missing(f"the rate from which {second} no longer trains")
        if mine == _largest(one, "tried") and mine <= others:
            return missing(f"the rate from which {first} no longer trains")
        more = " or more" if mine == _largest(one, "tried") else ""
        words = f"largest stable rate {rate_text(mine)}{more} with {first}, {rate_text(others)} with {second}"
        return decided(mine > others, words)

    criterion = f"the largest rate that trains at any of them is larger with {first} than with {second}"
    return _along(exhibit, (first, second), at, criterion, decide)


def far_from_unstable(exhibit: str, method: str, at: Span, metric: Metric | None = None) -> Rule:
    """At the smallest batch size the best rate is `FAR` times below the largest stable one."""

    def decide(series: Points) -> Finding:
        smallest, stable = min(series), _largest(series, "trained")
        rates = best_rates({f"{method} at {smallest}": series[smallest]})
        if isinstance(rates, Finding):
            return rates
        (best,) = rates
        if FAR * best.lr > stable == _largest(series, "tried"):
            return missing(f"the rate from which {method} no longer trains")
        more = " or more" if stable == _largest(series, "tried") else ""
        words = f"best rate {best} at batch size {smallest}, largest stable rate {rate_text(stable)}{more}"
        return decided(FAR * best.lr <= stable, f"{method} {words}")

    criterion = (
        f"the best rate of {method} at the smallest of them is at most 1/{FAR:g} of the largest rate that "
        "trains at any"
    )
    return _along(exhibit, (method,), at, criterion, decide, metric)


def _largest(series: Points, which: Literal["tried", "trained"]) -> float:
    """The largest rate tried or trained at, at any batch size; 0 where there is none."""
    return max((lr for result in series.values() for lr in getattr(result, which)), default=0.0)
