"""`status`, `results` and `store …` as a user calls them: text, JSON, CSV, and what goes wrong."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import tyro
from tyro.extras import SubcommandApp

from skipinit.cli import main
from skipinit.cli import store as commands
from skipinit.errors import ConfigError, DataError
from skipinit.paper.collect import collect
from skipinit.paper.theory_figures import measure_probes
from skipinit.provenance import Provenance
from skipinit.sweeping.engine import Outcome
from skipinit.sweeping.grid import expand
from skipinit.sweeping.store import open_writer
from skipinit.training.protocol import identity
from skipinit.training.records import EpochRecord

HERE = Provenance("a machine", "cpu", {"skipinit": "0.1.0"}, None)
GRID = expand(
    {
        "model": "wrn16_2",
        "data": "digits",
        "batch_size": 64,
        "epochs": 2,
        "scheme": "skipinit,none",
        "lr": "2^-2..2^0",
        "seed": "0..2",
    }
)


def command(*arguments: str) -> None:
    app, nested = SubcommandApp(), SubcommandApp()
    app.command(commands.status)
    app.command(commands.results)
    nested.command(commands.merge)
    nested.command(commands.export)
    nested.command(commands.import_, name="import")
    app.command(nested, name="store")
    app.cli(args=list(arguments), config=(tyro.conf.FlagCreatePairsOff,))


def test_failed_trials_say_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_writer(tmp_path) as writer:
        writer.add(GRID.trials)
        for number, config in enumerate(GRID.trials[:9]):
            reason = "out of\tmemory" if number > 6 else f"reason {number}"
            writer.start(identity(config), HERE, 10)
            writer.fail(identity(config), reason, "Traceback", seconds=1.0)
    said = ["2 failed: out of\\tmemory", *(f"1 failed: reason {n}" for n in range(4))]
    more = "and 3 other reasons; see `skipinit results --json`"
    for verb in ("status", "results"):
        command(verb, str(tmp_path))
        assert capsys.readouterr().out.splitlines()[-6:] == [*said, more]

    command("status", str(tmp_path), "--json")
    reasons = json.loads(capsys.readouterr().out)["failures"]
    assert reasons == {"out of\tmemory": 2, **{f"reason {n}": 1 for n in range(7)}}


def accuracy(lr: float, seed: int) -> float:
    return 90.0 + math.log2(lr) * (1 if lr < 0.5 else 2) + seed


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """SkipInit trains, but for one run that waits; the plain network diverges everywhere."""
    folder = tmp_path / "sweep"
    with open_writer(folder) as writer:
        writer.add(GRID.trials)
        for config in GRID.trials[:-1]:
            id = identity(config)
            if config.model.scheme == "skipinit" and (config.lr, config.seed) == (1.0, 2):
                continue
            writer.start(id, HERE, classes=10)
            if config.model.scheme == "none":
                writer.diverge(id, EpochRecord(1, 2.3, 10.0, 2.3, 0.1, 100.0), step=7, seconds=1.0)
            else:
                value = accuracy(config.lr, config.seed)
                writer.finish(id, EpochRecord(2, 1 / value, value, 0.5, 0.1, 100.0), step=10, seconds=2.0)
    return folder


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    command(*arguments)
    return capsys.readouterr().out


def test_results_as_json(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, list[dict[str, Any]]] = json.loads(printed(capsys, "results", str(sweep), "--json"))
    assert set(found) == {"trials", "cells"}
    assert [row["id"] for row in found["trials"]] == [identity(config) for config in GRID.trials]
    first = found["trials"][0]
    assert (first["scheme"], first["lr"], first["state"]) == ("skipinit", 0.25, "finished")
    assert first["test_accuracy"] == accuracy(0.25, 0)
    assert [(cell["scheme"], cell["metric"]) for cell in found["cells"]] == [
        ("skipinit", "test_accuracy"), ("skipinit", "train_loss"),
        ("none", "test_accuracy"), ("none", "train_loss"),
    ]  # fmt: skip
    cell = found["cells"][0]
    # At 2^0: 90 and 91, the third run waits; at 2^-1: 88, 89, 90; at 2^-2: 88, 89, 90.
    assert (cell["best_lr"], cell["mean"], cell["kept"], cell["unfinished"]) == (1.0, 90.5, 2, 1)
    assert (cell["edge"], cell["failed"]) == ("high", False)
    assert [rate["lr"] for rate in cell["rates"]] == [0.25, 0.5, 1.0]
    assert (found["cells"][2]["failed"], found["cells"][2]["best_lr"]) == (True, None)
    assert "lr" not in cell
    assert "seed" not in cell


def test_results_as_csv(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trials = list(csv.DictReader(io.StringIO(printed(capsys, "results", str(sweep), "--csv"))))
    assert len(trials) == 18
    assert float(trials[0]["test_accuracy"]) == accuracy(0.25, 0)
    cells = list(
        csv.DictReader(io.StringIO(printed(capsys, "results", str(sweep), "--csv", "--rows", "cells")))
    )
    assert [(cell["scheme"], cell["failed"]) for cell in cells[::2]] == [
        ("skipinit", "False"),
        ("none", "True"),
    ]


def test_results_have_one_form(sweep: Path) -> None:
    with pytest.raises(ConfigError, match="--json and --csv exclude each other; give one"):
        command("results", str(sweep), "--json", "--csv")


@pytest.mark.parametrize(
    ("outcome", "code", "resumes"),
    [
        (Outcome(results=8, failures=9, left=0), 3, False),
        (Outcome(results=0, failures=9, left=8), 3, True),
        (Outcome(results=0, failures=9, left=8, interrupted=True), 130, True),
    ],
)
@pytest.mark.parametrize(
    ("words", "trains"),
    [
        ("reproduce table1", "skipinit.paper.reproduce.reproduce"),
        ("sweep wrn16_2 --data digits --lr 1", "skipinit.sweeping.engine.run_sweep"),
    ],
)
def test_what_trains_many_says_why_trials_failed(
    words: str,
    trains: str,
    outcome: Outcome,
    code: int,
    resumes: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A sweep that is resumed has failed trials, too."""
    with open_writer(tmp_path) as writer:
        writer.add(GRID.trials)
        for config in GRID.trials[:9]:
            writer.start(identity(config), HERE, 10)
            writer.fail(identity(config), "out of memory", "Traceback", seconds=1.0)
    monkeypatch.setattr(trains, lambda *_, **__: outcome)
    assert main([*words.split(), "--out", str(tmp_path)]) == code
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [f"{outcome}; in {tmp_path}", "9 failed: out of memory"]
    assert ("run the same command again to resume" in printed.err) == resumes


def test_results_as_text(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "results", str(sweep), "--best", "1", "--of", "3")
    lines = text.splitlines()
    assert lines[0].split()[:5] == ["trial", "seed", "model", "scheme", "lr"]
    assert len([line for line in lines if "diverged" in line]) == 8
    (best,) = [line for line in lines if "skipinit" in line and "test_accuracy" in line]
    assert "91.00" in best
    assert "1 of 2" in best
    assert "2^0 to 2^0" in best
    assert "at the high edge of the grid; 1 unfinished" in best
    (dash,) = [line for line in lines if "none" in line and "train_loss" in line]
    assert "−" in dash
    assert "at chance" in dash


def test_a_clean_loss_is_shown_as_a_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    axes = {"model": "wrn10_1", "data": "digits", "lr": "2^-2,2^-1", "epochs": 1, "clean_train_loss": True}
    with open_writer(tmp_path) as writer:
        configs = expand(axes).trials
        writer.add(configs)
        for config, clean in zip(configs, (1 / 3, 2 / 3), strict=True):
            writer.start(identity(config), HERE, classes=10)
            writer.finish(identity(config), EpochRecord(1, 0.5, 50.0, 0.5, 0.1, 1.0, clean), 22, 3.0)
    rows = [
        re.split("  +", line)
        for line in printed(capsys, "results", str(tmp_path), "--rows", "trials").splitlines()
    ]
    assert rows[0][3:] == [
        "lr",
        "state",
        "epoch",
        "test accuracy",
        "train loss",
        "clean train loss",
        "seconds",
    ]
    assert rows[1][3:] == ["2^-2", "finished", "1/1", "50.00", "0.5000", "0.3333", "3"]
    assert rows[2][3:] == ["2^-1", "finished", "1/1", "50.00", "0.5000", "0.6667", "3"]


def test_trials_by_the_thousand_do_not_bury_the_cells(
    sweep: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = printed(capsys, "results", str(sweep), "--rows", "cells")
    trials = printed(capsys, "results", str(sweep), "--rows", "trials")
    assert printed(capsys, "results", str(sweep)) == trials + cells
    monkeypatch.setattr("skipinit.cli.store._MOST_TRIALS", 17)
    assert printed(capsys, "results", str(sweep)) == f"18 trials; --rows trials lists them\n\n{cells}"
    assert printed(capsys, "results", str(sweep), "--rows", "trials") == trials


def test_status_as_json_and_text(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(printed(capsys, "status", str(sweep), "--json"))
    assert (found["trials"], found["finished"], found["diverged"], found["pending"]) == (18, 8, 8, 2)
    assert (found["epochs_done"], found["epochs_total"]) == (32, 36)
    assert (found["writer"], found["seconds_left"]) == (None, None)
    with open_writer(sweep) as writer:
        writer.start(identity(GRID.trials[-1]), HERE, classes=10)
        text = printed(capsys, "status", str(sweep))
    assert "18 trials: 1 pending, 1 running, 8 diverged, 8 finished" in text
    assert "32 of 36 epochs (89%)" in text
    assert "written by process" in text
    assert "0/2" in text
    assert "\x1b" not in text


def test_status_is_live_in_a_terminal(
    sweep: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    id = identity(GRID.trials[-1])
    with ExitStack() as stack:
        writer = stack.enter_context(open_writer(sweep))
        writer.start(id, HERE, classes=10)

        def the_sweep_ends_meanwhile(seconds: float) -> None:
            writer.finish(id, EpochRecord(2, 0.1, 50.0, 0.5, 0.1, 100.0), step=10, seconds=1.0)
            stack.close()

        monkeypatch.setattr(time, "sleep", the_sweep_ends_meanwhile)
        text = printed(capsys, "status", str(sweep))
    assert text.index("1 running, 8 diverged, 8 finished") < text.index("8 diverged, 9 finished")
    assert "nobody is writing" in text


def test_export_import_and_merge(sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, other = tmp_path / "results.jsonl", tmp_path / "other"
    assert "16 results" in printed(capsys, "store", "export", str(sweep), str(file), "--curves")
    assert "16 trials added" in printed(capsys, "store", "import", str(other), str(file))
    merged = printed(capsys, "store", "merge", str(tmp_path / "all"), str(other), str(sweep))
    assert merged.splitlines() == [
        f"{other}: 16 trials added, 0 updated, 0 already there",
        f"{sweep}: 2 trials added, 0 updated, 16 already there",
    ]
    ours, theirs = (
        json.loads(printed(capsys, "results", str(f), "--json")) for f in (sweep, tmp_path / "all")
    )
    assert {row["id"]: row for row in ours["trials"]} == {row["id"]: row for row in theirs["trials"]}


def test_a_merge_brings_what_was_measured_at_initialization(
    sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of each figure the file of most networks, whole; a damaged one is named."""
    few, many, both = sweep, tmp_path / "many", tmp_path / "both"
    measure_probes(("figure2a", "figure2c"), few, 0, "cpu", 1, progress=False)
    measure_probes(("figure2c",), many, 1, "cpu", 2, progress=False)
    with open_writer(many):
        pass
    merged = printed(capsys, "store", "merge", str(both), str(few), str(many), str(few), str(many))
    assert [line.partition(": ")[2] for line in merged.splitlines()] == [
        "18 trials added, 0 updated, 0 already there, 2 measured figures",
        "0 trials added, 0 updated, 0 already there, 1 measured figure",
        "0 trials added, 0 updated, 18 already there",
        "0 trials added, 0 updated, 0 already there",
    ]

    def files(folder: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (folder / "initialization").iterdir()}

    assert files(both) == files(few) | files(many)
    assert set(collect([both]).probes) == {"figure2a", "figure2c"}
    assert collect([both]).probes["figure2c"].networks == 2
    (few / "initialization" / "figure2c.json").write_text("{")
    with pytest.raises(DataError, match=r"figure2c\.json: not a file that"):
        command("store", "merge", str(both), str(few))


def test_one_trial_of_one_epoch_is_not_written_as_many(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (config,) = expand({"model": "wrn10_1", "data": "digits", "lr": 0.1, "epochs": 1}).trials
    folder, file = str(tmp_path), str(tmp_path / "results.jsonl")
    with open_writer(tmp_path) as writer:
        writer.add([config])
        writer.start(identity(config), HERE, classes=10)
        writer.finish(identity(config), EpochRecord(1, 0.1, 50.0, 0.5, 0.1, 100.0), step=22, seconds=1.0)
    assert printed(capsys, "status", folder).startswith("1 trial: 1 finished\n1 of 1 epoch (100%)\n")
    assert printed(capsys, "store", "export", folder, file) == f"{file}: 1 result\n"
    imported = printed(capsys, "store", "import", str(tmp_path / "other"), file)
    assert imported == f"{file}: 1 trial added, 0 updated, 0 already there\n"


def test_a_conflict_is_said(sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results.jsonl"
    command("store", "export", str(sweep), str(file))
    text = re.sub(r', "sha256": "\w+"', "", file.read_text(), count=1)
    file.write_text(text.replace('"test_accuracy": 91.0', '"test_accuracy": 99.0', 1))
    command("store", "import", str(sweep), str(file))
    assert "has another result here, which is kept" in capsys.readouterr().err


def test_what_goes_wrong_is_said_and_nothing_is_made(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with pytest.raises(DataError, match="no sweep is there"):
        command("store", "merge", str(target), str(tmp_path / "none"))
    with pytest.raises(DataError, match="cannot be read"):
        command("store", "import", str(target), str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="no sweep to merge"):
        command("store", "merge", str(target))
    with pytest.raises(ConfigError, match="belong together"):
        command("results", str(target), "--best", "5")
    assert not target.exists()
