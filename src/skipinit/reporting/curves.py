"""The paper's figures, drawn from what was measured, as SVG inside the page: text stays text, colours follow
light and dark.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from ..paper.cells import ExhibitCell
from ..paper.collect import Probed
from ..paper.exhibits import Curve, Exhibit, Result
from ..probing.history import QUANTITIES, WatchReport
from ..probing.plot import COLORS, MARKERS, draw_heat_map
from ..sweeping.summary import Metric
from ..training.records import EpochRecord

_STYLE: dict[Any, object] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "skipinit",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def new_panel() -> tuple[Figure, Axes]:
    """One panel, small enough to be read on a phone that is 390 pixels wide."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(3.9, 3.2), layout="constrained")
        return figure, figure.subplots()


def render(figure: Figure, id: str, label: str) -> str:
    """The figure as an `<svg>` element; `id` keeps the names inside it apart from other figures'."""
    text = io.StringIO()
    with matplotlib.rc_context(_STYLE):
        FigureCanvasSVG(figure)
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{id}-', svg)
    svg = re.sub(r"url\(#", f"url(#{id}-", svg)
    svg = re.sub(r'href="#', f'href="#{id}-', svg)
    svg = _themed(svg)
    viewbox = re.search(r'viewBox="[^"]*"', svg)
    assert viewbox, "matplotlib writes a viewBox"
    opening = f'<svg class="plot" role="img" aria-label="{escape(label)}" {viewbox[0]}'
    # xlink is how matplotlib refers to markers; HTML knows the prefix without a declaration.
    return re.sub(r"<svg[^>]*?>", f"{opening}>", svg, count=1)


def _themed(svg: str) -> str:
    """Black becomes the page's text colour, series colours its variables; no background."""
    svg = re.sub(r'<g id="[^"]*patch_1">.*?</g>', "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r"fill: ?#ffffff", "fill: none", svg, flags=re.IGNORECASE)
    for number, color in enumerate(COLORS):
        svg = re.sub(color, f"var(--series-{number})", svg, flags=re.IGNORECASE)
    return re.sub(r"#000000|\bblack\b", "currentColor", svg, flags=re.IGNORECASE)


_METRIC = {"test_accuracy": "test accuracy (%)", "train_loss": "training loss (cross entropy)"}
_BEST_RATE = {"test_accuracy": "best learning rate (accuracy)", "train_loss": "best learning rate (loss)"}
SHORT = {
    "batchnorm": "batch norm", "skipinit": "SkipInit (α = 0)", "skipinit alpha=1": "SkipInit from α = 1",
    "divide-sqrt2": "divided by √2", "none": "no normalization",
    "regularized-skipinit": "Regularized SkipInit",
}  # fmt: skip
GLANCE = ("batchnorm", "skipinit", "skipinit alpha=1", "divide-sqrt2")
"""The methods whose training the page opens with: two that train at any depth, two that do not."""


_OVER_BATCH_SIZE = ("batchnorm", "skipinit", "regularized-skipinit", "none")
"""Every method of the figures over batch size, in the order of their colours: the same in each figure."""


def draw_sweep(exhibit: Exhibit, metric: Metric, cells: Sequence[ExhibitCell], id: str) -> list[str]:
    """A panel for each curve of the figure, against batch size on log axes."""
    panels = []
    for curve in exhibit.curves:
        if shown := shown_in(exhibit, metric, curve, cells):
            figure, axes = new_panel()
            draw_over_batch(axes, metric, curve, shown)
            _legend(axes)
            label = f"{exhibit.panel(metric)}, {shown[0].label}: {axes.get_ylabel()} against batch size"
            panels.append(render(figure, f"{id}-{curve}", label))
    return panels


def shown_in(
    exhibit: Exhibit, metric: Metric, curve: Curve, cells: Iterable[ExhibitCell]
) -> list[ExhibitCell]:
    """The cells of a panel. A rate that was tried alone is not a best one."""
    mine = [cell for cell in cells if cell.exhibit.name == exhibit.name and metric in cell.results]
    return [cell for cell in mine if curve == "value" or len(cell.results[metric].tried) > 1]


def draw_over_batch(axes: Axes, metric: Metric, curve: Curve, cells: Sequence[ExhibitCell]) -> None:
    """A curve of each method of a figure, without the legend."""
    for method in cells[0].exhibit.methods:
        results = {cell.at: cell.results[metric] for cell in cells if cell.method.name == method}
        trained = {at: _point(each, curve) for at, each in sorted(results.items()) if not each.failed}
        _draw_curve(axes, trained, COLORS[_OVER_BATCH_SIZE.index(method)], SHORT[method])
    _batch_axis(axes, sorted({cell.at for cell in cells}))
    axes.set_ylabel((_METRIC if curve == "value" else _BEST_RATE)[metric])
    if curve == "rate":
        axes.set_yscale("log", base=2)
    elif metric == "train_loss":
        _loss_axis(axes)


def draw_training(cells: Sequence[ExhibitCell], curves: Mapping[str, Sequence[EpochRecord]], id: str) -> str:
    """Training loss over the epochs of one run of each cell; runs that explode end in an arrow."""
    figure, axes = new_panel()
    trials = {cell.method.name: trial for cell in cells if (trial := cell.shown_trial)}
    length = max(trial.config.epochs for trial in trials.values())
    for method, color, marker in zip(GLANCE, COLORS, MARKERS, strict=True):
        if not (trial := trials.get(method)):
            continue
        epochs = curves.get(trial.id) or ([trial.last] if trial.last else [])
        style: dict[str, Any] = {"color": color, "linewidth": 1.6, "markerfacecolor": "none"}
        axes.plot(
            [epoch.epoch for epoch in epochs], [epoch.train_loss for epoch in epochs], label=SHORT[method],
            marker=marker, markevery=max(1, len(epochs) // 12), markersize=5, **style,
        )  # fmt: skip
        if trial.state == "diverged":
            # It leaves the picture: an arrow through the upper edge at the last epoch that it finished.
            last, upwards = epochs[-1].epoch if epochs else 0, axes.get_xaxis_transform()
            axes.plot(
                [last, last], [0.86, 1], marker="^", markevery=[1], clip_on=False, transform=upwards, **style
            )
            axes.text(last + length / 40, 0.98, f"explodes at step {trial.step}", va="top", transform=upwards)
    chance = math.log(next(iter(trials.values())).classes or 10)
    axes.axhline(chance, color="black", linewidth=0.8, linestyle=":", label="chance")
    axes.set_ylim(0, max(1.35 * chance, 1.1 * axes.dataLim.y1))
    axes.set_xlim(0, 1.03 * length)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epoch")
    axes.set_ylabel("training loss")
    _legend(axes)
    return render(figure, id, f"Training loss over epochs at {cells[0].at} layers")


def _point(result: Result, curve: Curve) -> tuple[float, float, float]:
    """Value, and its error bar downwards and upwards."""
    if curve == "rate":
        assert result.rate, "what has not failed has a best rate"
        return result.rate.lr, result.rate.lr - result.rate.low, result.rate.high - result.rate.lr
    assert result.value is not None, "it has not failed"
    return result.value, result.spread or 0.0, result.spread or 0.0


def _draw_curve(axes: Axes, points: Mapping[int, tuple[float, float, float]], color: str, label: str) -> None:
    if not points:
        return
    value, down, up = zip(*points.values(), strict=True)
    axes.errorbar(
        list(points), value, yerr=(down, up), color=color, marker=MARKERS[COLORS.index(color)], markersize=5,
        markerfacecolor="none", linewidth=1.2, capsize=2.5, label=label,
    )  # fmt: skip


def _batch_axis(axes: Axes, sizes: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    labelled = sizes[:1]
    for size in sizes[1:]:  # eight labels or so have room
        if size >= labelled[-1] * (sizes[-1] / sizes[0]) ** (1 / 8):
            labelled = [*labelled, size]
    axes.set_xticks(labelled)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("batch size")


def _loss_axis(axes: Axes) -> None:
    """Logarithmic; over little more than a decade, labels at 2 and 5 too."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    low, high = axes.get_ylim()
    if high < 30 * low:
        axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        axes.yaxis.set_minor_formatter("{x:g}")
    else:
        axes.yaxis.set_minor_formatter(NullFormatter())


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        # Above the axes: no curve is ever under it.
        axes.figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize=9)


def probe_title(probed: Probed) -> str:
    """What kind of network was measured."""
    from ..paper.theory_figures import FIGURES  # with torch, which other pages do not need

    return FIGURES[probed.figure].title


def draw_probe(probed: Probed, id: str) -> str:
    """Measured variances over the paper's laws."""
    from ..paper.theory_figures import draw_figure

    figure, axes = new_panel()
    draw_figure(axes, probed.figure, probed.rows)
    _legend(axes)
    return render(figure, id, f"{probe_title(probed)}: variances against depth, measured and theory")


def draw_watched(seen: WatchReport, id: str) -> list[str]:
    """Heat maps of block and step: the branch's share, and its scalar where it has one."""
    panels = []
    for quantity in ("branch_share", "scale"):
        if all(getattr(row, quantity) is None for each in seen.measurements for row in each.rows):
            continue
        figure, axes = new_panel()
        draw_heat_map(axes, seen, quantity)
        panels.append(render(figure, f"{id}-{quantity}", f"{seen.model}: {QUANTITIES[quantity]}"))
    return panels
