"""One picture of several probes: variances and branch shares over the blocks, a line for each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..errors import ConfigError
from .plot import COLORS, MARKERS, check_suffix, save

if TYPE_CHECKING:
    from .balance import ProbeReport


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
    upper.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, fontsize="small")
    lower.set_ylabel("branch share of output variance")
    lower.set_ylim(-0.02, 1.02)
    lower.set_xlabel("depth of the residual block, ℓ")
    lower.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)
