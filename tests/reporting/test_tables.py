"""A measured cell beside the published one: what agrees, what differs, and what is open."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from skipinit.paper.collect import Collection
from skipinit.paper.exhibits import EXHIBITS
from skipinit.reporting.tables import Comparison, ResultTable, compare, make_table
from support.made_up_trials import (
    collection_of,
    first_set,
    full_collection,
    made_up_trial,
    make_collection,
    trials,
)


def comparison(collection: Collection, exhibit: str, method: str, at: int) -> Comparison:
    (cell,) = [
        cell
        for cell in first_set(collection)
        if (cell.exhibit.name, cell.method.name, cell.at) == (exhibit, method, at)
    ]
    return compare(cell.exhibit.cells[method, at], cell, cell.exhibit.metrics[0])


def table_of(collection: Collection, exhibit: str = "table1") -> ResultTable:
    table = make_table(EXHIBITS[exhibit], EXHIBITS[exhibit].metrics[0], first_set(collection))
    assert table
    return table


def test_differences_are_in_the_papers_spread() -> None:
    # Table 1: SkipInit at depth 16 is 93.3 ± 0.1, batch norm 93.5 ± 0.1, √2 at depth 100 is 88.9 ± 0.4;
    # α = 1/√d at depth 1000 is 94.2 ± 0.0, and a printed zero is less than 0.05.
    seen = collection_of(93.1)
    for method, at, agreement, words in (
        ("skipinit", 16, "agrees", "-0.2 points, 2.0 spreads"),
        ("batchnorm", 16, "differs", "-0.4 points, 4.0 spreads"),
        ("divide-sqrt2", 100, "differs", "+4.2 points, 10.5 spreads"),
        ("skipinit alpha=1/sqrt(d)", 1000, "differs", "-1.1 points, at least 22.0 spreads"),
    ):
        assert comparison(seen, "table1", method, at) == Comparison(agreement, "agrees", words)


def test_runs_that_scatter_are_compared_with_their_own_spread_too() -> None:
    """93.3 ± 0.1 in the paper; 92.9 and 93.2 here, 93.05 ± 0.212: a distance of 0.25 in units of 0.2345."""
    found = make_collection(
        replace(each, last=replace(each.last, test_accuracy=(92.9, 93.2)[each.config.seed]))
        for each in trials("paper", lambda _: (93.0, 1.0), names=("table1",))
        if each.last
    )
    words = "-0.2 points, 1.1 spreads"
    assert comparison(found, "table1", "skipinit", 16) == Comparison("agrees", "agrees", words)


def test_a_single_run_is_taken_to_scatter_as_the_papers() -> None:
    """93.3 ± 0.1 in the paper: 93.1 is 0.2 away, in units of 0.1 √2; 93.0 is 0.3 away."""
    for value, agreement, words in (
        (93.1, "agrees", "-0.2 points, 1.4 spreads"),
        (93.0, "differs", "-0.3 points, 2.1 spreads"),
    ):
        alone = make_collection(
            each
            for each in trials("paper", lambda _, value=value: (value, 1.0), names=("table1",))
            if each.config.seed == 0
        )
        assert comparison(alone, "table1", "skipinit", 16) == Comparison(agreement, "agrees", words)


def test_a_loss_has_no_points() -> None:
    found = comparison(collection_of(90.0, "table3"), "table3", "divide-sqrt2", 16)
    assert found == Comparison("differs", "agrees", "+0.987, at least 1974.0 spreads")


def test_a_loss_with_a_printed_spread_of_zero_agrees_in_the_printed_decimals() -> None:
    """Batch norm at depth 16 is 0.007 ± 0.000: 0.0073 prints as the same, 0.0079 as 0.008."""
    for loss, words in (
        (0.0073, "+0.000, equal in the printed decimals"),
        (0.0079, "+0.001, at least 1.8 spreads"),
    ):
        made = make_collection(trials("paper", lambda _, loss=loss: (93.0, loss), names=("table3",)))
        assert comparison(made, "table3", "batchnorm", 16) == Comparison("agrees", "agrees", words)


@pytest.mark.parametrize("preset", ["paper", "reduced", "quick"])
def test_who_trains_and_who_fails_is_compared_under_every_preset(preset: str) -> None:
    for value, method, at, agreement, words in (
        (None, "skipinit alpha=1", 100, "agrees", "fails, as in the paper"),
        (None, "skipinit", 16, "differs", "fails; in the paper it trains"),
        (80.0, "skipinit alpha=1", 1000, "differs", "trains; in the paper it fails"),
        (12.0, "skipinit", 16, "differs", "fails; in the paper it trains"),  # chance is 10 %
    ):
        found = comparison(collection_of(value, preset=preset), "table1", method, at)
        assert found == Comparison(agreement, agreement, words)


def test_what_a_short_training_leaves_at_chance_may_learn_later() -> None:
    brief, full = (collection_of(10.0, preset=preset) for preset in ("brief", "paper"))
    for method, there in (("divide-sqrt2", "fails"), ("skipinit", "trains")):
        words = f"at chance after 1 epoch only; in the paper it {there}"
        assert comparison(brief, "table1", method, 1000) == Comparison("open", "open", words)
    for method, agreement, words in (
        ("divide-sqrt2", "agrees", "fails, as in the paper"),
        ("skipinit", "differs", "fails; in the paper it trains"),
    ):
        assert comparison(full, "table1", method, 1000) == Comparison(agreement, agreement, words)


def test_a_table_names_what_fails_and_what_is_only_at_chance() -> None:
    """At depth 16 the preset trains long enough to say that a network fails."""
    at_chance = table_of(collection_of(10.0, preset="brief")).failed
    assert {"SkipInit (α = 0) fails at 16", "SkipInit (α = 0) is at chance at 100, 1000"} <= set(at_chance)
    not_finite = table_of(collection_of(None, preset="brief")).failed
    assert "SkipInit (α = 0) fails at 16, 100, 1000" in not_finite


def test_a_network_that_fails_at_a_rate_of_no_consequence_is_open() -> None:
    """Any network fails at one absurd rate; Table 1 has batch norm best at 2^-1, Table 2 prints no rates."""

    def found(exhibit: str, at: int, *exponents: int) -> Comparison:
        made = trials("paper", lambda _: None, names=(exhibit,))
        rates = {2.0**exponent for exponent in exponents}
        few = make_collection(each for each in made if each.config.lr in rates)
        return comparison(few, exhibit, "batchnorm", at)

    words = "failed at 2 rates from 2^1 to 2^2; too few rates to say"
    assert found("table1", 16, 1, 2) == Comparison("open", "open", words)
    assert found("table2", 256, 2) == Comparison("open", "open", "failed at rate 2^2; too few rates to say")
    for exhibit, at, exponents in (
        ("table1", 16, [-1]),
        ("table1", 16, [0, 1, 2]),
        ("table2", 256, [0, 1, 2]),
    ):
        assert found(exhibit, at, *exponents).words == "fails; in the paper it trains"


def test_a_reduced_number_is_open_however_near_or_far_it_is() -> None:
    for value, words in ((41.4, "-51.9 points, 40 of 200 epochs"), (93.3, "+0.0 points, 40 of 200 epochs")):
        found = comparison(collection_of(value, preset="reduced"), "table1", "skipinit", 16)
        assert found == Comparison("open", "agrees", words)


def test_a_number_on_other_data_is_open() -> None:
    found = comparison(collection_of(60.0, preset="quick"), "table1", "skipinit", 16)
    assert found == Comparison("open", "agrees", "trains, as in the paper; digits in place of cifar10")


def test_a_number_without_a_published_spread_is_open() -> None:
    found = comparison(collection_of(74.0, "table2"), "table2", "batchnorm", 256)
    assert found == Comparison("open", "agrees", "-1.0 points; the paper gives no spread")


def test_a_number_is_open_until_the_papers_best_rate_was_tried() -> None:
    """Table 6: batch norm at depth 16 has its lowest loss at 2^-2, its error bar ends there, too."""

    def found(*exponents: int) -> Comparison:
        made = trials("paper", lambda _: (72.6, 0.108), names=("table6",))
        rates = {2.0**exponent for exponent in exponents}
        return comparison(
            make_collection(each for each in made if each.config.lr in rates), "table6", "batchnorm", 16
        )

    words = "+0.030; the paper's best rate, 2^-2, was not tried"
    assert found(0) == Comparison("open", "agrees", words)
    assert found(-3, -1) == Comparison("open", "agrees", words)
    assert found(0, -2).agreement == "differs"


def test_a_distance_just_over_the_limit_does_not_read_as_the_limit() -> None:
    """92.913 ± 0.165 here, 93.3 ± 0.1 there: 0.3867 points are 2.004 spreads."""
    made = make_collection(
        made_up_trial(replace(each.config, seed=seed), (value, 1.0))
        for each in trials("paper", names=("table1",))
        if each.config.seed == 0
        for seed, value in enumerate((93.05, 92.96, 92.73))
    )
    words = "-0.4 points, just over 2.0 spreads"
    assert comparison(made, "table1", "skipinit", 16) == Comparison("differs", "agrees", words)


def test_one_rate_has_no_ends() -> None:
    made = [each for each in trials("paper", names=("table1",)) if each.config.lr in (0.25, 0.5)]

    def shown(rates: set[float]) -> set[str]:
        table = table_of(make_collection(each for each in made if each.config.lr in rates))
        return {row.measured_rate for rows in table.groups.values() for row in rows if row.measured_rate}

    assert shown({0.25}) == {"2^-2, only rate"}
    assert all(rate.endswith(", end of grid") for rate in shown({0.25, 0.5}))


def test_every_cell_carries_preset_data_and_runs() -> None:
    table = table_of(full_collection())
    assert table.label == "quick (digits)"
    assert table.conditions.startswith("data digits · width 1 · 4, 8 or 10 epochs")
    rows = [row for rows in table.groups.values() for row in rows]
    assert len(rows) == 18
    assert all(
        re.fullmatch(r"1 run \(seed 0\); [1-6] rates? tried|[1-6] runs? \(seed 0\) at [1-6] rates?", row.runs)
        for row in rows
    )


def test_a_table_over_batch_size_names_the_network() -> None:
    """Figure 7 is about WRN-28-10, for which `reduced` has WRN-16-4: a width alone does not say it."""
    for preset, words in (("paper", " · wrn28_10 · "), ("reduced", " · wrn16_4 in place of wrn28_10 · ")):
        assert words in table_of(make_collection(trials(preset, names=("figure7",))), "figure7").conditions


def test_cells_that_only_the_text_reports_are_none_of_the_tables() -> None:
    """Table 2 prints 15 numbers; of these the preset has five, beside three methods of sections 5 and 6."""
    table = table_of(make_collection(trials("reduced", names=("table2",))), "table2")
    assert len(table.groups) == 8
    assert table.conditions.startswith("5 of 15 cells · ")


def test_only_runs_that_count_are_named() -> None:
    """Table 1 keeps the best 5 of 7 runs: seeds 7 and 8 are not among them, however good."""
    first, *_ = trials("paper", names=("table1",))
    nine = [replace(first.config, seed=seed) for seed in range(9)]
    found = make_collection(made_up_trial(config, (90.0 + config.seed, 1.0)) for config in nine)
    ((row,),) = table_of(found).groups.values()
    assert (row.measured, row.runs) == ("94.0 ± 1.6", "best 5 of 7 runs (seeds 0 to 6); 1 rate tried")


def test_smoke_says_nothing_of_the_paper() -> None:
    smoke = make_collection(trials("smoke", lambda _: None, names=("table1",)))
    rows = [row for rows in table_of(smoke).groups.values() for row in rows]
    assert {(row.comparison.agreement, row.comparison.training) for row in rows} == {("open", "open")}
    assert smoke.judge("skipinit-trains-at-any-depth").state == "not decided yet"


def test_what_is_as_in_the_paper_says_so() -> None:
    fine = make_collection(trials("paper", names=("table1",)))
    assert table_of(fine).differing == []
    rows = [row for rows in table_of(fine).groups.values() for row in rows]
    assert {row.comparison.agreement for row in rows} == {"agrees"}
