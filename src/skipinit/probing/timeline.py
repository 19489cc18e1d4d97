"""Pictures of a watched training: block by step as a heat map, and lines of some blocks over the steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..errors import ConfigError
from .history import QUANTITIES
from .plot import COLORS, MARKERS, check_suffix, legend_above, save
from .rendering import shorten_all

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .history import WatchReport

_LABELS = 24
"""At most this many blocks are named beside the heat map."""
_NAME = 26
"""Characters of a block's name for which there is room beside the heat map and in the legend."""


def plot_history(report: WatchReport, path: Path, quantity: str, blocks: Sequence[str] | None) -> None:
    """The heat map above, the lines below."""
    check_suffix(path)
    if blocks is not None and (isinstance(blocks, str) or not blocks):
        raise ConfigError(f"blocks={blocks!r} is not allowed; give a list of block names, or omit it")
    if not report.blocks:
        raise ConfigError(f"{path}: nothing to plot; {report.remark or 'no step was measured'}")
    chosen = some_blocks(report) if blocks is None else list(blocks)
    values = [report.series(block, quantity) for block in report.blocks]
    if all(value is None for series in values for value in series):
        raise ConfigError(
            f"{path}: {quantity} was measured in no block; it is one of {', '.join(QUANTITIES)}"
        )
    figure = Figure(figsize=(6.4, 6.4), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    figure.suptitle(report.model)
    draw_heat_map(upper, report, quantity)
    upper.set_xlabel("")
    draw_lines(lower, report, quantity, chosen)
    save(figure, path)


def some_blocks(report: WatchReport) -> list[str]:
    """One block for each colour, evenly spaced from the first to the last."""
    last, chosen = len(report.blocks) - 1, min(len(COLORS), len(report.blocks))
    return [report.blocks[round(i * last / max(1, chosen - 1))] for i in range(chosen)]


def draw_heat_map(axes: Axes, report: WatchReport, quantity: str) -> None:
    """A row for each block, the first at the top, and a column for each measured step."""
    series = [report.series(block, quantity) for block in report.blocks]
    values = np.array([[math.nan if v is None else v for v in row] for row in series], dtype=float)
    values[~np.isfinite(values)] = math.nan
    norm, colors = _color_scale(values, quantity)
    mesh = axes.pcolormesh(
        _edges(report.steps),
        np.arange(len(values) + 1) + 0.5,
        values,
        norm=norm,
        cmap=colors,
        rasterized=True,
    )
    axes.set_facecolor("#dddddd")  # Not measured, or NaN.
    axes.figure.colorbar(mesh, ax=axes, label=QUANTITIES[quantity])
    axes.invert_yaxis()
    axes.set_xlabel("step")
    if len(values) <= _LABELS:
        axes.set_yticks(range(1, len(values) + 1), shorten_all(report.blocks, _NAME), fontsize="x-small")
    else:
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel("residual block, ℓ")


def draw_lines(axes: Axes, report: WatchReport, quantity: str, blocks: Sequence[str]) -> None:
    """One line for each of these blocks over the steps."""
    names = dict(zip(report.blocks, shorten_all(report.blocks, _NAME), strict=True))
    positive = False
    for index, block in enumerate(blocks):
        points = [
            (step, value)
            for step, value in zip(report.steps, report.series(block, quantity), strict=True)
            if value is not None and math.isfinite(value)
        ]
        positive = positive or any(value > 0 for _, value in points)
        if points:
            color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
            axes.plot(
                *zip(*points, strict=True), color=color, marker=marker, markersize=3.5, linewidth=1,
                markerfacecolor="none", markevery=max(1, len(points) // 20),
                label=names[block],
            )  # fmt: skip
    if quantity not in ("branch_share", "scale") and positive:
        axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel(QUANTITIES[quantity])
    legend_above(axes, 2)
    axes.spines[["top", "right"]].set_visible(False)


def _color_scale(values: NDArray[np.float64], quantity: str) -> tuple[Normalize, str]:
    """Linear from 0 for shares, two colours around 0 for scales, logarithmic for norms and variances."""
    known = values[np.isfinite(values)]
    top = float(np.abs(known).max()) if known.size else 1.0
    if quantity == "scale":
        return TwoSlopeNorm(0, -(top or 1.0), top or 1.0), "PuOr"
    positive = known[known > 0]
    if quantity == "branch_share" or not positive.size:
        return Normalize(0, max(top, 1e-9)), "viridis"
    return LogNorm(float(positive.min()), max(top, float(positive.min()) * 1.01)), "viridis"


def _edges(steps: Sequence[int]) -> list[float]:
    """Borders between the columns: halfway between two measured steps."""
    if len(steps) == 1:
        return [steps[0] - 0.5, steps[0] + 0.5]
    between = [(a + b) / 2 for a, b in pairwise(steps)]
    return [steps[0] - (between[0] - steps[0]), *between, steps[-1] + (steps[-1] - between[-1])]
