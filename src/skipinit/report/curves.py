"""The paper's figures, drawn from what was measured: batch-size sweeps and variances over depth."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

from ..paper.collect import MeasuredSet, Probed
from ..paper.measured import Outcome
from ..paper.published import Exhibit
from .svg import COLORS, MARKERS, new_panel, render

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
    from ..probing.figures import FIGURES  # brings torch, which pages without these figures do not need

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
