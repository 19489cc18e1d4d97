"""Made-up measurements: one world in which all is as the paper says, and others that contradict it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from skipinit.paper.published import (
    Address,
    BestRate,
    Measurements,
    Outcome,
    find_exhibit,
    published_measurements,
)
from skipinit.paper.recipes import METHODS


def outcome(exhibit: str, value: float | None, lr: float = 0.25, limit: float = 0.5) -> Outcome:
    """A cell tried at rates up to four times `limit`, above which nothing trains."""
    tried = tuple(limit * 2.0**exponent for exponent in range(-12, 3))
    metric = find_exhibit(exhibit).metric
    if value is None:
        return Outcome(metric, None, tried=tried)
    return Outcome(metric, value, 0.1, BestRate(lr, lr, lr), tried, tuple(r for r in tried if r <= limit))


def figure3(method: str) -> Iterator[tuple[Address, Outcome]]:
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
        yield Address("figure3-accuracy", method, batch), outcome("figure3-accuracy", value, lr, limit)
        yield Address("figure3-loss", method, batch), outcome("figure3-loss", loss, lr, limit)
    if method != "batchnorm":
        yield Address("figure3-accuracy", method, 16), outcome("figure3-accuracy", accuracy, 0.0625, limit)


def figure4(method: str) -> Iterator[tuple[Address, Outcome]]:
    for batch in (2**n for n in range(11)):
        lr = 0.25 * batch / 64
        accuracies = {"skipinit": 94.0, "regularized-skipinit": 94.6}
        value = accuracies.get(method, 95 - 0.5 * abs(math.log2(batch / 64)))
        loss = 0.05 if batch == 1 else 0.1 * (2 / batch) ** 0.5
        yield Address("figure4-accuracy", method, batch), outcome("figure4-accuracy", value, lr)
        yield Address("figure4-loss", method, batch), outcome("figure4-loss", loss, lr)


def figures7_and_8(method: str) -> Iterator[tuple[Address, Outcome]]:
    limit = 4.0 if method == "batchnorm" else 1.0
    for batch in (2**n for n in range(11)):
        lr = min(0.25 * batch / 64, limit)
        skipinit = {"skipinit": 77.0, "regularized-skipinit": 78.0, "none": 70.0 if batch < 64 else None}
        fixed = skipinit.get(method, 80.0)
        full = skipinit.get(method, 80 - 1.5 * abs(math.log2(batch / 16)))
        yield Address("figure8", method, batch), outcome("figure8", full, lr, limit)
        if method != "batchnorm" or batch >= 32:
            yield Address("figure7", method, batch), outcome("figure7", fixed, lr, limit)


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


def as_the_paper_says() -> Measurements:
    cells = dict(published_measurements().cells)
    for method in ("batchnorm", "skipinit", "none"):
        cells |= dict(figure3(method))
    for method in ("batchnorm", "skipinit", "regularized-skipinit"):
        cells |= dict(figure4(method))
    for method in ("batchnorm", "skipinit", "regularized-skipinit", "none"):
        cells |= dict(figures7_and_8(method))
    cells[Address("table2", "skipinit without biases", 256)] = outcome("table2", 74.5)
    for component in (1, 2):
        cells[Address("table2", f"fixup component {component}", 256)] = outcome("table2", 74.0)
    assert {address.method for address in cells} <= set(METHODS)
    return Measurements(cells, rows_by_theory())


def contradicting_worlds() -> list[Measurements]:
    """Nothing trains; all methods train alike; accuracy and loss rise with depth and batch size."""
    cells = as_the_paper_says().cells
    wrong = wrong_rows()
    return [
        Measurements({at: outcome(at.exhibit, None) for at in cells}, wrong),
        Measurements({at: outcome(at.exhibit, 50.0) for at in cells}, wrong),
        Measurements({at: outcome(at.exhibit, 50 + math.log2(at.at), 1 / at.at) for at in cells}, wrong),
    ]
