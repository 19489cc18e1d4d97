"""The law by which the variance of the skip changes with depth, fitted to the measured blocks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Literal

CONSTANT_WITHIN = 1.25
"""A fitted line that changes by less than this factor over the blocks it was fitted to is constant."""
SETTLES_ABOVE = 0.01
"""A variance that falls by less than this factor in all, or to no less than this, does not vanish."""

SETTLED_BELOW = 0.1
"""A variance settles at once if the later half of its blocks changes it by less than this fraction."""


@dataclass(frozen=True)
class Growth:
    """How the skip variance changes from block to block."""

    law: Literal["exponential", "linear", "settling", "constant", "unknown"]
    rate: float | None
    """Factor per block if exponential; increase per block if linear; the level if constant or settling."""
    blocks: int
    """How many consecutive blocks it was fitted to."""


def fit_growth(variances: Sequence[float], branches: Sequence[float] = ()) -> Growth:
    """The better of two least-squares fits, v = a r^l and v = a + b l, judged by their error in log v.

    So a factor too much and a factor too little weigh the same, at any size. Fewer than three blocks, or a
    variance of zero, tell nothing. Where branches of a constant variance explain the growth, it is linear,
    however the few blocks of a small network look. Where each block keeps less than its sum and such branches
    make up for it, or where only the first blocks change it, the variance settles.
    """
    count = len(variances)
    if count < 3 or min(variances) <= 0:
        return Growth("unknown", None, count)
    depths = range(count)
    level, slope = _least_squares(depths, [math.log(v) for v in variances], [1.0] * count)
    if abs(slope) * (count - 1) < math.log(CONSTANT_WITHIN):
        return Growth("constant", math.exp(level + slope * (count - 1) / 2), count)
    if slope < 0 and (end := _settles_at(variances, branches, slope)) is not None:
        return Growth("settling", end, count)
    least = min(variances)  # Weights are relative to its own, so that none overflows.
    start, step = _least_squares(depths, variances, [(least / v) ** 2 for v in variances])
    line = [start + step * x for x in depths]
    exponential = _error([level + slope * x for x in depths], variances)
    linear = _error(map(math.log, line), variances) if min(line) > 0 else math.inf
    if _add_up(variances, branches, slope):
        if (end := _levels_off_at(variances, branches, linear)) is not None:
            return Growth("settling", end, count)
    elif (end := _jumps_to(variances)) is not None:
        return Growth("settling", end, count)
    elif exponential < linear:
        return Growth("exponential", math.exp(slope), count)
    return Growth("linear", step, count)


def _error(fit: Iterable[float], variances: Sequence[float]) -> float:
    """The squared error of a fit to log v."""
    return sum((value - math.log(v)) ** 2 for value, v in zip(fit, variances, strict=True))


def _add_up(variances: Sequence[float], branches: Sequence[float], slope: float) -> bool:
    """Whether the variance grows by what is added to it, by branches that do not grow along with it.

    The branches of an unnormalized network repeat the variance of the skip; normalized ones start anew. A sum
    has at most the variance (sqrt(v) + sqrt(b))^2; what grows faster grows on the skip path.
    """
    if slope <= 0 or max(branches, default=0.0) <= 0:
        return False
    steps = zip(pairwise(variances), branches, strict=False)
    # Weighted by its share of the sum: a branch that adds next to nothing does not show how branches grow.
    shares = [branch / (v + branch) for v, branch in zip(variances, branches, strict=True)]
    return _log_slope(branches, shares) < slope / 2 and all(
        math.sqrt(after) <= math.sqrt(before) + math.sqrt(branch) for (before, after), branch in steps
    )


def _settles_at(variances: Sequence[float], branches: Sequence[float], slope: float) -> float | None:
    """Where a falling variance ends, because branches that do not fall along keep it up; None if nowhere."""
    if min(branches, default=0.0) <= 0 or _log_slope(branches, [1.0] * len(branches)) < slope / 2:
        return None
    level = _level(median(_kept(variances, branches)), branches)
    return level if level < math.inf and _is_signal(level, variances[0]) else None


def _levels_off_at(variances: Sequence[float], branches: Sequence[float], linear: float) -> float | None:
    """The level that a growing variance has reached, because each block keeps less than its sum; else None.

    It has reached one if v' = k (v + b) from the first value on fits better than the line of that error.
    """
    shares = _kept(variances, branches)
    kept, course = median(shares), [variances[0]]
    for branch in branches[:-1]:
        course.append(kept * (course[-1] + branch))
    level = _level(kept, branches)
    near = max(shares) < 1 and 0 < level <= CONSTANT_WITHIN * variances[-1]
    return level if near and _error(map(math.log, course), variances) < linear else None


def _jumps_to(variances: Sequence[float]) -> float | None:
    """The level of a variance that the first blocks change, as an activation may, and later ones hardly."""
    logs = [math.log(v) for v in variances]
    later = logs[(len(logs) - 1) // 2 :]
    level = math.exp(median(later))
    settled = max(later) - min(later) < SETTLED_BELOW * abs(logs[-1] - logs[0])
    return level if settled and _is_signal(level, variances[0]) else None


def _is_signal(level: float, first: float) -> bool:
    return level > SETTLES_ABOVE * min(first, 1)


def _kept(variances: Sequence[float], branches: Sequence[float]) -> list[float]:
    """The fraction of its sum that each block keeps: 1, or 1/2 in (x + f(x)) / sqrt(2)."""
    steps = zip(pairwise(variances), branches, strict=False)
    return [after / (before + branch) for (before, after), branch in steps]


def _level(kept: float, branches: Sequence[float]) -> float:
    """Where v' = k (v + b) ends: at b k / (1 - k)."""
    return median(branches) * kept / (1 - kept) if kept < 1 else math.inf


def _log_slope(values: Sequence[float], weights: Sequence[float]) -> float:
    """Of those that are not 0: a branch that starts at 0 does not show how branches grow."""
    points = [(x, math.log(v), w) for x, (v, w) in enumerate(zip(values, weights, strict=True)) if v > 0]
    xs, ys, given = zip(*points, strict=True)
    return _least_squares(xs, ys, given)[1]


def _least_squares(xs: Sequence[float], ys: Sequence[float], weights: Sequence[float]) -> tuple[float, float]:
    """Intercept and slope of the weighted straight line."""
    total = sum(weights)
    x_mean = sum(w * x for w, x in zip(weights, xs, strict=True)) / total
    y_mean = sum(w * y for w, y in zip(weights, ys, strict=True)) / total
    spread = sum(w * (x - x_mean) ** 2 for w, x in zip(weights, xs, strict=True))
    together = sum(w * (x - x_mean) * (y - y_mean) for w, x, y in zip(weights, xs, ys, strict=True))
    slope = together / spread if spread else 0.0  # All weight on one point.
    return y_mean - slope * x_mean, slope
