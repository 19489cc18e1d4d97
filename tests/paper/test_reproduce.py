"""`reproduce`: what it refuses, what it trains and measures, and that every table and figure runs."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import skipinit
from skipinit.cli import main
from skipinit.errors import ConfigError, DataError
from skipinit.paper.claims import CLAIMS
from skipinit.paper.collect import collect, read_probed
from skipinit.paper.exhibits import EXHIBITS
from skipinit.paper.theory_figures import FIGURES, measure_probes
from skipinit.reporting.page import make_page
from skipinit.sweeping import engine


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"preset": "fast"}, "preset 'fast' is not known"),
        ({"methods": ("skipnit",)}, "method 'skipnit' is not known; did you mean skipinit"),
        ({"methods": "skipnit"}, "method 'skipnit' is not known; did you mean skipinit"),
        ({"seeds": 0}, "seeds 0 is not allowed"),
        ({"seeds": 1.5}, "seeds 1.5 is not allowed; it must be a whole number, 1 or more"),
        ({"first_seed": "0"}, "first_seed '0' is not allowed; it must be a whole number"),
        ({"at": 17}, "depth or batch size 17 is not among the cells of preset quick: 16, 100, 1000"),
        ({"at": [17]}, "depth or batch size 17 is not among the cells of preset quick: 16, 100, 1000"),
        ({"at": [16, 17]}, "depth or batch size 17 is not among"),
        (
            {"methods": ["skipinit", "none"]},
            "method none is not among the cells of preset quick: batch",
        ),
        ({"methods": ["divide-sqrt2"], "at": [100], "preset": "demo"}, "no cell of preset demo has one of"),
    ],
)
def test_wrong_flags(flags: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        skipinit.reproduce("table1", tmp_path / "out", **flags)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("part", [{"methods": ["skipinit"]}, {"at": [16]}])
def test_a_part_of_what_is_not_trained_is_refused(part: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing is trained for these figures; leave out methods and at"):
        skipinit.reproduce("figure5", tmp_path / "out", preset="smoke", **part)
    assert not (tmp_path / "out").exists()


def test_what_is_not_trained_counts_no_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "figure5", "--preset", "smoke", "--out", str(tmp_path)]) == 0
    assert "networks at initialization were measured" in capsys.readouterr().out


def test_a_table_that_the_preset_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"demo has nothing of table2; smoke, quick, reduced, paper have"):
        skipinit.reproduce(["table1", "table2"], tmp_path / "out", preset="demo")
    assert not (tmp_path / "out").exists()


def test_a_missing_data_set_is_said_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKIPINIT_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(DataError, match=r"imagenet is not at .*; lay it out there as train/<class>"):
        skipinit.reproduce("table2", tmp_path / "out", preset="reduced")
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


def test_networks_are_measured_beside_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}

    def measure_here(names: Sequence[str], folder: Path, *_: object) -> None:
        found.update({name: read_probed(folder / "initialization" / f"{name}.json") for name in names})

    monkeypatch.setattr("skipinit.paper.reproduce.workers_at_once", lambda: 2)
    monkeypatch.setattr("skipinit.paper.reproduce.measure_probes", measure_here)
    options = {"preset": "smoke", "device": "cpu", "progress": False, "first_seed": 3}
    skipinit.reproduce(["table1", "figure2"], tmp_path / "beside", methods=["skipinit"], **options)
    assert list(found) == ["initial-loss", "figure2a", "figure2b", "figure2c"]
    measure_probes(["figure2a"], tmp_path / "here", 3, "cpu", 1, progress=False)
    here = read_probed(tmp_path / "here" / "initialization" / "figure2a.json")
    assert found["figure2a"].rows == here.rows


def test_a_part_is_what_is_trained(tmp_path: Path) -> None:
    part = {"preset": "smoke", "methods": ["skipinit"], "at": [16], "first_seed": 3, "device": "cpu"}
    assert skipinit.reproduce(["table5"], tmp_path, **part).results == 1
    (trial,) = collect(tmp_path).trials
    assert (trial.config.model.scheme, trial.config.seed, trial.config.epochs) == ("skipinit", 3, 1)


@pytest.mark.parametrize(("signals", "code"), [(True, 130), (False, 0)])
def test_only_an_interrupt_makes_the_exit_code_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signals: bool, code: int
) -> None:
    """The time limit is up, or Ctrl-C comes before it."""

    def train_nothing(*arguments: Any) -> None:
        if signals:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(engine, "train_here", train_nothing)
    command = ["reproduce", "table1", "--preset", "smoke", "--device", "cpu", "--out", str(tmp_path)]
    assert main([*command, "--time-limit", "9m" if signals else "0s"]) == code


def test_every_table_and_figure_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    methods = ["batchnorm", "skipinit", "batchnorm-final-only"]  # of every table and figure one or two
    command = ["reproduce", "all", "--preset", "smoke", "--out", str(tmp_path), "--device", "cpu"]
    command += ["--methods", *methods]
    assert main(command) == 0
    assert "0 failures, 0 left" in capsys.readouterr().out
    found = collect(tmp_path)
    (cells,) = found.sets.values()
    trained = {exhibit.name for exhibit in EXHIBITS.values() if exhibit.metrics}
    assert {cell.exhibit.name for cell in cells} == trained
    assert all(set(cell.results) == set(cell.exhibit.metrics) for cell in cells)
    page = make_page(found)
    assert all(f'<h2 id="{name}">' in page for name in EXHIBITS)
    assert main(["claims", str(tmp_path), "--json"]) == 0
    printed = {row["claim"]: row for row in json.loads(capsys.readouterr().out)}
    law = printed["normalized-variance-is-depth"]
    assert (law["state"], law["evidence"]["at initialization"]["state"]) == ("holds", "holds")
    assert printed["skipinit-trains-at-any-depth"]["state"] == "not decided yet", "smoke decides nothing"
    assert {each.claim: each.state for each in skipinit.claims(tmp_path)} == {
        name: row["state"] for name, row in printed.items()
    }
    before = (tmp_path / "initialization" / "figure2a.json").stat().st_mtime_ns
    assert main(command) == 0
    assert (tmp_path / "initialization" / "figure2a.json").stat().st_mtime_ns == before, "nothing runs twice"


def test_claims_are_printed_by_what_was_found(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    measure_probes(["figure2a"], tmp_path, 0, "cpu", 1, progress=False)
    assert main(["claims", str(tmp_path)]) == 0
    *lines, counts = capsys.readouterr().out.splitlines()
    assert counts == f"not decided yet: {len(CLAIMS) - 2}, holds: 2, does not hold: 0"
    assert len(lines) == len(CLAIMS) + 2, "a line for each, and two headings"
    doubles = "✓ 2.1  Without normalization the variance on the skip path doubles from block to block."
    assert (
        lines.index("not decided yet") < lines.index("holds") < lines.index(f"{doubles} [at initialization]")
    )
    assert main(["claims", str(tmp_path), "--evidence"]) == 0
    text = capsys.readouterr().out
    assert "  at initialization: holds. Figure 2a: skip_variance against 2^(ℓ-1): off by " in text
    assert "  needs Table 1: batchnorm at depth 16, 100, 1000" in text
