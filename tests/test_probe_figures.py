"""Figures 2a, 2b, 2c and 5 of the paper, measured on its own networks, against its theory and captions."""

from __future__ import annotations

import math
import os
from itertools import pairwise
from statistics import mean

import pytest
import torch

from skipinit.data.fetch import find
from skipinit.probing.figures import FIGURES, MeasuredFigure, measure_figure


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Small matrices on few cores: a second thread only waits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _ratios(rows, field):
    return [getattr(row, field) / row.depth for row in rows]


def test_figure_2a_doubles_with_each_block():
    rows = measure_figure("figure2a").report.rows
    steps = [math.log2(after.skip_variance / row.skip_variance) for row, after in pairwise(rows)]
    assert len(rows) == 30
    assert mean(steps) == pytest.approx(1, abs=0.02)
    assert [row.branch_variance / row.skip_variance for row in rows] == pytest.approx([1] * 30, abs=0.05)


def test_figure_2b_grows_by_one_with_each_block():
    rows = measure_figure("figure2b").report.rows
    assert len(rows) == 100
    assert _ratios(rows, "skip_variance") == pytest.approx([1] * 100, abs=0.05)
    assert [row.branch_variance for row in rows] == pytest.approx([1] * 100, abs=0.05)
    assert _ratios(rows, "moving_variance") == pytest.approx([1] * 100, abs=0.05)
    assert max(row.squared_moving_mean for row in rows) < 1e-6  # "close to zero (not shown)"


def test_figure_5_splits_by_pi():
    """One network's mean square of 1000 channel means has a standard deviation of sqrt(2/1000) = 4.5 %.

    So each block may be off by four of those, and the mean of three networks over blocks by 5 %.
    """
    networks = [measure_figure("figure5", seed).report.rows for seed in range(3)]
    for rows in networks:
        assert len(rows) == 100
        assert _ratios(rows, "moving_variance") == pytest.approx([1 - 1 / math.pi] * 100, rel=0.05)
        assert _ratios(rows, "squared_moving_mean") == pytest.approx([1 / math.pi] * 100, rel=4 * 0.045)
        assert [row.branch_variance for row in rows] == pytest.approx([1] * 100, abs=0.07)
    together = mean(ratio for rows in networks for ratio in _ratios(rows, "squared_moving_mean"))
    assert together == pytest.approx(1 / math.pi, rel=0.05)


@pytest.mark.skipif(
    not os.environ.get("SKIPINIT_DATA") or find("cifar-10-batches-bin", "cifar-10-batches-py") is None,
    reason="CIFAR-10 is not under SKIPINIT_DATA",
)
def test_figure_2c_on_cifar10_is_linear_with_a_coefficient_slightly_below_one():
    figure = measure_figure("figure2c")
    growth = figure.report.verdict.growth
    assert figure.inputs == "CIFAR-10 images"
    assert growth.law == "linear"
    assert 0.8 < growth.rate < 1.0
    rows = figure.report.rows
    assert all(row.moving_variance < row.skip_variance for row in rows)
    assert rows[-1].squared_moving_mean > 10 * rows[0].squared_moving_mean  # "causes ... to grow with depth"


def test_figure_2c_without_cifar10_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr("skipinit.probing.figures.find", lambda *names: None)
    figure = measure_figure("figure2c")
    assert "CIFAR-10 not found" in figure.draw().axes[0].get_title()
    paths = figure.save(tmp_path / "fallback")
    assert [path.name for path in paths] == ["fallback.png", "fallback.svg"]
    assert all(path.stat().st_size > 1000 for path in paths)


def test_pictures_show_every_measured_point_and_the_law():
    report = measure_figure("figure2b").report
    axes = MeasuredFigure("figure2b", report, "Gaussian vectors").draw().axes[0]
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert list(lines["theory: ℓ"].get_ydata()) == list(range(1, 101))
    assert list(lines["skip path"].get_ydata()) == [row.skip_variance for row in report.rows]
    assert {quantity.label for quantity in FIGURES["figure2b"].quantities} <= lines.keys()
