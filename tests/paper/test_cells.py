"""Cells: the trials of each under every preset, and what is said of their results."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import combinations

import pytest

from skipinit.config import TrainConfig
from skipinit.paper.cells import ExhibitCell, grid_of, plan_cells
from skipinit.paper.claims import CLAIMS
from skipinit.paper.exhibits import EXHIBITS
from skipinit.paper.presets import PRESETS
from support.made_up_trials import made_up_trial


def trials(
    exhibit: str, preset: str = "paper", method: str | None = None, at: int | None = None
) -> tuple[TrainConfig, ...]:
    """What an exhibit trains, of all its cells or of some."""
    cells = plan_cells(EXHIBITS[exhibit], PRESETS[preset])
    return grid_of(
        cell for cell in cells if method in (None, cell.method.name) and at in (None, cell.at)
    ).trials


def test_the_papers_tables_in_full() -> None:
    """6 methods × 3 depths × 13 rates × 7 runs (section 2.3); ImageNet: one run at each rate (section 5)."""
    assert len(trials("table1")) == 6 * 3 * 13 * 7
    assert len(trials("table4")) == 3 * 3 * 13 * 7
    assert len(trials("table7")) == 4 * 3 * 13
    assert {trial.lr for trial in trials("table1")} == {2.0**n for n in range(-10, 3)}
    assert {(trial.epochs, trial.batch_size, trial.dampening) for trial in trials("table1")} == {
        (200, 64, 0.9)
    }


def test_tables_1_and_3_are_two_readings_of_the_same_runs() -> None:
    assert set(trials("table1")) == set(trials("table3"))
    assert set(trials("table5")) == set(trials("table6"))
    assert set(trials("figure4")) == set(trials("figure6"))
    assert set(trials("table1")).isdisjoint(trials("table5"))


def test_figure_3_has_a_ghost_batch_of_64_and_figure_4_has_none() -> None:
    normalized = [trial for trial in trials("figure3") if trial.model.scheme == "batchnorm"]
    assert {trial.model.ghost_batch or trial.batch_size for trial in normalized} == {64}
    assert min(trial.batch_size for trial in normalized) == 64, "no batch is smaller than its ghost"
    assert min(trial.batch_size for trial in trials("figure3")) < 64
    assert {trial.model.ghost_batch for trial in trials("figure4")} == {None}
    assert {trial.seed for trial in trials("figure3")} == set(range(15))


def test_methods_differ_in_what_they_say() -> None:
    without = [trial for trial in trials("table1") if trial.l2 == 0]
    assert len(without) == 3 * 13 * 7
    assert {trial.model.scheme for trial in without} == {"skipinit"}
    imagenet = trials("table2")
    fixup = [trial.model for trial in imagenet if trial.model.scheme == "fixup"]
    assert {model.fixup_components or (1, 2, 3, 4) for model in fixup} == {(1, 2, 3, 4), (1,), (2,)}
    assert {trial.schedule for trial in imagenet} == {"imagenet"}
    assert {trial.l2 for trial in imagenet} == {1e-4}


def test_every_claim_about_training_can_be_measured() -> None:
    made = {name for exhibit in EXHIBITS.values() for name in (exhibit.name, *exhibit.probes)}
    assert {exhibit for claim in CLAIMS.values() for exhibit in claim.exhibits} <= made


def test_a_cell_belongs_to_one_preset() -> None:
    def cells(preset: str) -> set[TrainConfig]:
        planned = (plan_cells(exhibit, PRESETS[preset], "float32") for exhibit in EXHIBITS.values())
        return {cell.config for cells in planned for cell in cells}

    for one, other in combinations(PRESETS, 2):
        assert cells(one).isdisjoint(cells(other)), f"{one} and {other} share a cell"


def test_a_part_of_the_paper_is_a_part_of_its_trials() -> None:
    (cell,) = [
        cell
        for cell in plan_cells(EXHIBITS["table1"], PRESETS["paper"])
        if (cell.method.name, cell.at) == ("skipinit", 16)
    ]
    part = grid_of([cell.narrow(seeds=2, around_best=True, first_seed=0)]).trials
    assert set(part) < set(trials("table1"))
    assert sorted({(trial.lr, trial.seed) for trial in part}) == [
        (lr, seed) for lr in (0.125, 0.25, 0.5) for seed in (0, 1)
    ]
    assert [trial.seed for trial in part] == [0, 0, 0, 1, 1, 1], "every cell once before any cell twice"


def test_a_smaller_batch_takes_a_smaller_rate() -> None:
    """In proportion to the batch size, as the best is (section 3): twice 2^-2 at 64, 2^-2 at 32."""
    (trial,) = trials("table1", "demo", "batchnorm", 1000)
    assert (trial.batch_size, trial.lr) == (32, 2.0**-2)
    assert (trial.schedule, trial.l2, trial.dampening) == ("cifar", 5e-4, 0.9), "all else is the paper's"


def test_rates_grow_with_the_batch_up_to_what_the_method_endures() -> None:
    """Section 3: batch norm has the largest stable rate, then SkipInit, then no normalization."""

    def tried(method: str, batch: int) -> list[float]:
        return [math.log2(trial.lr) for trial in trials("figure3", "reduced", method, batch)]

    assert tried("batchnorm", 64) == tried("skipinit", 64) == tried("none", 64) == [-3, -2, -1, 0]
    assert tried("skipinit", 16) == [-5, -4, -3, -2]
    assert [tried(method, 4096)[0] for method in ("batchnorm", "skipinit", "none")] == [1, -1, -3]


def test_what_failed_in_the_paper_is_tried_at_enough_rates_to_decide() -> None:
    for preset in ("quick", "reduced"):
        for method in ("skipinit alpha=1", "divide-sqrt2"):
            tried = trials("table1", preset, method, 1000)
            assert {trial.lr for trial in tried} == {2.0**-8, 2.0**-5, 2.0**-2}


def test_the_demo_leaves_out_the_cell_that_8_by_8_pixels_starve() -> None:
    """Its variance falls to 2e-7 (docs/reproduce.md)."""
    left = {(cell.method.name, cell.at) for cell in plan_cells(EXHIBITS["table1"], PRESETS["demo"])}
    methods = PRESETS["demo"].methods or ()
    assert {(method, at) for method in methods for at in (16, 100, 1000)} - left == {("divide-sqrt2", 100)}


def test_the_demo_trains_small_networks_first() -> None:
    depths = [int(re.findall(r"\d+", trial.model.name)[0]) for trial in trials("table1", "demo")]
    assert depths == [16] * 4 + [100] * 3 + [1000] * 4


def cell_of(exhibit: str, preset: str, method: str, at: int) -> ExhibitCell:
    """One planned cell."""
    (found,) = [
        cell
        for cell in plan_cells(EXHIBITS[exhibit], PRESETS[preset])
        if (cell.method.name, cell.at) == (method, at)
    ]
    return found


def recorded(cell: ExhibitCell, *runs: tuple[float, int, float | None]) -> ExhibitCell:
    """The cell with runs of these rates, seeds and accuracies; None went non-finite."""
    made = (
        made_up_trial(replace(cell.config, lr=lr, seed=seed), None if value is None else (value, 1.0))
        for lr, seed, value in runs
    )
    return replace(cell, recorded=tuple(made))


def test_every_cell_is_trained_once_before_any_twice() -> None:
    """So that a sweep that is stopped has something of everything."""
    seeds = [trial.seed for trial in trials("table1")]
    assert seeds == sorted(seeds)
    assert seeds.count(0) == 6 * 3 * 13


def test_a_part_of_other_rates_than_the_grid_keeps_them() -> None:
    """Three rates far apart show that a network fails; the one expected best alone would not."""
    cell = cell_of("table1", "reduced", "skipinit alpha=1", 1000)
    part = cell.narrow(seeds=9, around_best=True, first_seed=5)
    assert (part.rates, part.seeds) == ((2.0**-8, 2.0**-5, 2.0**-2), (5,)), "no more runs than the preset has"


@pytest.mark.parametrize(
    ("preset", "method", "at", "departures"),
    [
        ("paper", "skipinit", 1000, []),
        ("reduced", "skipinit", 1000, ["10 of 200 epochs"]),
        (
            "demo",
            "batchnorm",
            1000,
            [
                "digits in place of cifar10",
                "wrn1000_1 in place of wrn1000_2",
                "1 of 200 epochs",
                "batch size 32",
                "no augmentation",
            ],
        ),
    ],
)
def test_what_is_not_as_in_the_paper_is_said(
    preset: str, method: str, at: int, departures: list[str]
) -> None:
    assert cell_of("table1", preset, method, at).departures == departures


def test_the_paper_as_it_is_departs_from_nothing() -> None:
    for exhibit in EXHIBITS.values():
        assert not any(cell.departures for cell in plan_cells(exhibit, PRESETS["paper"]))


def test_ten_epochs_say_how_well_a_network_trains_and_fewer_do_not() -> None:
    for preset, words in (("reduced", ""), ("quick", "after 8 epochs only")):
        found = recorded(cell_of("table1", preset, "skipinit", 100), (0.25, 0, 80.0))
        assert found.results["test_accuracy"].reservation == words


@pytest.mark.parametrize(
    ("runs", "ending"),
    [
        ([(0.25, 0, 80.0), (0.5, 0, None)], "trains"),
        ([(0.25, 0, 10.0), (0.5, 0, None)], "at chance"),
        ([(0.25, 0, None), (0.5, 0, None)], "explodes"),
        ([], None),
    ],
)
def test_how_a_cell_ends(runs: list[tuple[float, int, float | None]], ending: str | None) -> None:
    """Chance is 10 %. A cell explodes only if all of its runs do."""
    assert recorded(cell_of("table1", "reduced", "skipinit", 16), *runs).ending == ending


def test_the_curve_shown_is_of_the_best_rate_or_of_the_one_expected_best() -> None:
    cell = cell_of("table1", "paper", "skipinit", 16)  # 2^-2 is best in the paper
    trained = recorded(cell, (0.25, 1, 80.0), (0.5, 1, 91.0), (0.5, 0, 90.0), (1.0, 0, 70.0))
    failed = recorded(cell, (0.125, 0, None), (0.25, 1, None), (0.25, 0, None), (0.5, 0, None))
    for found, expected in ((trained, (0.5, 0)), (failed, (0.25, 0))):
        assert found.shown_trial
        assert (found.shown_trial.config.lr, found.shown_trial.config.seed) == expected
    assert cell.shown_trial is None


def test_runs_are_counted_by_seed() -> None:
    cell = cell_of("table1", "paper", "skipinit", 16)
    some = recorded(cell, *((0.25, seed, 90.0) for seed in (0, 2, 3)), (0.5, 0, None))
    assert some.runs("test_accuracy") == "3 runs (seeds 0, 2, 3); 2 rates tried"
    all_seven = recorded(cell, *((0.25, seed, 90.0 + seed) for seed in range(7)))
    assert all_seven.runs("test_accuracy") == "best 5 of 7 runs (seeds 0 to 6); 1 rate tried"
    assert recorded(cell, (0.25, 4, None)).runs("test_accuracy") == "1 run (seed 4) at 1 rate"


def test_imagenet_rates_grow_with_the_batch_up_to_the_end_of_the_grid() -> None:
    """Section 5 follows Goyal et al., who scale the rate in proportion; no best rate is above 2^2."""
    rates = {at: cell_of("table2", "paper", "skipinit", at).config.lr for at in (256, 1024, 4096)}
    assert rates == {256: 1.0, 1024: 4.0, 4096: 4.0}


def test_networks_of_a_preset() -> None:
    def names(exhibit: str, preset: str) -> set[tuple[str, int]]:
        return {(trial.model.name, trial.model.in_channels) for trial in trials(exhibit, preset)}

    assert names("table1", "quick") == {("wrn16_1", 1), ("wrn100_1", 1), ("wrn1000_1", 1)}, "digits are grey"
    assert names("table2", "quick") == {("resnet50_v2", 1)}, "a ResNet has no width to change"
    assert names("figure7", "reduced") == {("wrn16_4", 3)}
    sizes = {cell.at for cell in plan_cells(EXHIBITS["figure7"], PRESETS["reduced"])}
    assert sizes == {32, 128, 512}
    both = {name: {trial.batch_size for trial in trials(name, "reduced")} for name in ("figure3", "figure4")}
    assert min(both["figure3"]) == 16, "where the figure of the paper begins"
    assert min(both["figure4"]) == 4
    assert {trial.model.ghost_batch for trial in trials("figure3", method="skipinit")} == {None}


def test_a_preset_of_some_methods_has_no_others() -> None:
    some = replace(PRESETS["paper"], methods=("skipinit",))
    assert {cell.method.name for cell in plan_cells(EXHIBITS["table2"], some)} == {"skipinit"}
