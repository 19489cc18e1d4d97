"""The report of a probe: its forms, its verdict, and what it says when there are no rows."""

from __future__ import annotations

import csv
import io
import json
import math
import subprocess
import sys

import pytest
import torch

from skipinit.errors import ConfigError, SkipinitError
from skipinit.nets.create import create_model
from skipinit.probing.balance import ProbeRow
from skipinit.probing.measure import probe
from support.probe_models import Function, images, vectors

IMAGES, VECTORS = images(4), vectors(64)


def test_nonfinite_values_end_the_rows_and_name_the_block():
    def explode(m, x):
        for factor in (1.0, 1.0, 1e30, 1e30, 1.0):
            x = x + factor * m.a(x)
        return x

    report = probe(Function(explode), VECTORS)
    assert [row.name for row in report.rows] == ["Function", "Function#2", "Function#3"]
    assert report.first_nonfinite == "Function#4"
    assert all(math.isfinite(row.output_variance) for row in report.rows)
    assert "first appears in Function#4" in str(report.verdict)
    assert "1/sqrt(5)" in str(report.verdict)
    first = probe(Function(lambda m, x: x + math.inf * m.a(x)), VECTORS)
    assert (first.rows, first.first_nonfinite) == ((), "Function")
    assert "in the first block, Function" in str(first)
    assert json.loads(first.to_json())["rows"] == []


def test_model_without_residual_adds_gives_an_empty_report_that_says_what_was_seen(tmp_path):
    report = probe(Function(lambda m, x: m.a(x) + m.b(x) + m.table[0]), VECTORS)
    assert (report.rows, report.adds, report.num_blocks) == ((), (), 0)
    assert report.operations == 4  # two linear maps, two additions
    towers, bias = (
        "both operands went through as many layers: neither is a skip",
        "the operands differ in shape",
    )
    assert report.rejected == {towers: 1, bias: 1}
    text = str(report.verdict)
    assert " ".join(str(report).split()) == text
    assert "\n" not in text
    assert max(map(len, str(report).splitlines())) <= 80
    assert text.startswith("Function has no residual add, x + f(x) with layers in f.")
    assert f"1 because {towers}" in text
    assert report.verdict.biased_to_identity is None
    assert report.table() == ""
    assert len(report.to_csv().splitlines()) == 1
    assert json.loads(report.to_json())["verdict"]["text"] == text
    with pytest.raises(ConfigError, match="nothing to plot; Function has no residual add"):
        report.plot(tmp_path / "a.png")
    chain = probe(Function(lambda m, x: m.a(x).relu()), VECTORS)
    assert str(chain.verdict).endswith("Operations on these inputs: 2. Additions: none.")


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (lambda m, x: x[0] + m.a(x[0]), "the operands have fewer than two axes, examples and channels"),
        (lambda m, x: x.int() + x.flip(0).int(), "the operands are not floating point"),
    ],
)
def test_why_a_sum_of_two_vectors_or_of_numbers_is_none(forward, reason):
    assert probe(Function(forward), VECTORS).rejected == {reason: 1}


def test_variances_far_beyond_float32_are_measured():
    model = create_model("fc_linear", blocks=200, width=16, seed=0)
    report = probe(model, torch.randn(16, 100))
    assert report.rows[-1].output_variance > 1e45  # float32 ends at 3e38, and 200 doublings at 2e60
    assert report.first_nonfinite is None


def test_json_csv_and_table_hold_the_rows():
    report = probe(create_model("wrn16_1", scheme="skipinit", alpha=0.5, seed=0), IMAGES)
    loaded = json.loads(report.to_json())
    assert [row["name"] for row in loaded["rows"]] == [row.name for row in report.rows]
    assert loaded["rows"][2]["branch_share"] == report.rows[2].branch_share
    lines = list(csv.DictReader(io.StringIO(report.to_csv())))
    assert [float(line["skip_variance"]) for line in lines] == [row.skip_variance for row in report.rows]
    assert lines[0]["moving_variance"] == ""
    header, *body = report.table().splitlines()
    assert "before scalar" in header
    assert "moving var" not in header  # nothing is normalized here
    assert [line.split()[0] for line in body] == [row.name for row in report.rows]


def test_plots(tmp_path):
    report = probe(create_model("wrn16_1", seed=0), IMAGES)
    folder = tmp_path / "not" / "there yet"
    for suffix in (".png", ".svg", ".pdf"):
        report.plot(folder / f"a{suffix}")
        report.plot(str(folder / f"b{suffix}"))
        assert (folder / f"a{suffix}").read_bytes() == (folder / f"b{suffix}").read_bytes()
    assert (folder / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / "a.svg").read_text()
    assert len(list(folder.iterdir())) == 6
    with pytest.raises(ConfigError, match=r"no picture format '\.bmp'; use one of \.png, \.svg, \.pdf"):
        report.plot(tmp_path / "a.bmp")
    (tmp_path / "file").touch()
    with pytest.raises(SkipinitError, match="cannot be written"):
        report.plot(tmp_path / "file" / "a.png")


def test_a_stage_of_one_block_has_a_line_of_its_own():
    from matplotlib.figure import Figure

    from skipinit.probing.plot import SKIP, Series, draw

    axes = Figure().subplots()
    draw(axes, [1, 2, 3], [Series("skip", SKIP, [1, 2, 1], [1, 2, 1], breaks=[0, 2])], "linear")
    line = [point for point in axes.lines[0].get_xydata().tolist() if not math.isnan(point[0])]
    assert line == [[1, 1], [2, 2], [2.75, 1], [3.25, 1]]
    axes = Figure().subplots()
    draw(axes, [1], [Series("skip", SKIP, [1.5], [1.0])], "linear")
    assert [tick for tick in axes.get_xticks() if 0.7 < tick < 1.3] == [1]


def test_matplotlib_is_loaded_only_to_plot():
    code = (
        "import sys, torch, skipinit\n"
        "str(skipinit.probe(skipinit.create_model('wrn10_1'), torch.Size([2, 3, 8, 8])))\n"
        "sys.exit('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("broken", [None, "skip_variance", "branch_variance", "output_variance"])
def test_a_row_is_finite_if_both_operands_and_the_sum_are(broken):
    names = ("skip_variance", "branch_variance", "output_variance", "channel_variance")
    for bad in (math.nan, math.inf):
        values = {name: bad if name == broken else 1.0 for name in names}
        optional = {"branch_variance_before_scalar": None, "channel_mean_variance": 0.0}
        row = ProbeRow("a", 1, **values, **optional, moving_variance=None, squared_moving_mean=None)
        assert row.is_finite == (broken is None)
