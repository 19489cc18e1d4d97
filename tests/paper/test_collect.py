"""From trials to sets of measurements: who is counted where, and what that says of the paper's claims."""

from __future__ import annotations

from pathlib import Path

import pytest

import skipinit
from skipinit.errors import ConfigError, DataError
from skipinit.paper.claims import CLAIMS
from skipinit.paper.collect import collect
from skipinit.sweeping.exchange import export_results
from skipinit.sweeping.store import open_store
from support.made_up_trials import first_set, make_collection, trials, write_store


def test_digits_do_not_say_what_holds_on_another_data_set() -> None:
    digits = make_collection(trials("quick"))
    assert digits.judge(CLAIMS["batchnorm-trains-at-any-depth"]).state == "holds"
    assert digits.judge(CLAIMS["cifar100-batchnorm-and-skipinit-train-deep"]).state == "not measured yet"
    papers = make_collection(trials("paper"))
    assert papers.judge(CLAIMS["cifar100-batchnorm-and-skipinit-train-deep"]).state == "holds"


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
    deep = (each for each in trials("reduced", names=("table1",)) if each.config.model.name != "wrn16_2")
    both = make_collection(shallow, deep)
    ((label, found),) = both.judge(CLAIMS["batchnorm-trains-at-any-depth"]).evidence.items()
    assert (label, found.state) == ("reduced", "holds")
    assert "depth 16 (under paper)" in found.words
    assert "depth 1000 (after 1 epoch only)" in found.words
    assert not both.judge(CLAIMS["skipinit-slightly-below-batchnorm"]).evidence
    assert not both.judge(CLAIMS["skipinit-rate-hardly-depends-on-depth"]).evidence


def test_precisions_are_kept_apart() -> None:
    both = make_collection(
        trials("paper", lambda _: (93.0, 0.1), names=("table1",)),
        trials("paper", lambda _: (91.0, 0.1), "bfloat16", names=("table1",)),
    )
    assert list(both.sets) == ["paper", "paper (bfloat16)"]


def test_reads_folders_and_exported_files(tmp_path: Path) -> None:
    write_store(tmp_path / "a", trials("quick", names=("table1",)))
    with open_store(tmp_path / "a") as store:
        export_results(store, tmp_path / "b.jsonl")
    folder, file = collect([tmp_path / "a"]), collect([tmp_path / "b.jsonl"])
    assert list(folder.sets) == list(file.sets) == ["quick (digits)"]
    assert [cell.results for cell in first_set(folder)] == [cell.results for cell in first_set(file)]


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no sweep is there"):
        collect([tmp_path])
    write_store(tmp_path / "empty", iter(()))
    with pytest.raises(DataError, match="no results yet; train some with `skipinit reproduce --out"):
        collect([tmp_path / "empty"])


def test_a_damaged_measurement_is_named(tmp_path: Path) -> None:
    (tmp_path / "initialization").mkdir()
    (tmp_path / "initialization" / "figure2a.json").write_text('{"figure": 1')
    with pytest.raises(DataError, match=r"figure2a\.json: not a file that"):
        collect([tmp_path])


def test_no_folder_is_refused() -> None:
    with pytest.raises(ConfigError, match="no folder given; name one or more"):
        skipinit.claims([])
