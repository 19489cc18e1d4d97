"""The examples run as they are written."""

from __future__ import annotations

import ast
import json
import runpy
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def show(cell, names):
    """Run a cell as a notebook does: the value of a last expression is shown, as HTML if it can."""
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if last is None:
        return None
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    return value._repr_html_() if hasattr(value, "_repr_html_") else repr(value)


def test_the_notebook_runs_from_top_to_bottom():
    notebook = json.loads((EXAMPLES / "watch.ipynb").read_text(encoding="utf-8"))
    names = {}
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    shown = [show(cell, names) for cell in cells]
    assert all(cell["outputs"] == [] for cell in notebook["cells"] if cell["cell_type"] == "code")
    probe, watch, _, comparison, depths = (text for text in shown if text is not None)
    assert probe.count("<tr>") == watch.count("<tr>") == 7
    assert "Biased towards the identity" in probe
    assert "Before: ResidualNet, 6 blocks" in comparison
    assert "grows as the number of blocks to the power" in depths
    assert names["watch"].report().steps == tuple(range(0, 60, 10))


def test_a_model_is_converted_and_trained(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["convert_your_model.py", "2"])
    runpy.run_path(str(EXAMPLES / "convert_your_model.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "20 norms removed, 10 blocks scaled" in printed
    assert "after 2 updates of 64 images" in printed


def test_the_digits_are_watched(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["watch_digits.py", str(tmp_path / "watch.png"), "11"])
    runpy.run_path(str(EXAMPLES / "watch_digits.py"), run_name="__main__")
    assert (tmp_path / "watch.png").stat().st_size > 10_000
    assert capsys.readouterr().out.count("2 measurements of 18 blocks, steps 0 to 10") == 2
