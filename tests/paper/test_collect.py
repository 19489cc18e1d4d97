"""From trials to sets of measurements: who is counted where, and what that says of the paper's claims."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import skipinit
from skipinit.cli import main
from skipinit.config import ModelConfig, TrainConfig
from skipinit.errors import ConfigError, DataError
from skipinit.paper import cells
from skipinit.paper.collect import Collection, collect, restate_earlier
from skipinit.reporting.page import make_page
from skipinit.reporting.tables import compare
from skipinit.sweeping.exchange import export_results
from skipinit.sweeping.store import open_store
from skipinit.training.protocol import make_train_config
from skipinit.training.records import Trial
from support.made_up_trials import Scores, first_set, made_up_trial, make_collection, trials, write_store


def test_digits_do_not_say_what_holds_on_another_data_set() -> None:
    digits = make_collection(trials("quick"))
    assert digits.judge("batchnorm-trains-at-any-depth").state == "holds"
    assert digits.judge("cifar100-batchnorm-and-skipinit-train-deep").state == "not decided yet"
    papers = make_collection(trials("paper"))
    assert papers.judge("cifar100-batchnorm-and-skipinit-train-deep").state == "holds"


def test_a_reduced_number_never_passes_for_the_papers() -> None:
    both = make_collection(
        trials("paper", lambda _: (93.0, 0.1), names=("table1",)),
        trials("reduced", lambda _: (50.0, 0.1), names=("table1",)),
    )
    values = {
        label: {cell.results["test_accuracy"].value for cell in cells if cell.exhibit.name == "table1"}
        for label, cells in both.sets.items()
    }
    assert values == {"paper": {93.0}, "reduced": {50.0}}


def test_who_trains_may_be_seen_under_several_presets_how_well_may_not() -> None:
    """Depth 16 in full, the others in brief: numbers of one are no match for numbers of the other."""
    shallow = (each for each in trials("paper", names=("table1",)) if each.config.model.name == "wrn16_2")
    deep = (each for each in trials("brief", names=("table1",)) if each.config.model.name != "wrn16_2")
    both = make_collection(shallow, deep)
    ((label, found),) = both.judge("batchnorm-trains-at-any-depth").evidence.items()
    assert (label, found.state) == ("brief", "holds")
    assert "depth 16 (of preset paper)" in found.words
    assert "depth 1000 (after 1 epoch only)" in found.words
    assert not both.judge("skipinit-slightly-below-batchnorm").evidence
    assert not both.judge("skipinit-rate-hardly-depends-on-depth").evidence


def test_a_short_training_shows_a_failure_only_by_a_loss_that_is_not_finite() -> None:
    """In `results/`, 100 layers divided by √2 are at chance for two epochs and learn in the third."""

    def judged(preset: str, scores: Scores) -> str:
        made = make_collection(trials(preset, lambda _: scores, names=("table1",)))
        return made.judge("stable-forward-pass-is-not-enough").state

    at_chance = 10.0, 2.3
    assert judged("brief", None) == judged("paper", at_chance) == "holds"
    assert judged("brief", at_chance) == "not decided yet"


def test_precisions_are_kept_apart_and_the_higher_one_decides() -> None:
    """1000 layers from α = 1 fail in tf32 alone, which is the precision of `paper`."""
    both = make_collection(
        trials("paper", names=("table1",)),
        trials("paper", lambda _: (91.0, 0.1), "bfloat16", names=("table1",)),
    )
    assert list(both.sets) == ["paper (bfloat16)", "paper"]
    found = both.judge("alpha-one-fails-deep")
    assert {label: each.state for label, each in found.evidence.items()} == {
        "paper (bfloat16)": "does not hold",
        "paper": "holds",
    }
    assert found.state == "holds"


def test_the_command_says_which_measurements_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shallow networks alone: as published in full, and all alike in a reduced training."""
    names = ("table1", "table5")
    alike = trials("reduced", lambda _: (50.0, 0.5), names=names)
    write_store(tmp_path, (each for made in (trials("paper", names=names), alike) for each in shallow(made)))
    assert main(["claims", str(tmp_path)]) == 0
    (line,) = [each for each in capsys.readouterr().out.splitlines() if "shallow networks more" in each]
    assert (
        line == "✓ 7    SkipInit, started at zero, often makes shallow networks more accurate, too. [paper]"
    )
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")  # of 80 columns
    assert main(["claims", str(tmp_path), "--evidence"]) == 0
    text = capsys.readouterr().out
    assert not [line for line in text.splitlines() if line.endswith(("d-", "t-"))], "names are not broken"
    assert max(map(len, text.splitlines())) <= 80
    _, found = " ".join(text.split()).split("makes shallow networks more accurate, too. ")
    assert found.startswith(
        "holds if: Table 1, depth 16: skipinit has a higher accuracy than skipinit alpha=1; "
    )
    assert " paper: holds. Table 1: " in found
    assert (
        "reduced (less faithful, does not decide): does not hold. With 40 of 200 epochs. Table 1: " in found
    )


def test_an_open_claim_says_what_is_missing_in_each_set() -> None:
    """All rates are alike in one set, so that the best may lie beyond; the other has depth 16 only."""
    named = "batchnorm-rate-hardly-depends-on-depth"
    whole, part = (trials(preset, names=("table1",)) for preset in ("reduced", "paper"))
    collection = make_collection(whole, shallow(part))
    assert collection.judge("batchnorm-trains-at-any-depth").missing == {}
    found = collection.judge(named)
    assert (found.state, found.evidence) == ("not decided yet", {})
    beyond = "rates beyond 2^-2 for batchnorm at 16, the best so far and the end of the grid"
    assert found.missing == {
        "reduced": f"missing: Table 1: {beyond}",
        "paper": "missing: Table 1: batchnorm at depth 100, 1000",
    }


def test_reads_folders_and_exported_files(tmp_path: Path) -> None:
    write_store(tmp_path / "a", trials("quick", names=("table1",)))
    with open_store(tmp_path / "a") as store:
        export_results(store, tmp_path / "b.jsonl")
    folder, file = collect([tmp_path / "a"]), collect([tmp_path / "b.jsonl"])
    assert list(folder.sets) == list(file.sets) == ["quick (digits)"]
    assert [cell.results for cell in first_set(folder)] == [cell.results for cell in first_set(file)]


def test_trials_that_count_nowhere_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sweep of one's own is no table of the paper: its page would be empty without a word."""
    own = [
        made_up_trial(make_train_config(ModelConfig("wrn10_1"), "digits", epochs=3, seed=seed), (90.0, 0.1))
        for seed in range(3)
    ]
    write_store(tmp_path / "own", iter(own))
    assert main(["claims", str(tmp_path / "own")]) == 0
    printed = capsys.readouterr()
    assert printed.err == "3 of 3 trials in no table or figure of the paper; `skipinit results` shows all\n"
    assert main(["claims", str(tmp_path / "own"), "--json"]) == 0
    assert capsys.readouterr().err == ""
    assert "3 of 3 trials in no table or figure of the paper" in make_page(collect(tmp_path / "own"))
    both = [*own, *trials("quick", names=("table1",))]
    assert make_collection(iter(both)).outside == f"3 of {len(both)} trials in no table or figure"
    assert not make_collection(iter(both[3:])).outside
    assert "in no table" not in make_page(make_collection(iter(both[3:])))


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no sweep is there"):
        collect([tmp_path])
    write_store(tmp_path / "empty", iter(()))
    with pytest.raises(DataError, match="no results yet; train some with `skipinit reproduce --out"):
        collect([tmp_path / "empty"])
    made = trials("smoke", names=("table1",))
    failed = (replace(each, state="failed", last=None) for each in made)
    write_store(tmp_path / "failed", failed)
    with pytest.raises(DataError, match="failed: 6 trials, but no results yet; see `skipinit status`"):
        collect([tmp_path / "failed"])


def test_a_damaged_measurement_is_named(tmp_path: Path) -> None:
    path = tmp_path / "initialization" / "figure2a.json"
    path.parent.mkdir()
    origin = {"machine": "a machine", "commit": None}
    whole = {"figure": "figure2a", "inputs": "", "seed": 0, "rows": [{"depth": 1}], "provenance": origin}
    path.write_text(json.dumps(whole))
    assert collect([tmp_path]).probes["figure2a"].rows == [{"depth": 1}]
    changes = ({"rows": []}, {"rows": [{"depth": "a"}]}, {"rows": [1]}, {"provenance": {}}, {"figure": "x"})
    for text in ('{"figure": 1', "[]", *(json.dumps(whole | change) for change in changes)):
        path.write_text(text)
        with pytest.raises(DataError, match=r"figure2a\.json: not a file that"):
            collect([tmp_path])


def test_of_two_measurements_of_a_figure_that_of_most_networks_counts(tmp_path: Path) -> None:
    origin = {"machine": "a machine", "commit": None}
    for name, networks in (("many", 16), ("one", 1)):
        path = tmp_path / name / "initialization" / "figure5.json"
        path.parent.mkdir(parents=True)
        whole = {"figure": "figure5", "inputs": "", "seed": 0, "rows": [{"depth": 1}], "provenance": origin}
        path.write_text(json.dumps(whole | {"networks": networks}))
    for names in (("many", "one"), ("one", "many")):
        assert collect([tmp_path / name for name in names]).probes["figure5"].networks == 16


def test_no_folder_is_refused() -> None:
    with pytest.raises(ConfigError, match="no folder given; name one or more"):
        skipinit.claims([])


@pytest.fixture
def _changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A protocol that pads crops by reflection and starts the classifier otherwise, whatever today's does."""

    def changed(model: ModelConfig, data: str, **given: Any) -> TrainConfig:
        if not data.startswith("cifar"):
            return make_train_config(model, data, **given)
        model = replace(model, classifier_init="lecun")
        return make_train_config(model, data, crop_padding="reflect", **given)

    monkeypatch.setattr(cells, "make_train_config", changed)


def padded_by_zeros(preset: str) -> Iterator[Trial]:
    """Table 1 as published, under the earlier protocol."""
    for each in trials(preset, names=("table1",)):
        scores = (each.last.test_accuracy, each.last.train_loss) if each.last else None
        model = replace(each.config.model, classifier_init="he")
        yield made_up_trial(replace(each.config, model=model, crop_padding="zero"), scores)


@pytest.mark.usefixtures("_changed")
def test_an_earlier_protocol_says_who_trains_and_not_how_well() -> None:
    earlier = make_collection(padded_by_zeros("brief"))
    assert {cell.earlier for cell in first_set(earlier)} == {"crops padded by zeros, He classifier"}
    trains = earlier.judge("batchnorm-trains-at-any-depth")
    assert trains.state == "holds"
    words = trains.evidence["brief"].words
    assert "Table 1: batchnorm 93.5 at depth 16 (crops padded by zeros, He classifier); " in words
    assert "depth 1000 (after 1 epoch only, crops padded by zeros, He classifier)" in words
    assert "crops padded by zeros, He classifier at depth 16, 100, 1000" in make_page(earlier)
    assert earlier.judge("alpha-one-fails-deep").state == "holds"
    assert earlier.judge("skipinit-slightly-below-batchnorm").state == "not decided yet"
    assert earlier.judge("batchnorm-rate-hardly-depends-on-depth").state == "not decided yet"


def test_evidence_says_how_many_epochs_it_is_of() -> None:
    """Under `reduced` depth 16 has 40 epochs, depths 100 and 1000 have 10; batch sizes have 20."""
    reduced = make_collection(trials("reduced", names=("table1", "figure3")))
    for claim, words in (
        ("batchnorm-trains-at-any-depth", "With 10 to 40 of 200 epochs. "),
        ("batchnorm-better-at-every-batch-size", "With 20 of 200 epochs. "),
    ):
        assert reduced.judge(claim).evidence["reduced"].words.startswith(words)
    page = make_page(reduced)
    assert "of these measured with fewer epochs" in page[: page.index("<nav")]
    assert "(reduced: 20 of 200 epochs)" in page[page.index("What differs from") : page.index('id="table1"')]
    full = make_collection(trials("paper", names=("table1",)))
    assert "epochs" not in full.judge("batchnorm-trains-at-any-depth").evidence["paper"].words


@pytest.mark.usefixtures("_changed")
def test_reservations_add_up() -> None:
    shallow = (each for each in padded_by_zeros("paper") if each.config.model.name == "wrn16_2")
    deep = (each for each in padded_by_zeros("reduced") if each.config.model.name != "wrn16_2")
    found = make_collection(shallow, deep).judge("batchnorm-trains-at-any-depth")
    words = "batchnorm 93.5 ± 0.0 at depth 16 (crops padded by zeros, He classifier, of preset paper); "
    assert words in found.evidence["reduced"].words


def shallow(made: Iterator[Trial]) -> Iterator[Trial]:
    """Those of 16 layers."""
    return (each for each in made if each.config.model.name == "wrn16_2")


def test_a_result_of_todays_protocol_replaces_an_earlier_one_of_any_precision() -> None:
    """tf32 under the earlier protocol, bfloat16 under today's."""
    today = trials("paper", lambda _: (91.0, 0.1), "bfloat16", names=("table1",))
    both = make_collection(padded_by_zeros("paper"), shallow(today))
    assert {(cell.at, cell.earlier) for cell in both.sets["paper (bfloat16)"]} == {(16, "")}
    assert {cell.at for cell in both.sets["paper"]} == {100, 1000}


def test_trials_that_are_still_to_come_replace_nothing() -> None:
    today = trials("paper", precision="bfloat16", names=("table1",))
    pending = (replace(each, state="pending", last=None) for each in shallow(today))
    both = make_collection(padded_by_zeros("paper"), pending)
    assert {cell.at for cell in both.sets["paper"]} == {16, 100, 1000}


def test_a_cell_is_lent_from_todays_protocol_before_the_earlier_one() -> None:
    """Depth 16 in full under the earlier protocol, reduced under today's; the rest in brief."""
    reduced = trials("reduced", lambda _: (91.0, 0.1), names=("table1",))
    deep = (each for each in trials("brief", names=("table1",)) if each.config.model.name != "wrn16_2")
    both = make_collection(shallow(padded_by_zeros("paper")), shallow(reduced), deep)
    words = both.judge("batchnorm-trains-at-any-depth").evidence["brief"].words
    assert "91.0 at depth 16 (of preset reduced)" in words


@pytest.mark.usefixtures("_changed")
def test_a_number_of_an_earlier_protocol_is_open() -> None:
    for cell in first_set(make_collection(padded_by_zeros("paper"))):
        published = cell.exhibit.cells[cell.method.name, cell.at]
        found = compare(published, cell, cell.exhibit.metrics[0])
        assert found.training == "agrees"
        if cell.exhibit.name == "table1" and not published.failed:
            assert (found.agreement, found.words) == (
                "open",
                "+0.0 points, crops padded by zeros, He classifier",
            )


@pytest.mark.usefixtures("_changed")
def test_a_result_of_todays_protocol_comes_before_earlier_ones() -> None:
    def accuracies(collection: Collection) -> dict[str, float]:
        return {
            cell.earlier: cell.results["test_accuracy"].value
            for cell in first_set(collection)
            if (cell.exhibit.name, cell.method.name, cell.at) == ("table1", "batchnorm", 16)
        }

    today = list(trials("reduced", lambda _: (91.0, 0.1), names=("table1",)))
    pending = [replace(each, state="pending", last=None) for each in today]
    assert accuracies(make_collection(padded_by_zeros("reduced"), iter(today))) == {"": 91.0}
    assert accuracies(make_collection(padded_by_zeros("reduced"), iter(pending))) == {
        "crops padded by zeros, He classifier": 93.5
    }


def test_an_earlier_protocol_is_a_change_to_a_config() -> None:
    today = ModelConfig("wrn16_2", scheme="skipinit", classifier_init="lecun", projection="raw")
    config = make_train_config(today, "cifar10", crop_padding="reflect", lr=0.5)
    earlier = restate_earlier(config)
    assert (earlier.crop_padding, earlier.model.classifier_init) == ("zero", "he")
    assert earlier.model.projection == "activated"
    assert replace(earlier, crop_padding="reflect", model=config.model) == config, "nothing else changes"
    fixup = make_train_config(ModelConfig("resnet50_v1", scheme="fixup"), "imagenet")
    assert restate_earlier(fixup).model == fixup.model, "what does not apply to a network stays"
