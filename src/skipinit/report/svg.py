"""A matplotlib figure as SVG that lives inside a page: text stays text, colours follow light and dark."""

from __future__ import annotations

import io
import re
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

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
