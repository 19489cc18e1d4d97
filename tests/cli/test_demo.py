"""The demo, in little: its table fills, a log has a line for each cell, and it says what differs."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from skipinit.cli import demo as command
from skipinit.cli import main
from skipinit.paper.cells import ExhibitCell
from skipinit.paper.exhibits import EXHIBITS
from skipinit.paper.presets import PRESETS, Effort
from skipinit.sweeping.engine import Outcome
from skipinit.sweeping.store import open_writer
from support.made_up_trials import HERE, Scores, trials, write_store

FAILS = {("skipinit alpha=1", 100), ("skipinit alpha=1", 1000), ("divide-sqrt2", 1000)}


def fill(folder: Path, skipinit: float | None = 40.0) -> None:
    """All as in the paper, but for one cell; α = 1 explodes, what is divided by √2 stays at chance."""

    def scores(cell: ExhibitCell) -> Scores:
        place = cell.method.name, cell.at
        if place == ("skipinit", 100):
            return None if skipinit is None else (skipinit, 1.0)
        if place == ("divide-sqrt2", 1000):
            return 10.0, 2.3
        return None if place in FAILS else (95.0, 0.1)

    write_store(folder, trials("demo", scores, names=("table1",)))


def board_over(folder: Path, console: Console) -> command.Board:
    board = command.Board(console, folder, seed=0, seconds=lambda: 12.0)
    board.read()
    return board


def shown(folder: Path) -> str:
    console = Console(width=80, file=io.StringIO(), force_terminal=True, highlight=False)
    board = board_over(folder, console)
    with console.capture() as captured:
        console.print(board)
        console.print(board.summary())
    return captured.get()


def test_cells_that_agree_and_one_that_is_left_out(tmp_path: Path) -> None:
    fill(tmp_path)
    text = shown(tmp_path)
    assert "10 of 11 cells agree with the paper on which networks train" in text
    assert text.count("✓") == 10
    assert text.count("left out") == 1
    assert "Left out: Divide residual block by √2, 100 layers" in text
    assert "✗" not in text
    assert text.count("paper fails") == 3
    assert (text.count("explodes"), text.count("at chance ·")) == (2, 1)
    reason = "at chance after 1 epoch only; in the paper it fails"
    assert f"· Divide residual block by √2, 1000 layers: {reason}." in " ".join(text.split())
    assert "The accuracies are not comparable" in text
    assert "95.0 ✓" in text
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    assert max(map(len, plain.splitlines())) <= 80


@pytest.mark.parametrize(
    ("skipinit", "line"),
    [
        (None, "✗ SkipInit (α = 0), 100 layers: fails; in the paper it trains."),
        (10.0, "· SkipInit (α = 0), 100 layers: at chance after 3 epochs only; in the paper it trains."),
    ],
)
def test_a_cell_that_does_not_agree_is_named(tmp_path: Path, skipinit: float | None, line: str) -> None:
    fill(tmp_path, skipinit)
    text = shown(tmp_path)
    assert "9 of 11 cells agree" in text
    assert line in " ".join(text.split())


def test_the_table_shows_what_waits_and_what_trains(tmp_path: Path) -> None:
    planned = [each.config for each in trials("demo", names=("table1",)) if each.config.seed == 0]
    console = Console(width=80, file=io.StringIO(), force_terminal=True)
    with open_writer(tmp_path) as writer:
        writer.add(planned)
        writer.start(next(trials("demo", names=("table1",))).id, HERE, 10)
        board = board_over(tmp_path, console)
        with console.capture() as captured:
            console.print(board)
    assert captured.get().count("waiting") == 10
    assert captured.get().count("epoch 1 of") == 1


def test_a_log_has_a_line_for_every_cell_that_ended(tmp_path: Path) -> None:
    fill(tmp_path)
    console = Console(width=80, file=io.StringIO())
    board = board_over(tmp_path, console)
    board.read()
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 11, "each once"
    assert "  12 s  1000 layers, SkipInit (α = 1): explodes; paper: fails" in lines
    assert "  12 s  16 layers, SkipInit (α = 0): 95.0; paper: 93.3" in lines


def test_the_time_counts_earlier_parts(tmp_path: Path) -> None:
    for file in (tmp_path / "seconds.txt", tmp_path / "nowhere" / "seconds.txt"):
        with command._clock(file) as seconds:
            assert seconds() < 60
    (tmp_path / "seconds.txt").write_text("100.0\n")
    with command._clock(tmp_path / "seconds.txt") as seconds:
        assert 100 <= seconds() < 160
    assert 100 <= float((tmp_path / "seconds.txt").read_text()) < 160
    assert not (tmp_path / "nowhere").exists()


def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    little = replace(PRESETS["demo"], depths={16: Effort(1, (0,))})
    monkeypatch.setitem(PRESETS, "demo", little)
    monkeypatch.setitem(EXHIBITS, "figure2", replace(EXHIBITS["figure2"], probes=("figure2a",)))
    assert command.demo(seed=3, out=tmp_path / "demo") == 0
    text = capsys.readouterr().out
    assert text.partition("\n")[0].endswith(f"Everything goes into {tmp_path / 'demo'}.")
    assert len(re.findall(r"^ +\d+ s  16 layers, ", text, flags=re.MULTILINE)) == 4
    assert re.search(r"[0-4] of 4 cells agree with the paper", text)
    assert f"Open {tmp_path / 'demo' / 'report.html'} in a browser" in text
    assert "demo (digits)" in (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")


def test_a_demo_that_is_stopped_says_how_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path)
    monkeypatch.setattr(
        "skipinit.paper.reproduce.reproduce", lambda *names, **options: Outcome(3, 0, 5, interrupted=True)
    )
    assert main(["demo", "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().out.endswith("\nStopped. Run the same command again to resume.\n")
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("line", command._NEXT.splitlines()[1:])
def test_what_to_try_next_is_a_command(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = line.split("   ")[0].split()
    with pytest.raises(SystemExit) as left:
        main([*words[1:], "--help"])
    assert left.value.code == 0
    options = {word for word in words if word.startswith("--")}
    assert options <= set(capsys.readouterr().out.replace(",", " ").split())
