"""Plots of a probe, measured points over predicted lines, and of several probes, a line for each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import matplotlib
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..errors import ConfigError
from ..files import write_whole
from .laws import Prediction, predict, stages

if TYPE_CHECKING:
    from .balance import ProbeReport

SUFFIXES = (".png", ".svg", ".pdf")
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
"""Those of Okabe and Ito, which colour-blind readers can tell apart; markers differ too."""
MARKERS = ("o", "s", "^", "D")
SKIP, BRANCH, MOVING_VARIANCE, MOVING_MEAN = COLORS
# Where two series coincide, both stay visible: a small square in a circle, a thin line on a thick one.
_MARKER_SIZES = (6.5, 3.5, 5, 4)
_LINE_WIDTHS = (2.5, 1, 1, 1)


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
            line = [(float(d), p) for d, p in zip(depths, one.predicted, strict=True)]
            for start in sorted((start for start in one.breaks if start), reverse=True):
                line.insert(start, (math.nan, math.nan))
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
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("depth of the residual block, ℓ")
    axes.spines[["top", "right"]].set_visible(False)


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
    lower.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)


def save(figure: Figure, path: Path) -> None:
    """Write the picture in the format of the suffix; the same figure gives the same file."""
    check_suffix(path)
    FigureCanvasAgg(figure)
    kind = path.suffix.lower()[1:]
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with matplotlib.rc_context({"svg.hashsalt": "skipinit"}):
        write_whole(path, lambda file: figure.savefig(file, format=kind, dpi=200, metadata=metadata))
