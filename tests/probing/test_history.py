"""How a watched training is shown: text, CSV, JSON, pictures, and HTML for notebooks."""

from __future__ import annotations

import csv
import io
import json
import math

import pytest
from torch import nn

from skipinit.errors import ConfigError
from skipinit.probing.history import Measurement, WatchReport, WatchRow
from skipinit.probing.measure import probe
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


@pytest.mark.parametrize("quantity", ["branch_share", "scale", "gradient_norm", "update_ratio"])
def test_pictures_are_drawn(tmp_path, quantity):
    path = tmp_path / "history.svg"
    REPORT.plot(path, quantity)
    assert "<svg" in path.read_text()


def test_a_picture_of_one_step_or_with_gaps(tmp_path):
    gap = Measurement(30, REPORT.measurements[0].rows[1:])
    for measurements in (REPORT.measurements[:1], (*REPORT.measurements, gap)):
        WatchReport("Net", measurements).plot(tmp_path / "history.png", blocks=["blocks.1"])
    with pytest.raises(ConfigError, match="scale was measured in no block"):
        WatchReport("Net", (Measurement(0, REPORT.measurements[0].rows[:1]),)).plot("x.png", "scale")


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
