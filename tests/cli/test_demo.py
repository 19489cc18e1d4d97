"""The demo, in little: it trains, it shows its table beside the paper's, and it says what differs."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from skipinit.cli import demo as command
from skipinit.paper.cells import ExhibitCell
from skipinit.paper.exhibits import EXHIBITS
from skipinit.paper.presets import PRESETS, Effort
from skipinit.reporting.tables import ResultTable, make_table
from support.made_up_trials import Scores, make_collection, trials


def table_of(sqrt2: float | None) -> ResultTable:
    """All as in the paper, but for one cell."""
    fails = {("skipinit alpha=1", 100), ("skipinit alpha=1", 1000), ("divide-sqrt2", 1000)}

    def scores(cell: ExhibitCell) -> Scores:
        place = cell.method.name, cell.at
        if place == ("divide-sqrt2", 100):
            return None if sqrt2 is None else (sqrt2, 1.0)
        return None if place in fails else (95.0, 0.1)

    (cells,) = make_collection(trials("demo", scores, names=("table1",))).sets.values()
    table = make_table(EXHIBITS["table1"], "test_accuracy", cells)
    assert table
    return table


def shown(table: ResultTable) -> str:
    console = Console(width=140, file=io.StringIO())
    with console.capture() as captured:
        console.print(command._table(table))
        console.print(command._summary(table))
    return captured.get()


def test_twelve_cells_that_agree() -> None:
    text = shown(table_of(40.0))
    assert "12 of 12 cells agree with the paper on who trains and who fails" in text
    assert text.count("✓") == 12
    assert "✗" not in text
    assert text.count("paper fails") == 3
    assert "The accuracies themselves are not comparable" in text
    assert "95.0 ✓" in text
    assert "1000" in text


def test_a_cell_that_differs_is_named() -> None:
    text = shown(table_of(None))
    assert "11 of 12 cells agree" in text
    assert "✗ Divide residual block by √2, depth 100: fails; in the paper it trains." in text


def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    little = replace(PRESETS["demo"], depths={16: Effort(1, (0,))})
    monkeypatch.setitem(PRESETS, "demo", little)
    monkeypatch.setitem(EXHIBITS, "figure2", replace(EXHIBITS["figure2"], probes=("figure2a",)))
    assert command.demo(seed=3, out=tmp_path / "demo") == 0
    text = capsys.readouterr().out
    assert re.search(r"[0-4] of 4 cells agree with the paper", text)
    assert "Report:" in text
    assert "demo (digits)" in (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
