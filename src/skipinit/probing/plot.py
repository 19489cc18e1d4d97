"""Pictures: a probe as measured points over predicted lines, several probes as a line for each, and a watched
training as a heat map of block by step with lines of some blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import matplotlib
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm, Normalize, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..errors import ConfigError
from ..files import write_whole
from .history import QUANTITIES, series_by_block
from .laws import Prediction, predict, stages
from .rendering import shorten_all

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .balance import ProbeReport
    from .history import WatchReport

SUFFIXES = (".png", ".svg", ".pdf")
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
"""Those of Okabe and Ito, which colour-blind readers can tell apart; markers differ too."""
MARKERS = ("o", "s", "^", "D")
SKIP, BRANCH, MOVING_VARIANCE, MOVING_MEAN = COLORS
# Where two series coincide, both stay visible: a small square in a circle, a thin line on a thick one.
_MARKER_SIZES = (6.5, 3.5, 5, 4)
_LINE_WIDTHS = (2.5, 1, 1, 1)
_LABELS = 24
"""At most this many blocks are named beside the heat map."""
_NAME = 26
"""Characters of a block's name for which there is room beside the heat map and in the legend."""
_LONGEST_NAME = 32
"""Where blocks need longer names than this to be told apart, they have numbers."""


@dataclass(frozen=True)
class Series:
    """One measured quantity over depth, and its prediction."""

    label: str
    color: str
    """One of `COLORS`; it also decides the marker."""
    measured: Sequence[float | None]
    predicted: Sequence[float] | None = None
    law: str = ""
    band: tuple[Sequence[float], Sequence[float]] | None = None
    """Lower and upper edge of the measurements' scatter."""
    breaks: Sequence[int] = ()
    """Indices at which a stage begins: the predicted line is interrupted there."""


def check_suffix(path: Path) -> None:
    """Raise if the format of the file name is not known."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"{path}: no picture format {path.suffix!r}; use one of {', '.join(SUFFIXES)}")


def draw(
    axes: Axes, depths: Sequence[int], series: Sequence[Series], scale: Literal["linear", "log"]
) -> None:
    """Measured points over predicted lines. A log scale leaves zeros out."""
    for one in series:
        index = COLORS.index(one.color)
        points = [
            (depth, value)
            for depth, value in zip(depths, one.measured, strict=True)
            if value is not None and (scale == "linear" or value > 0)
        ]
        if one.predicted is not None:
            law = f"theory: {one.law}" if one.law else None
            line = _interrupted(list(zip(depths, one.predicted, strict=True)), one.breaks)
            width = _LINE_WIDTHS[index]
            axes.plot(*zip(*line, strict=True), color=one.color, linewidth=width, label=law, zorder=1)
        if one.band is not None:
            lower, upper = one.band
            axes.fill_between(depths, lower, upper, color=one.color, alpha=0.2, linewidth=0, zorder=0)
        if points:
            axes.plot(
                *zip(*points, strict=True), MARKERS[index], color=one.color, markersize=_MARKER_SIZES[index],
                markerfacecolor="none", markevery=max(1, len(points) // 50), label=one.label, zorder=2,
            )  # fmt: skip
    axes.set_yscale(scale, **({"base": 2} if scale == "log" else {}))
    axes.xaxis.set_major_locator(_whole_numbers())
    axes.set_xlabel("depth of the residual block, ℓ")
    axes.spines[["top", "right"]].set_visible(False)


def _interrupted(line: Sequence[tuple[float, float]], breaks: Sequence[int]) -> list[tuple[float, float]]:
    """The line with a gap before each break; where one point is left between two, a short level piece."""
    points: list[tuple[float, float]] = []
    for start, end in pairwise(sorted({0, *breaks, len(line)})):
        piece = line[start:end]
        if len(piece) == 1:
            ((x, y),) = piece
            piece = [(x - 0.25, y), (x + 0.25, y)]
        points += [*piece, (math.nan, math.nan)]
    return points[:-1]


def _whole_numbers() -> MaxNLocator:
    return MaxNLocator(integer=True, min_n_ticks=1)


def draw_variances(axes: Axes, report: ProbeReport, theory: Prediction | None = None) -> None:
    """The variances of skip and branch, and the moving variance where there is batch norm, over depth."""
    rows, breaks = report.rows, [stage[0] for stage in stages(report.adds)]
    skip, branch = [row.skip_variance for row in rows], [row.branch_variance for row in rows]
    series = [
        Series("skip", SKIP, skip, theory.skip if theory else None, "skip", breaks=breaks),
        Series(
            "end of branch", BRANCH, branch, theory.branch if theory else None, "end of branch", breaks=breaks
        ),
    ]
    if any(row.moving_variance is not None for row in rows):
        moving = [row.moving_variance for row in rows]
        series.append(Series("BatchNorm moving variance", MOVING_VARIANCE, moving))
    draw(axes, [row.depth for row in rows], series, "log" if max(skip) > 1000 * min(skip) else "linear")
    legend_above(axes)
    axes.set_ylabel("variance")


def legend_above(axes: Axes, columns: int = 3) -> None:
    """Put the legend above the axes, where it covers no curve."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, frameon=False, fontsize="small")


def plot_report(report: ProbeReport, path: Path) -> None:
    """Variances above, branch shares below, over depth."""
    check_suffix(path)
    if not report.rows:
        raise ConfigError(f"{path}: nothing to plot; {report.verdict}")
    figure = Figure(figsize=(6.4, 6.4), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    figure.suptitle(report.model)
    theory = predict(report)
    draw_variances(upper, report, theory)
    upper.set_xlabel("")
    shares = [row.branch_share for row in report.rows]
    breaks = [stage[0] for stage in stages(report.adds)]
    share = Series(
        "branch share", BRANCH, shares, theory.share if theory else None, "branch share", breaks=breaks
    )
    draw(lower, [row.depth for row in report.rows], [share], "linear")
    legend_above(lower)
    lower.set_ylabel("branch share of output variance")
    lower.set_ylim(-0.02, 1.02)
    save(figure, path)


def plot_overlay(reports: Mapping[str, ProbeReport], path: Path, title: str) -> None:
    """Variances of the skips above, branch shares below."""
    check_suffix(path)
    if not any(report.rows for report in reports.values()):
        raise ConfigError(f"{path}: nothing to plot; no report has rows")
    figure = Figure(figsize=(6.4, 6.4), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    figure.suptitle(title)
    # Few lines differ by hue; many are a sequence from dark to light.
    many = colormaps["viridis"]
    colors = COLORS if len(reports) <= len(COLORS) else [many(i / len(reports)) for i in range(len(reports))]
    positive: list[float] = []
    for index, (label, report) in enumerate(reports.items()):
        depths = [row.depth for row in report.rows]
        skips = [row.skip_variance for row in report.rows]
        positive += [value for value in skips if value > 0]
        for axes, values in ((upper, skips), (lower, [row.branch_share for row in report.rows])):
            axes.plot(
                depths, values, color=colors[index], marker=MARKERS[index % len(MARKERS)], markersize=4,
                markerfacecolor="none", markevery=max(1, len(depths) // 25), linewidth=1, label=label,
            )  # fmt: skip
    if positive and max(positive) > 100 * min(positive):
        upper.set_yscale("log")
    upper.set_ylabel("variance of the skip")
    legend_above(upper, 4)
    lower.set_ylabel("branch share of output variance")
    lower.set_ylim(-0.02, 1.02)
    lower.set_xlabel("depth of the residual block, ℓ")
    lower.xaxis.set_major_locator(_whole_numbers())
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)


def plot_history(report: WatchReport, path: Path, quantity: str, blocks: Sequence[str] | None) -> None:
    """The heat map above, the lines below."""
    check_suffix(path)
    if blocks is not None and (isinstance(blocks, str) or not blocks):
        raise ConfigError(f"blocks={blocks!r} is not allowed; give a list of block names, or omit it")
    if not report.blocks:
        raise ConfigError(f"{path}: nothing to plot; {report.remark or 'no step was measured'}")
    chosen = some_blocks(report) if blocks is None else list(blocks)
    if all(value is None for series in series_by_block(report, quantity).values() for value in series):
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
    series = series_by_block(report, quantity).values()
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
    _label_steps(axes, report.steps)
    if len(values) <= _LABELS:
        axes.set_yticks(range(1, len(values) + 1), _labels(report.blocks), fontsize="x-small")
    else:
        axes.yaxis.set_major_locator(_whole_numbers())
        axes.set_ylabel("residual block, ℓ")


def draw_lines(axes: Axes, report: WatchReport, quantity: str, blocks: Sequence[str]) -> None:
    """One line for each of these blocks over the steps."""
    names = dict(zip(report.blocks, _labels(report.blocks), strict=True))
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
    _label_steps(axes, report.steps)
    axes.set_ylabel(QUANTITIES[quantity])
    legend_above(axes, 2)
    axes.spines[["top", "right"]].set_visible(False)


def _labels(blocks: Sequence[str]) -> list[str]:
    short = shorten_all(blocks, _NAME)
    fit = all(len(name) <= _LONGEST_NAME for name in short)
    return short if fit else [f"block {depth}" for depth in range(1, len(blocks) + 1)]


def _label_steps(axes: Axes, steps: Sequence[int]) -> None:
    """Ticks at whole steps; the columns of the heat map begin before the first and end behind the last."""
    ticks = _whole_numbers().tick_values(steps[0], steps[-1])
    axes.set_xticks([tick for tick in ticks if steps[0] <= tick <= steps[-1]])
    axes.set_xlabel("step")


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


def save(figure: Figure, path: Path) -> None:
    """Write the picture in the format of the suffix; the same figure gives the same file."""
    check_suffix(path)
    FigureCanvasAgg(figure)
    kind = path.suffix.lower()[1:]
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with matplotlib.rc_context({"svg.hashsalt": "skipinit"}):
        write_whole(path, lambda file: figure.savefig(file, format=kind, dpi=200, metadata=metadata))
