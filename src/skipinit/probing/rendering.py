"""How reports are shown: text in aligned columns for a terminal, CSV, and HTML for notebooks.

In HTML, everything that comes from a model is escaped. Colours are chosen so that they show on light and dark
pages.
"""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .balance import ProbeReport
    from .history import WatchReport

WIDTH = 80
"""Columns of a terminal."""
_ROWS = 200
"""A longer table is cut in the middle, because notebooks store their outputs."""
_CELL = "text-align:right;padding:1px 8px;font-variant-numeric:tabular-nums"
_BAR = "display:inline-block;height:0.7em;background:#D55E00"
_TRACK = "display:inline-block;width:80px;text-align:left;border-left:1px solid #888"


def wrap(text: str) -> str:
    """The text with lines of at most 80 characters."""
    return "\n".join(textwrap.fill(line, WIDTH, break_long_words=False) for line in text.splitlines())


def shorten(name: str, length: int) -> str:
    """The end of a long name, which tells blocks apart."""
    return name if len(name) <= length else f"…{name[1 - length :]}"


def shorten_all(names: Sequence[str], length: int) -> list[str]:
    """Shorten each name to `length` characters, or to more where two names would look the same."""
    while True:
        short = [shorten(name, length) for name in names]
        if len(set(short)) == len(set(names)):
            return short
        length += 1


def plural(count: int, noun: str) -> str:
    """ "1 block", "2 blocks"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def percent(share: float) -> str:
    """12.3 %, and small shares with two significant digits: 0.0046 %."""
    return f"{100 * share:.1f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def table_width(columns: Sequence[Sequence[str]]) -> int:
    """How many characters a line of `align` has at most."""
    return sum(max(map(len, column)) + 2 for column in columns) - 2


def shorten_names(columns: list[list[str]]) -> None:
    """Shorten the names in the first column until the table fits, but not to less than 12 characters."""
    if (excess := table_width(columns) - WIDTH) > 0:
        columns[0] = shorten_all(columns[0], max(12, max(map(len, columns[0])) - excess))


def align(columns: Sequence[Sequence[str]], numbers: bool = False) -> str:
    """Columns of text side by side; with `numbers`, all but the first are aligned to the right."""
    padded = []
    for index, column in enumerate(columns):
        width = max(map(len, column))
        padded.append([cell.rjust(width) if numbers and index else cell.ljust(width) for cell in column])
    return "\n".join("  ".join(line).rstrip() for line in zip(*padded, strict=True))


def csv_text(names: Sequence[str], rows: Iterable[dict[str, Any]]) -> str:
    """A header and one line per row."""
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def report_html(report: ProbeReport) -> str:
    """The table of a probe and its verdict."""
    titles = ("block", "skip var", "branch var", "branch share")
    rows = [
        (row.name, f"{row.skip_variance:.4g}", f"{row.branch_variance:.4g}", row.branch_share)
        for row in report.rows
    ]
    return _page(report.model, titles, rows, str(report.verdict))


def history_html(report: WatchReport) -> str:
    """The last measurement of a training, and the summary of all."""
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
    """A preformatted table, with text below it."""
    return f"<div><pre>{escape(table)}</pre>{_paragraphs(text)}</div>"


def _paragraphs(text: str) -> str:
    return "".join(f"<div>{escape(line)}</div>" for line in text.splitlines())


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _page(caption: str, titles: Sequence[str], rows: Sequence[tuple[str | float, ...]], text: str) -> str:
    if not rows:
        return f"<div>{_paragraphs(text)}</div>"
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
    return f"<div>{table}{_paragraphs(text)}</div>"


def _row(row: Iterable[str | float]) -> str:
    name, *cells = row
    first = f'<td style="text-align:left;padding:1px 8px">{escape(str(name))}</td>'
    return f"<tr>{first}{''.join(_cell(cell) for cell in cells)}</tr>"


def _cell(value: str | float) -> str:
    """Text, or a share with its bar."""
    if isinstance(value, str):
        return f'<td style="{_CELL}">{escape(value)}</td>'
    width = round(80 * min(1.0, max(0.0, value))) if value == value else 0
    bar = f'<span style="{_TRACK}"><span style="{_BAR};width:{width}px"></span></span>'
    return f'<td style="{_CELL};white-space:nowrap">{percent(value)} {bar}</td>'
