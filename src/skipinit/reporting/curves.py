"""The paper's figures, drawn from what was measured, as SVG that lives inside a page: text stays text,
colours follow light and dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from html import escape
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from ..paper.collect import MeasuredSet, Probed
from ..paper.published import Exhibit, Outcome

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
"""Of Okabe and Ito, which colour-blind readers tell apart; the page has a lighter set for the dark."""


MARKERS = ("o", "s", "^", "D")


_STYLE: dict[Any, object] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "skipinit",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def new_panel(width: float = 4.6, height: float = 3.4) -> tuple[Figure, Axes]:
    """One panel; sizes are inches, and small: a phone is 390 pixels wide."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
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
    opening = f'<svg class="plot" role="img" aria-label="{label}" {viewbox[0]}'
    # xlink is how matplotlib refers to markers; HTML knows the prefix without a declaration.
    return re.sub(r"<svg[^>]*?>", f"{opening}>", svg, count=1)


def _themed(svg: str) -> str:
    """Ink as the page's text colour, series as the page's variables, no background."""
    svg = re.sub(r'<g id="[^"]*patch_1">.*?</g>', "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r"fill: ?#ffffff", "fill: none", svg, flags=re.IGNORECASE)
    for number, color in enumerate(COLORS):
        svg = re.sub(color, f"var(--series-{number})", svg, flags=re.IGNORECASE)
    return re.sub(r"#000000|\bblack\b", "currentColor", svg, flags=re.IGNORECASE)


Kind = Literal["value", "rate"]


_METRIC = {"test_accuracy": "test accuracy (%)", "train_loss": "training loss (cross entropy)"}


_SHORT = {"batchnorm": "batch norm", "skipinit": "SkipInit", "none": "no normalization",
          "regularized-skipinit": "Regularized SkipInit"}  # fmt: skip


# Two series that coincide stay visible: a small square inside a larger circle.
_SIZES = (7.0, 3.5, 5.5, 4.5)


def draw_sweep(exhibit: Exhibit, measured: MeasuredSet, id: str, kinds: Sequence[Kind]) -> list[str]:
    """A panel for each kind: the metric at its best rate, or that rate, against batch size on log axes."""
    series = {name: measured.measurements.series(exhibit.name, name) for name in exhibit.methods}
    where = f"{exhibit.label}, {measured.label}"
    panels = []
    for kind in kinds:
        name = _METRIC[exhibit.metric] if kind == "value" else "best learning rate"
        figure, axes = new_panel()
        for number, (method, outcomes) in enumerate(series.items()):
            trained = {at: one for at, one in outcomes.items() if not one.failed}
            points = [_point(one, kind) for one in trained.values()]
            _curve(axes, list(trained), points, number, _SHORT[method])
        _batch_axis(axes, sorted({at for outcomes in series.values() for at in outcomes}))
        axes.set_ylabel(name)
        if kind == "rate":
            axes.set_yscale("log", base=2)
        elif exhibit.metric == "train_loss":
            _loss_axis(axes)
        _legend(axes)
        panels.append(render(figure, f"{id}-{kind}", escape(f"{where}: {name} against batch size")))
    return panels


def _point(outcome: Outcome, kind: Kind) -> tuple[float, float, float]:
    """Value, and its error bar downwards and upwards."""
    if kind == "rate":
        assert outcome.rate, "what has not failed has a best rate"
        return outcome.rate.lr, outcome.rate.lr - outcome.rate.low, outcome.rate.high - outcome.rate.lr
    assert outcome.value is not None, "it has not failed"
    return outcome.value, outcome.spread or 0.0, outcome.spread or 0.0


def _curve(
    axes: Axes, x: Sequence[int], points: Sequence[tuple[float, float, float]], number: int, label: str
) -> None:
    if not points:
        return
    value, down, up = zip(*points, strict=True)
    axes.errorbar(
        x, value, yerr=(down, up), color=COLORS[number], marker=MARKERS[number], markersize=5,
        markerfacecolor="none", linewidth=1.2, capsize=2.5, label=label,
    )  # fmt: skip


def _batch_axis(axes: Axes, sizes: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes if len(sizes) <= 7 else sizes[::2])
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


def draw_probe(probed: Probed) -> str:
    """Measured variances over the paper's laws."""
    from ..paper.theory_figures import FIGURES  # brings torch, which pages without these figures do not need

    plan = next(plan for name, plan in FIGURES.items() if name == probed.figure)
    figure, axes = new_panel()
    depths = [row["depth"] for row in probed.rows]
    for number, quantity in enumerate(plan.quantities):
        color = COLORS[number]
        if quantity.law is not None:
            law = [quantity.law(depth) for depth in depths]
            axes.plot(depths, law, color=color, linewidth=1.2, label=f"theory: {_plain(quantity.formula)}")
        points = [(depth, row[quantity.field]) for depth, row in zip(depths, probed.rows, strict=True)]
        shown = [(d, v) for d, v in points if v is not None and (plan.scale == "linear" or v > 0)]
        if shown:
            axes.plot(
                *zip(*shown, strict=True), MARKERS[number], color=color, markersize=_SIZES[number],
                markerfacecolor="none", markevery=max(1, len(shown) // 25), label=quantity.label,
            )  # fmt: skip
    axes.set_yscale(plan.scale, **({"base": 2} if plan.scale == "log" else {}))
    axes.set_xlabel("depth of the residual block, ℓ")
    axes.set_ylabel("variance")
    _legend(axes)
    return render(
        figure, probed.figure, escape(f"{plan.title}: variances against depth, measured and theory")
    )


def _plain(formula: str) -> str:
    """Without TeX: text in the picture stays text."""
    return formula.replace("$2^{ℓ-1}$", "2^(ℓ−1)")
