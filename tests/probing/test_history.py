"""How a watched training is shown: text, CSV, JSON, pictures, and HTML for notebooks."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections import Counter

import pytest
from torch import nn

from skipinit.errors import ConfigError
from skipinit.probing.compare import Comparison
from skipinit.probing.depths import DepthCheck
from skipinit.probing.history import Measurement, WatchReport, WatchRow, series_by_block
from skipinit.probing.measure import probe
from skipinit.probing.rendering import shorten_all
from support.probe_models import Function, vectors


def measured(step, scale):
    rows = (
        WatchRow("blocks.0", 1, 1.0, 1.0, None, 0.1, 0.2, 1e-3),
        WatchRow("blocks.1", 2, 2.0, 2.0 * scale**2, scale, 0.3, 0.4, 2e-3),
    )
    return Measurement(step, rows)


REPORT = WatchReport("Net", (measured(0, 0.0), measured(10, 0.1), measured(20, -0.5)))


def test_series_are_over_the_steps():
    assert REPORT.steps == (0, 10, 20)
    assert REPORT.blocks == ("blocks.0", "blocks.1")
    assert REPORT.series("blocks.1") == pytest.approx([0, 0.01 / 1.01, 0.2])
    assert REPORT.series("blocks.0", "scale") == [None, None, None]
    with pytest.raises(ConfigError, match=r"block 'blocks.2' is not known; did you mean"):
        REPORT.series("blocks.2")
    with pytest.raises(ConfigError, match="quantity 'shares' is not known"):
        REPORT.series("blocks.1", "shares")


def test_text_fits_a_terminal_and_says_what_changed():
    text = str(REPORT)
    assert max(map(len, text.splitlines())) <= 80
    assert "share 0" in text
    assert "α 20" in text
    assert "changed most in blocks.1: 0 % to 20.0 %" in text


def test_branches_that_stay_at_nothing_are_no_change_and_can_be_drawn(tmp_path):
    rows = (WatchRow("a", 1, 1.0, 0.0, 0.0, 0.1, 0.0, 0.0), WatchRow("b", 2, 1.0, 0.0, 0.0, 0.1, 0.0, 0.0))
    silent = WatchReport("Net", (Measurement(0, rows), Measurement(1, rows)))
    assert "The branch shares did not change." in silent.summary()
    silent.plot(tmp_path / "history.png", "branch_variance")


def test_csv_and_json_hold_every_row():
    lines = list(csv.DictReader(io.StringIO(REPORT.to_csv())))
    assert [int(line["step"]) for line in lines] == [0, 0, 10, 10, 20, 20]
    assert float(lines[-1]["scale"]) == -0.5
    content = json.loads(REPORT.to_json())
    assert content["measurements"][2]["rows"][1]["branch_share"] == pytest.approx(0.2)


def test_plain_data_and_back_is_the_same():
    for measurement in REPORT.measurements:
        assert Measurement.from_dict(json.loads(json.dumps(measurement.to_dict()))) == measurement


def test_infinity_is_named_and_is_valid_json():
    bad = Measurement(30, (WatchRow("blocks.0", 1, math.inf, 1.0), WatchRow("blocks.1", 2, math.nan, 1.0)))
    report = WatchReport("Net", (*REPORT.measurements, bad))
    assert "NaN or infinity first appears at step 30, in blocks.0" in str(report)
    assert json.loads(report.to_json())["measurements"][3]["rows"][0]["skip_variance"] is None


def test_a_gradient_that_is_not_finite_is_named_and_shares_are_compared_where_both_are_known():
    bad = Measurement(0, (WatchRow("a", 1, math.nan, 1.0), WatchRow("b", 2, 1.0, 1.0, None, math.inf)))
    good = Measurement(1, (WatchRow("a", 1, 1.0, 1.0), WatchRow("b", 2, 1.0, 3.0)))
    text = WatchReport("Net", (bad, good)).summary()
    assert "at step 0, in a: variance of the skip" in text
    assert "changed most in b: 50.0 % to 75.0 %" in text
    text = WatchReport("Net", (good, Measurement(2, bad.rows[1:]))).summary()
    assert "at step 2, in b: gradient norm of the block's output" in text


def test_one_measurement_of_one_block():
    report = WatchReport("Net", (Measurement(7, (WatchRow("a", 1, 1.0, 1.0, 0.5),)),))
    assert report.table().splitlines()[0].split() == ["block", "share", "7", "α", "7"]
    assert report.summary() == "Net: 1 measurement of 1 block, step 7."


def test_long_names_fit_a_terminal(tmp_path):
    rows = tuple(
        WatchRow(f"model.encoder.layers.{i}.attention.output", i, 1.0, 1e-5, None, 1e-5, 1e-5, 1e-5)
        for i in (1, 2)
    )
    report = WatchReport("Net", (Measurement(1000, rows), Measurement(2000, rows)))
    assert max(map(len, str(report).splitlines())) <= 80
    assert [line.split()[0][-18:] for line in report.table().splitlines()[1:]] == [
        "1.attention.output", "2.attention.output"
    ]  # fmt: skip
    assert shorten_all(["a.long.name", "b.long.name", "x"], 5) == ["a.long.name", "b.long.name", "x"]


def test_names_that_end_alike_are_told_apart_by_what_comes_before():
    names = [f"encoder.stages.{i}.layers.{j}.residual_block.merge" for i in "01" for j in "01"]
    assert shorten_all(names, 16) == [
        "…ges.0.layers.0…",
        "…ges.0.layers.1…",
        "…ges.1.layers.0…",
        "…ges.1.layers.1…",
    ]
    assert shorten_all(["a.merge", "b.merge"], 7) == ["a.merge", "b.merge"]


@pytest.mark.parametrize(
    "name",
    ["encoder.stages.{}.blocks_of_this_stage.{}.merge_of_skip_and_branch", "stages.{1}." + 40 * "x" + ".{0}"],
)
def test_long_names_leave_room_for_the_heat_map(name):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from skipinit.probing.plot import draw_heat_map, draw_lines

    rows = tuple(WatchRow(name.format(i % 3, i), i + 1, 1.0, 0.5) for i in range(12))
    report = WatchReport("Net", (Measurement(0, rows), Measurement(10, rows)))
    figure = Figure(figsize=(6.4, 6.4), layout="constrained")
    upper, lower = figure.subplots(2, 1)
    draw_heat_map(upper, report, "branch_share")
    draw_lines(lower, report, "branch_share", report.blocks[:4])
    FigureCanvasAgg(figure).draw()
    assert len({label.get_text() for label in upper.get_yticklabels()}) == 12
    assert upper.get_position().width > 0.5
    assert lower.get_legend().get_window_extent().x1 <= figure.bbox.x1


def test_of_many_blocks_the_table_shows_some_and_the_one_that_changed_most():
    def measured(step, branch):
        rows = (WatchRow(f"blocks.{i}", i, 1.0, branch if i == 371 else 1.0) for i in range(1, 499))
        return Measurement(step, tuple(rows))

    report = WatchReport("Net", (measured(0, 1.0), measured(9, 3.0)))
    _, *shown, rest = report.table().splitlines()
    assert {"blocks.1", "blocks.371", "blocks.498"} <= {line.split()[0] for line in shown}
    assert (len(shown), rest) == (25, "(473 more blocks)")
    assert len(report.table(every=True).splitlines()) == 499
    assert len(report.to_csv().splitlines()) == 1 + 2 * 498


def test_blocks_keep_their_order_when_layers_are_dropped():
    whole = Measurement(0, tuple(WatchRow(name, i, 1.0, 1.0) for i, name in enumerate("abc", 1)))
    dropped = Measurement(1, (WatchRow("c", 1, 1.0, 1.0),))
    assert WatchReport("Net", (whole, dropped)).blocks == ("a", "b", "c")


def test_without_matplotlib_pictures_name_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    report = probe(Function(lambda m, x: x + m.a(x)), vectors(8))
    for drawn in (REPORT, Comparison(report, report), DepthCheck((), (report,))):
        with pytest.raises(ConfigError, match=r"a plot needs matplotlib; pip install 'skipinit\[lab\]'"):
            drawn.plot("picture.png")


@pytest.mark.parametrize("quantity", ["branch_share", "scale", "gradient_norm", "update_ratio"])
def test_pictures_are_drawn(tmp_path, quantity):
    path = tmp_path / "history.svg"
    REPORT.plot(path, quantity)
    assert "<svg" in path.read_text()


def test_a_picture_of_one_step_or_with_gaps(tmp_path):
    gap = Measurement(30, REPORT.measurements[0].rows[1:])
    for measurements in (REPORT.measurements[:1], (*REPORT.measurements, gap)):
        WatchReport("Net", measurements).plot(tmp_path / "history.png", blocks=["blocks.1"])
    for blocks in ([], "blocks.1"):
        with pytest.raises(ConfigError, match="give a list of block names"):
            REPORT.plot(tmp_path / "history.png", blocks=blocks)
    with pytest.raises(ConfigError, match="scale was measured in no block"):
        WatchReport("Net", (Measurement(0, REPORT.measurements[0].rows[:1]),)).plot("x.png", "scale")


@pytest.mark.parametrize(("steps", "ticks"), [((0,), [0]), ((0, 2, 4), [0, 1, 2, 3, 4]), ((137,), [137])])
def test_steps_are_whole_numbers_from_the_first_measured_one_to_the_last(steps, ticks):
    from matplotlib.figure import Figure

    from skipinit.probing.plot import draw_heat_map, draw_lines

    rows = tuple(WatchRow(f"b{i}", i, 1.0, 0.25) for i in range(1, 31))
    report = WatchReport("Net", tuple(Measurement(step, rows) for step in steps))
    upper, lower = Figure().subplots(2)
    draw_heat_map(upper, report, "branch_share")
    draw_lines(lower, report, "branch_share", ["b1"])
    assert list(upper.get_xticks()) == list(lower.get_xticks()) == ticks
    assert upper.get_ylabel() == "residual block, ℓ"  # So many have numbers, not names.


def test_html_is_escaped_and_has_bars():
    html = REPORT._repr_html_()
    assert html.count("<tr>") == 3
    assert "width:16px" in html  # a fifth of 80 pixels
    evil = WatchReport("<script>", (Measurement(0, (WatchRow("<b>", 1, 1.0, 1.0),)),))
    assert "<script>" not in evil._repr_html_()
    assert "&lt;b&gt;" in evil._repr_html_()


def test_probes_have_html_too():
    model = Function(lambda m, x: x + m.a(x))
    html = probe(model, vectors(8))._repr_html_()
    assert "Function" in html
    assert "towards the identity" in html
    assert "no residual add" in probe(nn.Identity(), vectors(8))._repr_html_()
    long = WatchReport("Net", (Measurement(0, tuple(WatchRow(f"b{i}", i, 1.0, 1.0) for i in range(500))),))
    assert "300 more" in long._repr_html_()


def test_a_long_training_of_a_deep_network_is_read_in_one_pass():
    """Each row is read once for the picture, not once for each block."""
    reads = Counter()

    class CountedRow(WatchRow):
        __slots__ = ()

        @property
        def branch_share(self):
            reads[self.name] += 1
            return 0.5

    rows = tuple(CountedRow(f"b{i}", i, 1.0, 1.0) for i in range(50))
    report = WatchReport("Net", tuple(Measurement(step, rows) for step in range(40)))
    assert series_by_block(report, "branch_share") == {f"b{i}": [0.5] * 40 for i in range(50)}
    assert reads == {f"b{i}": 40 for i in range(50)}
