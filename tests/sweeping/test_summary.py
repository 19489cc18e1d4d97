"""Cells against a NumPy reference written from the protocol, and the corner cases by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skipinit.errors import ConfigError
from skipinit.sweeping.summary import METRICS, Metric, TrialResult, Trim, summarize

FIVE_OF_SEVEN = Trim(5, 7)

# Eighths are exact in binary, so that ties and borders are ties and borders for both implementations.
accuracies = st.none() | st.integers(8 * 5, 8 * 40).map(lambda n: n / 8)
losses = st.none() | st.integers(0, 8 * 6).map(lambda n: n / 8)
runs_of_a_cell = st.dictionaries(
    st.tuples(st.integers(-4, 2).map(lambda e: 2.0**e), st.integers(0, 9)),
    st.tuples(accuracies, losses),
    min_size=1,
    max_size=30,
).map(lambda table: [TrialResult(lr, seed, 10, *values) for (lr, seed), values in table.items()])
trims = st.integers(1, 8).flatmap(lambda of: st.builds(Trim, st.integers(1, of), st.just(of)))


def reference(runs: list[TrialResult], metric: Metric, trim: Trim) -> dict[str, Any]:
    """The protocol once more: arrays of (lr, seed, accuracy, loss), one pass per rule."""
    table = np.array(
        [
            [
                run.lr,
                run.seed,
                10.0 if run.test_accuracy is None else run.test_accuracy,
                2.302585092994046 if run.train_loss is None else run.train_loss,
            ]
            for run in runs
        ]
    )
    if np.all(table[:, 2] <= 15.0):
        return {"failed": True}
    goodness = table[:, 2] if metric == "test_accuracy" else -table[:, 3]
    rates = np.unique(table[:, 0])
    means, deviations, kept, stable = [], [], [], []
    for rate in rates:
        mine = np.flatnonzero(table[:, 0] == rate)
        mine = mine[np.argsort(table[mine, 1])][: trim.of]
        order = mine[np.argsort(-goodness[mine], kind="stable")][: trim.best]
        top = goodness[order]
        means.append(top.mean())
        deviations.append(top.std(ddof=1) if len(top) > 1 else 0.0)
        kept.append(len(top))
        stable.append(bool(np.all(table[order, 2] > 15.0)))
    winner = int(np.argmax(np.array(means)))  # the first of equals: the smallest rate
    gap = math.inf
    if kept[winner] == 1 < max(kept):
        several = int(np.argmax(np.where(np.array(kept) > 1, means, -np.inf)))
        gap = abs(means[winner] - means[several]) - 2 * deviations[several]
        if stable[several] and gap <= 0:
            winner = several
    within = rates[np.abs(np.array(means) - means[winner]) <= deviations[winner]]
    return {
        "failed": False,
        "best": rates[winner],
        "mean": abs(means[winner]),
        "std": deviations[winner],
        "kept": kept[winner],
        "low": within.min(),
        "high": within.max(),
        "edges": {rates.min(), rates.max()},
        "margin": np.abs(np.abs(np.array(means) - means[winner]) - deviations[winner]).min(),
        "lead": np.diff(np.sort(means))[-1] if len(means) > 1 else math.inf,
        "gap": abs(gap),
    }


@settings(max_examples=300, deadline=None)
@given(runs_of_a_cell, trims, st.sampled_from(METRICS))
def test_a_cell_equals_the_reference(runs: list[TrialResult], trim: Trim, metric: Metric) -> None:
    expected, cell = reference(runs, metric, trim), summarize(runs, metric, trim)
    assert cell.failed == expected["failed"]
    if cell.failed:
        assert cell.best is None
        return
    assert cell.best is not None
    if 0 < expected["lead"] < 1e-9 or 0 < expected["gap"] < 1e-9:  # equal but for rounding, or at the border
        return
    assert cell.best.mean == pytest.approx(expected["mean"], abs=1e-12)
    assert cell.best.lr == expected["best"]
    assert cell.best.kept == expected["kept"]
    assert (cell.best.std or 0.0) == pytest.approx(expected["std"], abs=1e-12)
    assert (cell.best.std is None) == (expected["kept"] == 1)
    assert (cell.edge is not None) == (cell.best.lr in expected["edges"])
    if expected["margin"] > 1e-9 or expected["std"] == 0.0:
        assert (cell.lr_low, cell.lr_high) == (expected["low"], expected["high"])


def accuracy_runs(lr: float, *values: float | None, classes: int = 10) -> list[TrialResult]:
    return [TrialResult(lr, seed, classes, value, None) for seed, value in enumerate(values)]


def test_best_five_of_seven_by_hand() -> None:
    cell = summarize(accuracy_runs(0.5, 91, 92, 93, 94, 95, None, 10), "test_accuracy", FIVE_OF_SEVEN)
    assert cell.best is not None
    assert (cell.best.mean, cell.best.kept, cell.best.runs) == (93.0, 5, 7)
    assert cell.best.std == pytest.approx(math.sqrt(2.5))


def test_each_metric_has_its_own_best_rate_and_ranking() -> None:
    runs = [
        TrialResult(0.25, 0, 10, 90.0, 0.1),
        TrialResult(0.25, 1, 10, 80.0, 0.5),
        TrialResult(0.5, 0, 10, 85.0, 0.01),
    ]
    accuracy = summarize(runs, "test_accuracy", Trim(1, 2))
    loss = summarize(runs, "train_loss", Trim(1, 2))
    assert accuracy.best is not None
    assert loss.best is not None
    assert (accuracy.best.lr, accuracy.best.mean) == (0.25, 90.0)
    assert (loss.best.lr, loss.best.mean) == (0.5, 0.01)


@pytest.mark.parametrize(
    ("three", "others", "best_lr"),
    [
        ((92.0, 93.0, 94.0), [94.9], 0.5),  # within two standard deviations, of 1, of the mean 93
        ((92.0, 93.0, 94.0), [95.1], 0.25),
        ((93.0, 10.0, 94.0), [90.0], 0.25),  # not stable
        ((92.0, 93.0, 94.0), [80.0], 0.5),
        ((92.0, 93.0, 94.0), [94.0, 94.8], 0.25),  # two runs are no single lucky one
    ],
)
def test_one_run_replaces_three_only_where_it_is_clearly_better(
    three: tuple[float, ...], others: list[float], best_lr: float
) -> None:
    runs = accuracy_runs(0.5, *three) + accuracy_runs(0.25, *others)
    cell = summarize(runs, "test_accuracy", FIVE_OF_SEVEN)
    assert cell.best is not None
    assert cell.best.lr == best_lr


@pytest.mark.parametrize(("count", "kept"), [(1, 1), (3, 3), (5, 5), (6, 5), (7, 5), (10, 5)])
def test_fewer_and_more_runs_than_asked(count: int, kept: int) -> None:
    values = [50.0 + seed for seed in range(count)]
    cell = summarize(accuracy_runs(0.5, *values), "test_accuracy", FIVE_OF_SEVEN)
    assert cell.best is not None
    assert (cell.best.kept, cell.best.runs) == (kept, count)
    # Of ten runs the first seven seeds count: runs added later cannot be picked for being good.
    assert cell.best.mean == np.mean(sorted(values[:7])[-kept:])


def test_one_run_has_no_deviation_and_a_bar_of_itself() -> None:
    cell = summarize([*accuracy_runs(0.5, 90.0), *accuracy_runs(1.0, 89.9)], "test_accuracy", FIVE_OF_SEVEN)
    assert cell.best is not None
    assert cell.best.std is None
    assert (cell.lr_low, cell.lr_high) == (0.5, 0.5)


def test_equal_means_take_the_smaller_rate() -> None:
    runs = [run for lr in (1.0, 0.25, 0.5) for run in accuracy_runs(lr, 80.0, 82.0)]
    cell = summarize(runs, "test_accuracy", FIVE_OF_SEVEN)
    assert cell.best is not None
    assert cell.best.lr == 0.25
    assert (cell.lr_low, cell.lr_high) == (0.25, 1.0)


def test_the_error_bar_is_the_span_and_takes_its_border_in() -> None:
    means = {0.125: 89.0, 0.25: 70.0, 0.5: 90.0, 1.0: 88.999}  # the deviation at 0.5 is exactly 1
    runs = [run for lr, mean in means.items() for run in accuracy_runs(lr, mean - 1, mean, mean + 1)]
    cell = summarize(runs, "test_accuracy", FIVE_OF_SEVEN)
    assert (cell.lr_low, cell.lr_high) == (0.125, 0.5)


def test_edges_of_the_grid() -> None:
    runs = [run for lr, value in [(0.25, 70.0), (0.5, 90.0), (1.0, 80.0)] for run in accuracy_runs(lr, value)]

    def edge(chosen: list[TrialResult], grid: tuple[float, ...] = ()) -> str | None:
        return summarize(chosen, "test_accuracy", FIVE_OF_SEVEN, grid).edge

    assert edge(runs) is None
    assert edge(runs[:2]) == "high"
    assert edge(runs[1:]) == "low"
    assert edge(runs[1:2]) == "only"
    assert edge(runs[:2], grid=(0.25, 0.5, 1.0)) is None  # a rate still to come is part of the grid


def test_a_cell_fails_only_if_every_run_is_at_chance() -> None:
    chance = [*accuracy_runs(0.5, 10.0, None, 11.2), *accuracy_runs(1.0, None, None)]
    for metric in METRICS:
        cell = summarize(chance, metric, FIVE_OF_SEVEN)
        assert cell.failed
        assert (cell.best, cell.lr_low, cell.edge) == (None, None, None)
        assert [rate.runs for rate in cell.rates] == [3, 2]
    assert not summarize([*chance, TrialResult(2.0, 0, 10, 30.0, 1.0)], "test_accuracy", FIVE_OF_SEVEN).failed


def test_a_non_finite_run_counts_as_chance() -> None:
    run = TrialResult(0.5, 0, 100, None, None)
    assert run.at_chance
    assert run.value("test_accuracy") == 1.0
    assert run.value("train_loss") == pytest.approx(math.log(100))
    assert TrialResult(0.5, 0, 100, 1.5, 4.0).at_chance, "up to 1.5 times chance"
    assert not any(TrialResult(0.5, 0, 100, accuracy, 4.0).at_chance for accuracy in (1.51, 1.6))


def test_no_results_yet() -> None:
    cell = summarize([], "test_accuracy", FIVE_OF_SEVEN, grid=(0.5, 1.0))
    assert (cell.rates, cell.failed, cell.best) == ((), False, None)


def test_the_papers_trims() -> None:
    assert [Trim.of_paper(seeds) for seeds in (1, 7, 14, 15, 20)] == [
        Trim(5, 7), Trim(5, 7), Trim(5, 7), Trim(12, 15), Trim(12, 15),
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="best 8 of 7"):
        Trim(8, 7)


def test_a_trim_keeps_one_run_or_more_and_at_most_all() -> None:
    assert (Trim(1, 1), Trim(7, 7)) == (Trim(best=1, of=1), Trim(best=7, of=7))
    with pytest.raises(ConfigError, match="best 0 of 7"):
        Trim(0, 7)
    assert Trim.asked(5, 7) == Trim(best=5, of=7)
    assert Trim.asked(None, None) is None
    for best, of in ((5, None), (None, 7)):
        with pytest.raises(ConfigError, match="best and of belong together"):
            Trim.asked(best, of)
    with pytest.raises(ConfigError, match="of '7' is not allowed; it must be a whole number, 1 or more"):
        Trim.asked(5, "7")  # type: ignore[arg-type]
