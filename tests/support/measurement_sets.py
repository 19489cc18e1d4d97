"""Made-up measurements: one set in which all is as the paper says, and others that contradict it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from skipinit.paper.claims.claim import MeasurementSet
from skipinit.paper.exhibits import EXHIBITS, METHODS, BestRate, Place, Result
from skipinit.sweeping.summary import Metric


def published() -> dict[Place, Result]:
    """The paper's own numbers as if they had been measured here."""
    return {
        Place(exhibit.name, method, at, result.metric): result
        for exhibit in EXHIBITS.values()
        for (method, at), result in exhibit.cells.items()
    }


def result(metric: Metric, value: float | None, lr: float = 0.25, limit: float = 0.5) -> Result:
    """A cell tried at rates up to four times `limit`, above which nothing trains."""
    tried = tuple(limit * 2.0**exponent for exponent in range(-12, 3))
    if value is None:
        return Result(metric, None, tried=tried)
    return Result(metric, value, 0.1, BestRate(lr, lr, lr), tried, tuple(r for r in tried if r <= limit))


def figure3(method: str) -> Iterator[tuple[Place, Result]]:
    """Flat, then falling past a threshold; rates grow with the batch size up to the largest stable one."""
    accuracy, threshold, limit = {
        "batchnorm": (95.0, 2048, 2.0),
        "skipinit": (94.5, 512, 1.0),
        "none": (93.5, 256, 0.5),
    }[method]
    for batch in (64, 128, 256, 512, 1024, 2048, 4096, 8192):
        lr = min(0.25 * batch / 64, limit)
        value = accuracy - 2 * max(0.0, math.log2(batch / threshold))
        loss = {"batchnorm": 0.010, "skipinit": 0.005 if batch <= 1024 else 0.03, "none": 0.05}[method]
        yield from _both("figure3", method, batch, (value, loss), lr, limit)
    if method != "batchnorm":
        yield from _both("figure3", method, 16, (accuracy, loss), 0.0625, limit)


def figures4_and_6(method: str) -> Iterator[tuple[Place, Result]]:
    for batch in (2**n for n in range(11)):
        lr = 0.25 * batch / 64
        accuracies = {"skipinit": 94.0, "regularized-skipinit": 94.6}
        value = accuracies.get(method, 95 - 0.5 * abs(math.log2(batch / 64)))
        loss = 0.05 if batch == 1 else 0.1 * (2 / batch) ** 0.5
        for exhibit in ("figure4", "figure6"):
            yield from _both(exhibit, method, batch, (value, loss), lr)


def _both(
    exhibit: str, method: str, at: int, values: tuple[float, float], lr: float, limit: float = 0.5
) -> Iterator[tuple[Place, Result]]:
    metrics: tuple[Metric, ...] = ("test_accuracy", "train_loss")
    for metric, value in zip(metrics, values, strict=True):
        yield Place(exhibit, method, at, metric), result(metric, value, lr, limit)


def figures7_and_8(method: str) -> Iterator[tuple[Place, Result]]:
    limit = 4.0 if method == "batchnorm" else 1.0
    for batch in (2**n for n in range(11)):
        lr = min(0.25 * batch / 64, limit)
        skipinit = {"skipinit": 77.0, "regularized-skipinit": 78.0, "none": 70.0 if batch < 64 else None}
        fixed = skipinit.get(method, 80.0)
        full = skipinit.get(method, 80 - 1.5 * abs(math.log2(batch / 16)))
        yield Place("figure8", method, batch), result("test_accuracy", full, lr, limit)
        if method != "batchnorm" or batch >= 32:
            yield Place("figure7", method, batch), result("test_accuracy", fixed, lr, limit)


def rows_by_theory() -> dict[str, list[dict[str, float]]]:
    """What the paper derives, block by block; the convolutional network as it describes it."""

    def row(depth: int, skip: float, branch: float, moving: float, mean: float) -> dict[str, float]:
        numbers = {
            "depth": depth,
            "skip_variance": skip,
            "branch_variance": branch,
            "moving_variance": moving,
        }
        return {**numbers, "squared_moving_mean": mean, "branch_share": branch / (skip + branch)}

    depths, spread = range(1, 31), 1 / math.pi
    return {
        "figure2a": [row(n, 2.0 ** (n - 1), 2.0 ** (n - 1), math.nan, math.nan) for n in depths],
        "figure2b": [row(n, n, 1, n, 1e-16) for n in depths],
        "figure2c": [row(n, 0.9 * n, 0.9, 0.65 * n, 0.25 * n) for n in depths],
        "figure5": [row(n, n, 1, n * (1 - spread), n * spread) for n in depths],
        "initial-loss": [{"depth": 1000, "cross_entropy": math.log(10), "l2_term": 37.0}],
    }


def wrong_rows() -> dict[str, list[dict[str, float]]]:
    """Other laws throughout."""
    constant = dict.fromkeys(("branch_share", "branch_variance", "cross_entropy"), 2.0) | {"l2_term": 1.0}
    squares = {"skip_variance": 1.0, "moving_variance": 3.0, "squared_moving_mean": 1.0}
    rows = [
        {"depth": depth, **constant, **{column: factor * depth**2 for column, factor in squares.items()}}
        for depth in range(1, 31)
    ]
    return dict.fromkeys(rows_by_theory(), rows)


def as_the_paper_says() -> MeasurementSet:
    results = published()
    for method in ("batchnorm", "skipinit", "none"):
        results |= dict(figure3(method))
    for method in ("batchnorm", "skipinit", "regularized-skipinit"):
        results |= dict(figures4_and_6(method))
    for method in ("batchnorm", "skipinit", "regularized-skipinit", "none"):
        results |= dict(figures7_and_8(method))
    results[Place("table2", "skipinit without biases", 256)] = result("test_accuracy", 74.5)
    for component in (1, 2):
        results[Place("table2", f"fixup component {component}", 256)] = result("test_accuracy", 74.0)
    assert {place.method for place in results} <= set(METHODS)
    return MeasurementSet(results, rows_by_theory())


def contradicting_sets() -> list[MeasurementSet]:
    """Nothing trains; all methods train alike; accuracy and loss rise with depth and batch size."""
    places = as_the_paper_says().results
    wrong = wrong_rows()
    return [
        MeasurementSet({p: result(p.metric, None) for p in places}, wrong),
        MeasurementSet({p: result(p.metric, 50.0) for p in places}, wrong),
        MeasurementSet({p: result(p.metric, 50 + math.log2(p.at), 1 / p.at) for p in places}, wrong),
    ]
