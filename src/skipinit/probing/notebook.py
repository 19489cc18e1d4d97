"""Reports as HTML, for notebooks: a table with a bar for each branch share, and the text below it.

Everything that comes from a model is escaped. Colours are chosen so that they show on light and dark pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .balance import ProbeReport
    from .history import WatchReport

_ROWS = 200
"""A longer table is cut in the middle: notebooks keep what they show."""
_CELL = "text-align:right;padding:1px 8px;font-variant-numeric:tabular-nums"
_BAR = "display:inline-block;height:0.7em;background:#D55E00;margin-left:6px"
_TRACK = "display:inline-block;width:80px;text-align:left;border-left:1px solid #888"


def report_html(report: ProbeReport) -> str:
    """The table of a probe and its verdict."""
    titles = ("block", "skip var", "branch var", "branch share")
    rows = [
        (row.name, f"{row.skip_variance:.4g}", f"{row.branch_variance:.4g}", row.branch_share)
        for row in report.rows
    ]
    return _page(report.model, titles, rows, str(report.verdict))


def history_html(report: WatchReport) -> str:
    """The last measurement of a training and what all of them say."""
    titles = ("block", "skip var", "branch var", "α", "update / weight", "branch share")
    last = report.measurements[-1].rows if report.measurements else ()
    rows = [
        (
            row.name, f"{row.skip_variance:.4g}", f"{row.branch_variance:.4g}", _number(row.scale),
            _number(row.update_ratio), row.branch_share,
        )
        for row in last
    ]  # fmt: skip
    step = f", step {report.steps[-1]}" if report.steps else ""
    return _page(f"{report.model}{step}", titles, rows, report.summary())


def table_html(table: str, text: str) -> str:
    """A table of text as it is, and the text below it."""
    paragraphs = "".join(f"<div>{escape(line)}</div>" for line in text.splitlines())
    return f"<div><pre>{escape(table)}</pre>{paragraphs}</div>"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _page(caption: str, titles: Sequence[str], rows: Sequence[tuple[str | float, ...]], text: str) -> str:
    paragraphs = "".join(f"<div>{escape(line)}</div>" for line in text.splitlines())
    if not rows:
        return f"<div>{paragraphs}</div>"
    head = "".join(f'<th style="{_CELL}">{escape(title)}</th>' for title in titles)
    cut = len(rows) - _ROWS
    shown: list[str] = [_row(row) for row in rows]
    if cut > 0:
        middle = f'<tr><td colspan="{len(titles)}" style="text-align:center">{cut} more</td></tr>'
        shown = [*shown[: _ROWS // 2], middle, *shown[-_ROWS // 2 :]]
    table = (
        f'<table style="border-collapse:collapse"><caption style="text-align:left"><b>{escape(caption)}</b>'
        f"</caption><thead><tr>{head}</tr></thead><tbody>{''.join(shown)}</tbody></table>"
    )
    return f"<div>{table}{paragraphs}</div>"


def _row(row: Iterable[str | float]) -> str:
    name, *cells = row
    first = f'<td style="text-align:left;padding:1px 8px">{escape(str(name))}</td>'
    return f"<tr>{first}{''.join(_cell(cell) for cell in cells)}</tr>"


def _cell(value: str | float) -> str:
    """Text, or a share with its bar."""
    if isinstance(value, str):
        return f'<td style="{_CELL}">{escape(value)}</td>'
    width = round(80 * min(1.0, max(0.0, value))) if value == value else 0
    bar = f'<span style="{_TRACK}"><span style="{_BAR};width:{width}px;margin:0"></span></span>'
    return f'<td style="{_CELL};white-space:nowrap">{value:.2%} {bar}</td>'
