"""Pictures of a probe: measured points over predicted lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..errors import ConfigError
from .laws import predict

if TYPE_CHECKING:
    from .balance import ProbeReport

SUFFIXES = (".png", ".svg", ".pdf")
# The colours of Okabe and Ito, which colour-blind readers tell apart; markers differ too.
SKIP, BRANCH, MOVING_VARIANCE, MOVING_MEAN = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
# Two series that coincide stay visible: a small square inside a larger circle.
_MARKERS = {SKIP: ("o", 6.5), BRANCH: ("s", 3.5), MOVING_VARIANCE: ("^", 5), MOVING_MEAN: ("D", 4)}


@dataclass(frozen=True)
class Series:
    """One measured quantity over depth, and what theory says it should be."""

    label: str
    color: str
    measured: Sequence[float | None]
    predicted: Sequence[float] | None = None
    law: str = ""
    band: tuple[Sequence[float], Sequence[float]] | None = None
    """Lower and upper edge of the measurements' scatter."""


def check_suffix(path: Path) -> None:
    """Refuse a file name whose format is not known, before anything is computed."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"{path}: no picture format {path.suffix!r}; use one of {', '.join(SUFFIXES)}")


def draw(
    axes: Axes, depths: Sequence[int], series: Sequence[Series], scale: Literal["linear", "log"]
) -> None:
    """Measured points over predicted lines; on a log scale zeros have no place and are left out."""
    for one in series:
        points = [
            (depth, value)
            for depth, value in zip(depths, one.measured, strict=True)
            if value is not None and (scale == "linear" or value > 0)
        ]
        if one.predicted is not None:
            law = f"theory: {one.law}" if one.law else None
            axes.plot(depths, one.predicted, color=one.color, linewidth=1, label=law, zorder=1)
        if one.band is not None:
            lower, upper = one.band
            axes.fill_between(depths, lower, upper, color=one.color, alpha=0.2, linewidth=0, zorder=0)
        if points:
            marker, size = _MARKERS[one.color]
            axes.plot(
                *zip(*points, strict=True), marker, color=one.color, markersize=size,
                markerfacecolor="none", markevery=max(1, len(points) // 50), label=one.label, zorder=2,
            )  # fmt: skip
    axes.set_yscale(scale, **({"base": 2} if scale == "log" else {}))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("depth of the residual block, ℓ")
    axes.spines[["top", "right"]].set_visible(False)


def legend_above(axes: Axes) -> None:
    """Where no curve of any model can lie under it."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False, fontsize="small")


def plot_report(report: ProbeReport, path: Path) -> None:
    """Variances above, branch shares below, over depth."""
    check_suffix(path)
    if not report.rows:
        raise ConfigError(f"{path}: nothing to plot; {report.verdict}")
    rows, theory = report.rows, predict(report)
    depths = [row.depth for row in rows]
    skip, branch = [row.skip_variance for row in rows], [row.branch_variance for row in rows]
    variances = [
        Series("skip", SKIP, skip, theory.skip if theory else None, "skip"),
        Series("end of branch", BRANCH, branch, theory.branch if theory else None, "end of branch"),
    ]
    if any(row.moving_variance is not None for row in rows):
        moving = [row.moving_variance for row in rows]
        variances.append(Series("BatchNorm moving variance", MOVING_VARIANCE, moving))
    figure = Figure(figsize=(6.4, 6.4), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    draw(upper, depths, variances, "log" if max(skip) > 1000 * min(skip) else "linear")
    figure.suptitle(report.model)
    legend_above(upper)
    upper.set_xlabel("")
    upper.set_ylabel("variance")
    shares = [row.branch_share for row in rows]
    share = Series("branch share", BRANCH, shares, theory.share if theory else None, "branch share")
    draw(lower, depths, [share], "linear")
    legend_above(lower)
    lower.set_ylabel("branch share of output variance")
    lower.set_ylim(-0.02, 1.02)
    save(figure, path)


def save(figure: Figure, path: Path) -> None:
    """Write the picture whole or not at all."""
    check_suffix(path)
    FigureCanvasAgg(figure)
    unfinished = path.with_name(f".{path.stem}.unfinished{path.suffix}")
    try:
        # Fixed metadata and ids: the same figure is the same file.
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
        figure.savefig(unfinished, dpi=200, metadata=metadata)
        unfinished.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: the picture cannot be written there ({error.strerror})") from error
    finally:
        unfinished.unlink(missing_ok=True)
