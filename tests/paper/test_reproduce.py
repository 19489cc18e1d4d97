"""Recipes and presets: the right trials, each in one set of measurements, and every recipe runs."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from skipinit.cli.reproduce import claims, reproduce
from skipinit.config import TrainConfig
from skipinit.errors import ConfigError, DataError
from skipinit.paper.claims import CLAIMS
from skipinit.paper.collect import collect
from skipinit.paper.presets import PRESETS
from skipinit.paper.published import exhibits
from skipinit.paper.recipes import RECIPES, Order, find_recipes, make_grid, plan_exhibit
from skipinit.paper.theory_figures import FIGURES, measure_probes
from skipinit.reporting.page import make_page

PAPER = Order(PRESETS["paper"])


def trials(recipe: str, order: Order = PAPER) -> tuple[TrainConfig, ...]:
    return make_grid([plan for name in RECIPES[recipe].exhibits for plan in plan_exhibit(name, order)]).trials


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
    assert {trial.model.ghost_batch for trial in normalized} == {64}
    assert min(trial.batch_size for trial in normalized) == 64, "no batch is smaller than its ghost"
    assert min(trial.batch_size for trial in trials("figure3")) < 64
    assert {trial.model.ghost_batch for trial in trials("figure4")} == {None}
    assert {trial.seed for trial in trials("figure3")} == set(range(15))


def test_methods_differ_in_what_they_say() -> None:
    without = [trial for trial in trials("table1") if trial.l2 == 0]
    assert len(without) == 3 * 13 * 7
    assert {trial.model.scheme for trial in without} == {"skipinit"}
    imagenet = trials("table2")
    assert {trial.model.fixup_components for trial in imagenet} == {None, (1,), (2,)}
    assert {trial.schedule for trial in imagenet} == {"imagenet"}
    assert {trial.l2 for trial in imagenet} == {1e-4}


def test_every_claim_about_training_can_be_measured() -> None:
    made = {name for recipe in RECIPES.values() for name in (*recipe.exhibits, *recipe.probes)}
    assert {exhibit for claim in CLAIMS.values() for exhibit in claim.exhibits} <= made
    assert set(exhibits()) <= made


def test_a_cell_belongs_to_one_preset() -> None:
    def cells(preset: str) -> set[TrainConfig]:
        order = Order(PRESETS[preset], "float32")
        return {plan.config for name in exhibits() for plan in plan_exhibit(name, order)}

    for one, other in combinations(PRESETS, 2):
        assert cells(one).isdisjoint(cells(other)), f"{one} and {other} share a cell"


def test_a_part_of_the_paper_is_a_part_of_its_trials() -> None:
    part = trials(
        "table1", Order(PRESETS["paper"], methods=("skipinit",), at=(16,), seeds=2, around_best=True)
    )
    assert set(part) < set(trials("table1"))
    assert sorted({(trial.lr, trial.seed) for trial in part}) == [
        (lr, seed) for lr in (0.125, 0.25, 0.5) for seed in (0, 1)
    ]
    assert [trial.seed for trial in part] == [0, 0, 0, 1, 1, 1], "every cell once before any cell twice"


def test_a_smaller_batch_takes_a_smaller_rate() -> None:
    """The best rate is proportional to the batch size (section 3): 2^-5 at 64 is 2^-6 at 32."""
    (trial,) = trials("table1", Order(PRESETS["demo"], methods=("divide-sqrt2",), at=(100,)))
    assert (trial.batch_size, trial.lr, trial.data) == (32, 2.0**-6, "digits16")
    assert (trial.schedule, trial.l2, trial.dampening) == ("cifar", 5e-4, 0.9), "all else is the paper's"


def test_what_failed_in_the_paper_is_tried_at_enough_rates_to_decide() -> None:
    for preset in ("quick", "reduced"):
        for method in ("skipinit alpha=1", "divide-sqrt2"):
            tried = trials("table1", Order(PRESETS[preset], methods=(method,), at=(1000,)))
            assert {trial.lr for trial in tried} == {2.0**-8, 2.0**-5, 2.0**-2}


def test_methods_of_the_demo_share_their_data_at_each_depth() -> None:
    for depth, data in ((16, "digits"), (100, "digits16"), (1000, "digits")):
        assert {trial.data for trial in trials("table1", Order(PRESETS["demo"], at=(depth,)))} == {data}


def test_names() -> None:
    assert [recipe.name for recipe in find_recipes(["figure3", "table1", "figure3"])] == ["figure3", "table1"]
    assert len(find_recipes(["all"])) == 14
    with pytest.raises(ConfigError, match="'tabel1' is not known; did you mean table1"):
        find_recipes(["tabel1"])
    with pytest.raises(ConfigError, match="nothing to reproduce"):
        find_recipes([])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"preset": "fast"}, "preset 'fast' is not known"),
        ({"methods": ("skipnit",)}, "method 'skipnit' is not known; did you mean skipinit"),
        ({"seeds": 0}, "--seeds 0 is not allowed"),
    ],
)
def test_wrong_flags(flags: dict[str, object], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        reproduce(("table1",), out=tmp_path / "out", **flags)
    assert not (tmp_path / "out").exists()


def test_a_missing_data_set_is_said_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKIPINIT_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(DataError, match=r"imagenet is not at .*; lay it out there as train/<class>"):
        reproduce(("table2",), preset="reduced", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_figure_of_fewer_networks_than_it_takes_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FIGURES, "figure2a", replace(FIGURES["figure2a"], networks=2))
    found = []
    for most in (1, None, 1):
        measure_probes(["figure2a"], tmp_path, 0, "cpu", most, progress=False)
        found.append(collect([tmp_path]).probes["figure2a"])
    assert [probed.networks for probed in found] == [1, 2, 2]
    assert found[1].inputs.startswith("mean of 2 networks")
    assert found[0].rows != found[1].rows == found[2].rows


def test_every_recipe_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce(("all",), preset="smoke", out=tmp_path, device="cpu") == 0
    assert "0 failures, 0 left" in capsys.readouterr().out
    found = collect([tmp_path])
    assert {address.exhibit for address in found.sets[0].cells} == set(exhibits())
    assert all(cell.outcome for cell in found.sets[0].cells.values())
    page = make_page(found)
    assert all(f'<h2 id="{name}">' in page for name in RECIPES)
    claims((tmp_path,), json_=True)
    rows = {row["claim"]: row["state"] for row in json.loads(capsys.readouterr().out)}
    assert rows["normalized-variance-is-depth"] == "holds"
    assert rows["skipinit-trains-at-any-depth"] == "not measured yet", "smoke decides nothing"
    before = (tmp_path / "initialization" / "figure2a.json").stat().st_mtime_ns
    assert reproduce(("all",), preset="smoke", out=tmp_path, device="cpu") == 0
    assert (tmp_path / "initialization" / "figure2a.json").stat().st_mtime_ns == before, "nothing runs twice"
