"""The figures of the results in the documents, drawn from the files in `results/`.

python docs/figures.py     # after new results
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from measurements import FULL, REDUCED, cells, probed

from skipinit.paper.exhibits import EXHIBITS, Curve
from skipinit.paper.theory_figures import FIGURES as AT_INITIALIZATION
from skipinit.paper.theory_figures import draw_figure
from skipinit.reporting.curves import draw_over_batch, shown_in
from skipinit.sweeping.summary import Metric

FOLDER = Path(__file__).parent / "figures"
_STYLE: dict[Any, object] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}

Panel = Callable[[Axes], object]


def over_batch(label: str, *names: str) -> list[Panel]:
    """The panels of figures over batch size; a curve of which nothing was measured is left out."""

    def panel(name: str, metric: Metric, curve: Curve) -> Panel | None:
        shown = shown_in(EXHIBITS[name], metric, curve, cells(label).values())

        def draw(axes: Axes) -> None:
            draw_over_batch(axes, metric, curve, shown)
            if len(names) > 1:
                axes.set_title(EXHIBITS[name].label, fontsize="medium")

        return draw if shown else None

    places = [
        (name, metric, curve)
        for name in names
        for metric in EXHIBITS[name].metrics
        for curve in EXHIBITS[name].curves
    ]
    return [drawn for place in places if (drawn := panel(*place))]


def at_initialization() -> list[Panel]:
    """Skip and branch variances of untrained networks over the paper's laws."""

    def panel(name: str) -> Panel:
        def draw(axes: Axes) -> None:
            draw_figure(axes, name, probed(name).rows)
            axes.set_title(AT_INITIALIZATION[name].title, fontsize="medium")

        return draw

    return [panel(name) for name in AT_INITIALIZATION]


FIGURES: dict[str, Callable[[], list[Panel]]] = {
    "initialization.png": at_initialization,
    "figure3.png": lambda: over_batch(REDUCED, "figure3"),
    "figure4.png": lambda: over_batch(REDUCED, "figure4"),
    "figure4-full.png": lambda: over_batch(FULL, "figure4"),
    "figure7.png": lambda: over_batch(REDUCED, "figure7", "figure8"),
}


def draw(panels: Sequence[Panel]) -> Figure:
    """Two panels a row, under one legend where they share it."""
    rows = -(-len(panels) // 2)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(8.4, 3.2 * rows), layout="constrained")
        grid = figure.subplots(rows, 2, squeeze=False).flat
        for axes, panel in zip(grid, panels, strict=False):
            panel(axes)
        legends = [axes.get_legend_handles_labels() for axes in figure.axes]
        merged = {
            label: handle
            for handles, labels in legends
            for handle, label in zip(handles, labels, strict=True)
        }
        figure.legend(merged.values(), merged.keys(), loc="outside upper center", ncols=4, frameon=False)
    return figure


def main(folder: Path = FOLDER) -> None:
    """Write every figure into a folder."""
    for name, panels in FIGURES.items():
        with matplotlib.rc_context(_STYLE):
            draw(panels()).savefig(folder / name, dpi=130)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
