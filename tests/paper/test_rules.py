"""The rules that decide claims, at their borders."""

from __future__ import annotations

import dataclasses

import pytest

from skipinit.paper.claims.claim import (
    MeasurementSet,
    Rule,
    all_of,
    below,
    decided,
    equals,
    follows,
    missing,
    proportional,
)
from skipinit.paper.claims.points import Span, fails, leads, similar_losses, similar_rates, trains
from skipinit.paper.claims.series import (
    FLAT_THEN_FALLING,
    LOSS_FALLING,
    NEVER_RISING,
    constant_rate,
    far_from_unstable,
    has_shape,
    larger_stable_rate,
    larger_threshold,
    peaks,
    proportional_rate,
)
from skipinit.paper.exhibits import BestRate, Place, Result
from support.measurement_sets import result

FIGURE = "figure3"


def state(rule: Rule, *series: tuple[str, dict[int, Result]]) -> str:
    results = {
        Place(rule.exhibit, name, at, found.metric): found
        for name, found_at in series
        for at, found in found_at.items()
    }
    return all_of(rule.judge(MeasurementSet(results))).state


def accuracies(values: dict[int, float | None], lr: float = 0.25, limit: float = 0.5) -> dict[int, Result]:
    return {at: result("test_accuracy", value, lr, limit) for at, value in values.items()}


def rates(values: dict[int, float], limit: float = 4.0) -> dict[int, Result]:
    return {at: result("test_accuracy", 90.0, lr, limit) for at, lr in values.items()}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (75.0, 74.5, "holds"),
        (75.0, 74.4, "does not hold"),
        (74.5, 75.0, "does not hold"),  # the lower border is excluded
        (74.6, 75.0, "holds"),
        (None, 75.0, "does not hold"),
        (75.0, None, "does not hold"),
        (None, None, "does not hold"),
    ],
)
def test_leads(first: float | None, second: float | None, expected: str) -> None:
    rule = leads(FIGURE, "batchnorm", "none", (64,), over=-0.5, up_to=0.5)
    assert state(rule, ("batchnorm", accuracies({64: first})), ("none", accuracies({64: second}))) == expected


def test_a_lead_in_loss_is_a_lower_loss() -> None:
    low, high = result("train_loss", 0.01), result("train_loss", 0.02)
    rule = leads(FIGURE, "skipinit", "batchnorm", (64,), metric="train_loss")
    assert state(rule, ("skipinit", {64: low}), ("batchnorm", {64: high})) == "holds"
    assert state(rule, ("skipinit", {64: high}), ("batchnorm", {64: low})) == "does not hold"


def test_numbers_that_differ_read_differently() -> None:
    """The paper prints accuracies with one decimal and losses with three; a closer race needs more."""
    accuracies = result("test_accuracy", 94.53), result("test_accuracy", 94.47)
    losses = result("train_loss", 0.00341), result("train_loss", 0.00262)
    for (one, other), words in (
        (accuracies, "94.53 ± 0.10 against none 94.47 ± 0.10"),
        (losses, "0.0034 ± 0.1000 against none 0.0026 ± 0.1000"),
    ):
        rule = leads(FIGURE, "skipinit", "none", (64,), metric=one.metric)
        places = {Place(FIGURE, name, 64, one.metric): r for name, r in (("skipinit", one), ("none", other))}
        assert words in all_of(rule.judge(MeasurementSet(places))).words
    falling = has_shape("figure4", "batchnorm", (2, 4), LOSS_FALLING)
    places = {
        Place("figure4", "batchnorm", at, "train_loss"): r for at, r in zip((2, 4), losses, strict=True)
    }
    assert "0.0034 ± 0.1000 at 2, 0.0026 ± 0.1000 at 4" in all_of(falling.judge(MeasurementSet(places))).words


@pytest.mark.parametrize(("smaller", "expected"), [(0.5, "holds"), (0.49, "does not hold")])
def test_losses_are_similar_up_to_a_factor_of_two(smaller: float, expected: str) -> None:
    rule = similar_losses("table3", "batchnorm", "skipinit", (16,))
    for one, other in ((smaller, 1.0), (1.0, smaller)):
        losses = (result("train_loss", value) for value in (one, other))
        assert state(rule, *zip(("batchnorm", "skipinit"), ({16: loss} for loss in losses), strict=True)) == (
            expected
        )


def test_failure_needs_several_rates() -> None:
    rule = fails("table1", "skipinit alpha=1", (100,))
    for tried, expected in (((1.0, 2.0), "not decided yet"), ((0.5, 1.0, 2.0), "holds")):
        failed = Result("test_accuracy", None, tried=tried)
        assert state(rule, ("skipinit alpha=1", {100: failed})) == expected


def test_one_failure_does_not_refute_that_a_network_trains() -> None:
    """The paper tunes the rate: a network that fails at one of them may train at another."""
    rule = trains("table1", "skipinit", (100,))
    for tried, expected in (((1.0,), "not decided yet"), ((0.25, 0.5, 1.0), "does not hold")):
        failed = Result("test_accuracy", None, tried=tried)
        assert state(rule, ("skipinit", {100: failed})) == expected


@pytest.mark.parametrize("rule", [trains("table1", "skipinit", (100,)), fails("table1", "skipinit", (100,))])
def test_a_network_that_a_short_training_leaves_at_chance_may_learn_later(rule: Rule) -> None:
    """Unlike one whose loss is not finite. Divided by √2, 100 layers learn after two epochs at chance."""
    tried, decision = (
        (0.25, 0.5, 1.0, 2.0),
        "holds" if rule.criterion.startswith("skipinit is at") else "does not hold",
    )
    failed = Result("test_accuracy", None, tried=tried, reservation="after 1 epoch only")
    for too_short, expected in (((), decision), ((0.25,), decision), ((0.25, 0.5), "not decided yet")):
        found = dataclasses.replace(failed, too_short=too_short)
        assert state(rule, ("skipinit", {100: found})) == expected


def test_what_was_trained_briefly_says_who_trains_and_not_how_well() -> None:
    brief = {
        at: dataclasses.replace(result("test_accuracy", 50.0), reservation="after 1 epoch only")
        for at in (16, 100)
    }
    cells = ("batchnorm", brief), ("skipinit", brief)
    assert state(trains("table1", "skipinit", (16, 100)), *cells) == "holds"
    assert state(leads("table1", "batchnorm", "skipinit", (16,)), *cells) == "not decided yet"
    assert state(constant_rate("table1", "batchnorm", (16, 100)), *cells) == "not decided yet"


def test_a_best_rate_at_the_end_of_its_grid_is_not_known() -> None:
    rule = similar_rates(FIGURE, ("batchnorm", "none"), (64,))
    good = result("test_accuracy", 90.0, 0.25)
    edge = dataclasses.replace(good, rate=BestRate(0.25, 0.25, 0.25, at_edge=True))
    assert state(rule, ("batchnorm", {64: good}), ("none", {64: good})) == "holds"
    assert state(rule, ("batchnorm", {64: good}), ("none", {64: edge})) == "not decided yet"


def test_error_bars_make_rates_similar() -> None:
    rule = similar_rates(FIGURE, ("batchnorm", "none"), (64,))
    low = result("test_accuracy", 90.0, 0.125)
    wide = dataclasses.replace(low, rate=BestRate(1.0, 0.25, 1.0))
    narrow = dataclasses.replace(low, rate=BestRate(1.0, 0.5, 1.0))
    assert state(rule, ("batchnorm", {64: wide}), ("none", {64: low})) == "holds"
    assert state(rule, ("batchnorm", {64: narrow}), ("none", {64: low})) == "does not hold"


@pytest.mark.parametrize(
    ("by_batch", "expected"),
    [
        ({16: 0.0625, 32: 0.125, 64: 0.25}, "holds"),
        ({16: 0.125, 64: 0.25}, "does not hold"),  # the square root
        ({16: 0.0625, 64: 1.0}, "does not hold"),  # the square
        ({32: 0.125, 64: 0.25}, "not decided yet"),  # too narrow
        ({16: 0.0625, 64: 0.25, 1024: 0.25}, "holds"),  # 1024 is outside of the span
    ],
)
def test_proportional_rate(by_batch: dict[int, float], expected: str) -> None:
    rule = proportional_rate(FIGURE, "none", Span(high=128, fewest=2))
    assert state(rule, ("none", rates(by_batch))) == expected


@pytest.mark.parametrize(
    ("by_batch", "expected"),
    [
        ({2048: 1.0, 4096: 1.0, 8192: 2.0}, "holds"),
        ({2048: 0.25, 4096: 0.5, 8192: 1.0}, "does not hold"),  # proportional
        ({4096: 0.5, 8192: 1.0}, "not decided yet"),  # proportional, too, and within a factor of two
        ({4096: 1.0, 8192: 1.0}, "not decided yet"),
    ],
)
def test_constant_rate(by_batch: dict[int, float], expected: str) -> None:
    rule = constant_rate(FIGURE, "none", Span(low=2048, fewest=2))
    assert state(rule, ("none", rates(by_batch))) == expected


def test_thresholds() -> None:
    rule = larger_threshold(FIGURE, "batchnorm", "none", Span(fewest=3))
    falls_at_64 = accuracies({32: 93.0, 64: 92.8, 128: 91.0})
    assert (
        state(rule, ("batchnorm", accuracies({32: 94.0, 64: 94.0, 128: 94.0})), ("none", falls_at_64))
        == "holds"
    )
    assert state(rule, ("batchnorm", falls_at_64), ("none", falls_at_64)) == "does not hold"
    never = accuracies({32: 93.0, 64: 93.0, 128: 93.0})
    assert state(rule, ("batchnorm", never), ("none", never)) == "not decided yet"
    always = accuracies({256: 94.0, 512: 93.0, 1024: 92.0})  # whether it holds up to 256 is not seen
    assert state(rule, ("batchnorm", always), ("none", falls_at_64)) == "not decided yet"


def test_stable_rates_need_an_end() -> None:
    rule = larger_stable_rate(FIGURE, "batchnorm", "none", Span())
    low, high = rates({64: 0.25}, limit=0.5), rates({64: 0.25}, limit=1.0)
    endless = {64: dataclasses.replace(high[64], tried=high[64].trained)}
    assert state(rule, ("batchnorm", high), ("none", low)) == "holds"
    assert state(rule, ("batchnorm", endless), ("none", low)) == "holds"
    assert state(rule, ("batchnorm", low), ("none", high)) == "does not hold"
    assert state(rule, ("batchnorm", high), ("none", endless)) == "not decided yet"
    assert state(rule, ("batchnorm", endless), ("none", high)) == "not decided yet"
    assert state(rule, ("batchnorm", high), ("none", accuracies({64: None}))) == "holds"


def test_a_rate_that_was_never_exceeded_is_a_lower_bound() -> None:
    rule = larger_stable_rate(FIGURE, "batchnorm", "none", Span())
    low, high = rates({64: 0.25}, limit=0.5), rates({64: 0.25}, limit=1.0)
    endless = {64: dataclasses.replace(high[64], tried=high[64].trained)}
    for found, words in ((high, "2^0 with batchnorm"), (endless, "2^0 or more with batchnorm")):
        named = {"batchnorm": found[64], "none": low[64]}
        measured = MeasurementSet({Place(FIGURE, method, 64): each for method, each in named.items()})
        assert f"largest stable rate {words}, 2^-1 with none" in all_of(rule.judge(measured)).words


def test_far_from_unstable() -> None:
    rule = far_from_unstable(FIGURE, "none", Span())
    near, far = rates({64: 0.25, 128: 0.5}, limit=0.5), rates({64: 0.25}, limit=1.0)
    endless = {64: dataclasses.replace(near[64], tried=near[64].trained)}
    assert state(rule, ("none", far)) == "holds"
    assert state(rule, ("none", near)) == "does not hold"
    assert state(rule, ("none", endless)) == "not decided yet"


@pytest.mark.parametrize(
    ("values", "flat", "rising_never"),
    [
        ({64: 94.0, 128: 93.8, 256: 92.0}, "holds", "holds"),
        ({64: 94.0, 128: 93.8, 256: 93.6}, "does not hold", "holds"),
        ({64: 93.0, 128: 94.0, 256: 92.0}, "does not hold", "does not hold"),
        ({64: 94.0, 128: 93.8, 256: None}, "holds", "holds"),
        ({64: 94.0, 128: 93.0, 256: None}, "does not hold", "holds"),
        ({64: None, 128: None, 256: None}, "does not hold", "does not hold"),
        ({64: 94.0, 128: 94.0}, "not decided yet", "not decided yet"),
    ],
)
def test_flat_then_falling(values: dict[int, float | None], flat: str, rising_never: str) -> None:
    series = ("none", accuracies(values))
    assert state(has_shape(FIGURE, "none", Span(fewest=3), FLAT_THEN_FALLING), series) == flat
    assert state(has_shape(FIGURE, "none", Span(fewest=3), NEVER_RISING), series) == rising_never


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({16: 92.0, 64: 94.0, 256: 93.0}, "holds"),
        ({16: 92.0, 64: 94.0, 256: 93.95}, "does not hold"),  # within the spread of 0.1
        ({16: 94.5, 64: 94.0, 256: 93.0}, "does not hold"),
        ({32: 92.0, 64: 94.0, 256: 93.0}, "not decided yet"),
        ({16: 92.0, 64: 94.0, 128: 93.0}, "not decided yet"),
        ({8: 92.0, 16: 94.0, 256: 93.0}, "not decided yet"),
        ({16: None, 64: None, 256: None}, "does not hold"),
    ],
)
def test_peaks(values: dict[int, float | None], expected: str) -> None:
    assert state(peaks(FIGURE, "batchnorm", 32, 128), ("batchnorm", accuracies(values))) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({16: 93.0, 64: 94.0, 256: 93.0}, "holds"),
        ({16: 94.6, 64: 94.0, 256: 93.0}, "does not hold"),
        ({16: 93.8, 64: 94.0, 256: 93.0}, "not decided yet"),  # 0.2 points are no difference of single runs
        ({16: 94.2, 64: 94.0, 256: 93.0}, "not decided yet"),
    ],
)
def test_single_runs_that_scatter_show_no_peak(values: dict[int, float | None], expected: str) -> None:
    alone = {at: dataclasses.replace(each, spread=None) for at, each in accuracies(values).items()}
    assert state(peaks(FIGURE, "batchnorm", 32, 128), ("batchnorm", alone)) == expected


@pytest.mark.parametrize(("scale", "expected"), [(1.0, "holds"), (1.09, "holds"), (1.11, "does not hold")])
def test_a_law_is_followed_within_a_tenth(scale: float, expected: str) -> None:
    rule = follows("figure2b", "skip_variance", float, "l")
    rows = [{"depth": n, "skip_variance": scale * n} for n in range(1, 11)]
    assert all_of(rule.judge(MeasurementSet(rows={"figure2b": rows}))).state == expected
    assert all_of(rule.judge(MeasurementSet(rows={"figure2b": rows[:-1]}))).state == "not decided yet"
    gap = [*rows[:-1], {"depth": 10, "skip_variance": None}]
    assert all_of(rule.judge(MeasurementSet(rows={"figure2b": gap}))).state == "not decided yet"


@pytest.mark.parametrize(
    ("power", "coefficient", "expected"),
    [
        (1.0, 0.9, "holds"),
        (1.0, 1.0, "does not hold"),
        (0.8, 0.95, "does not hold"),
        (1.0, 0.5, "does not hold"),
    ],
)
def test_proportion_to_depth(power: float, coefficient: float, expected: str) -> None:
    rule = proportional("figure2c", "skip_variance", low=0.75, high=1.0)
    rows = [{"depth": n, "skip_variance": coefficient * n**power} for n in range(1, 101)]
    assert all_of(rule.judge(MeasurementSet(rows={"figure2c": rows}))).state == expected


def state_of_rows(rule: Rule, **columns: list[float]) -> str:
    """Of rows of these columns, numbered by depth."""
    values = zip(*columns.values(), strict=True)
    rows = [{"depth": depth, **dict(zip(columns, row, strict=True))} for depth, row in enumerate(values, 1)]
    return all_of(rule.judge(MeasurementSet(rows={rule.exhibit: rows}))).state


@pytest.mark.parametrize(("off", "expected"), [(1.19, "holds"), (0.81, "holds"), (1.21, "does not hold")])
def test_a_law_is_judged_by_the_mean_over_the_blocks(off: float, expected: str) -> None:
    """Every second block is off by so much, the others not at all."""
    factors = [off, 1.0] * 6
    measured = [depth * factor for depth, factor in enumerate(factors, 1)]
    assert state_of_rows(follows("figure2b", "skip", lambda depth: depth, "l"), skip=measured) == expected
    assert state_of_rows(equals("figure2b", "one", "two"), one=factors, two=[1.0] * 12) == expected
    assert state_of_rows(equals("figure2b", "one", "two"), one=factors[:9], two=[1.0] * 9) == (
        "not decided yet"
    )


def test_a_power_of_depth_is_that_of_the_measured_number() -> None:
    """0.905 is within a tenth of 1; its inverse, the power of depth in what was measured, is not."""
    rule = proportional("figure2c", "skip")
    assert state_of_rows(rule, skip=[depth**0.905 for depth in range(1, 21)]) == "holds"
    assert state_of_rows(rule, skip=[depth**1.105 for depth in range(1, 21)]) == "does not hold"
    for least in (0.0, -1.0):
        assert state_of_rows(rule, skip=[least, *range(2, 21)]) == "does not hold"
    around = [depth * (0.9, 1.05)[depth % 2] for depth in range(1, 21)]
    assert state_of_rows(proportional("figure2c", "skip", low=0.9, high=1.0), skip=around) == "holds"


def test_below_is_so_in_every_row() -> None:
    rule, ones = below("figure2b", "small", "large", ratio=0.5), [1.0] * 10
    assert state_of_rows(rule, small=[0.49] * 10, large=ones) == "holds"
    for one in (0.5, 0.6):
        assert state_of_rows(rule, small=[0.1] * 9 + [one], large=ones) == "does not hold"
    assert state_of_rows(rule, small=ones, large=[0.49] * 10) == "does not hold"


def test_one_contradiction_refutes_and_what_is_missing_leaves_open() -> None:
    no, yes, open_still = decided(False, "no"), decided(True, "yes"), missing("a cell")
    assert all_of([open_still, yes, no]) == decided(False, "no. As the paper says: yes")
    assert all_of([yes, open_still]) == missing("missing: a cell. As the paper says: yes")
    assert all_of([yes, yes]) == yes


def test_a_span_in_words() -> None:
    assert str(Span()) == "a batch size from 1 up"
    assert str(Span(2, 64, fewest=2)) == "2 or more batch sizes from 2 to 64"
