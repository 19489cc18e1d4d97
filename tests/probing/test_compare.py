"""Two models side by side, block by block."""

from __future__ import annotations

import csv
import io
import json

import pytest
import torch

import skipinit
from skipinit.errors import ConfigError
from skipinit.nets.create import create_model
from skipinit.probing.compare import compare
from skipinit.probing.measure import probe
from support.probe_models import Function

IMAGES = torch.Size([4, 3, 32, 32])
VECTORS = torch.Size([200, 100])


def wide(scheme, name="wrn16_1"):
    return create_model(name, scheme=scheme, num_classes=10, seed=0)


def test_models_and_reports_give_the_same_comparison():
    before, after = wide("batchnorm"), wide("skipinit")
    comparison = compare(before, after, IMAGES)
    assert comparison == compare(probe(before, IMAGES), probe(after, IMAGES))
    assert comparison == compare(before, probe(after, IMAGES), IMAGES)
    lines = list(csv.DictReader(io.StringIO(comparison.to_csv())))
    assert len(lines) == len(comparison.blocks) == len(json.loads(comparison.to_json())["blocks"])
    assert "12 blocks" not in str(comparison)
    assert "Before: ResidualNet, 6 blocks" in str(comparison)


def test_blocks_of_one_side_stay_in_order():
    comparison = compare(wide("skipinit", "wrn10_1"), wide("skipinit"), IMAGES)
    assert list(comparison.blocks) == [row.name for row in comparison.after.rows]
    assert sum(old is not None and new is not None for old, new in comparison.blocks.values()) == 3
    assert "equal in all common blocks" in comparison.summary()


def test_sides_without_common_blocks_or_rows_say_so(tmp_path):
    plain, block = Function(lambda m, x: m.a(x)), Function(lambda m, x: x + m.a(x))
    empty = compare(plain, plain, (8, 6))
    assert str(empty).splitlines() == [
        "Before: Function has no rows.",
        "After: Function has no rows.",
        "No block has the same name on both sides.",
    ]
    with pytest.raises(ConfigError, match="nothing to plot; no report has rows"):
        empty.plot(tmp_path / "empty.svg")
    half = compare(plain, block, (8, 6))
    page = half._repr_html_()
    assert "Before: Function has no rows." in page
    assert "After: Function, 1 block, typical branch share" in page
    assert "No block has the same name on both sides." in page


def test_the_picture_is_drawn(tmp_path):
    compare(wide("batchnorm"), wide("skipinit"), IMAGES).plot(tmp_path / "compare.svg")
    assert "<svg" in (tmp_path / "compare.svg").read_text()


def test_of_many_blocks_the_table_shows_some_and_the_one_that_differs_most():
    model = create_model("fc_linear", blocks=100, width=20, in_channels=20, seed=0)
    before = probe(model, torch.Size([10, 20]))
    model.blocks[62].branch[0].weight.data.zero_()
    comparison = compare(before, probe(model, torch.Size([10, 20])))
    _, *shown, rest = comparison.table().splitlines()
    names = [line.split()[0] for line in shown]
    assert len(names) == len(set(names)) == 25
    assert {"blocks.0.merge", "blocks.62.merge", "blocks.99.merge"} <= set(names)
    assert "differs most in blocks.62.merge" in comparison.summary()
    assert rest == "(75 more blocks)"
    assert len(comparison.table(every=True).splitlines()) == 101
    assert max(map(len, str(comparison).splitlines())) <= 80


def test_other_things_are_not_compared():
    for side in ("model", skipinit.WatchReport("Net", ())):
        with pytest.raises(ConfigError, match=r"models and reports of probe; a (str|WatchReport) was given"):
            compare(side, wide("skipinit"), IMAGES)


def test_a_model_needs_inputs():
    with pytest.raises(ConfigError, match="comparing a ResidualNet needs inputs"):
        compare(wide("skipinit"), wide("skipinit"))
