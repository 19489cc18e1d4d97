"""How reports are shown: text in aligned columns for a terminal, CSV, and HTML for notebooks.

In HTML, everything that comes from a model is escaped. Colours are chosen so that they show on light and dark
pages.
"""

from __future__ import annotations

import csv
import io
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from itertools import takewhile
from typing import Any

WIDTH = 80
"""Columns of a terminal."""
MANY_ROWS = 24
"""A longer table of blocks is shown in part in a terminal."""
_ROWS = 200
"""A longer table is cut in the middle, because notebooks store their outputs."""
_CELL = "text-align:right;padding:1px 8px;font-variant-numeric:tabular-nums"
_BAR = "display:inline-block;height:0.7em;background:#D55E00"
_TRACK = "display:inline-block;width:80px;text-align:left;border-left:1px solid #888"


def wrap(text: str) -> str:
    """The text with lines of at most 80 characters."""
    return "\n".join(textwrap.fill(line, WIDTH, break_long_words=False) for line in text.splitlines())


def spread(count: int, *always: int) -> list[int]:
    """Which of so many rows to show: all if they are few, otherwise some, evenly spaced, and `always`."""
    if count <= MANY_ROWS:
        return list(range(count))
    evenly = {round(index * (count - 1) / (MANY_ROWS - 1)) for index in range(MANY_ROWS)}
    return sorted(evenly.union(always))


def shorten(name: str, length: int) -> str:
    """The end of a long name, which tells blocks apart."""
    return name if len(name) <= length else f"…{name[1 - length :]}"


def shorten_all(names: Sequence[str], length: int) -> list[str]:
    """Shorten each name to `length` characters, or to more where two names would look the same.

    What all names end with is omitted before they get longer.
    """
    paths = [name.split(".") for name in names]
    alike = len([*takewhile(lambda parts: len(set(parts)) == 1, zip(*map(reversed, paths), strict=False))])
    beginnings = [".".join(path[: len(path) - alike]) + "…" for path in paths]
    while True:
        for candidates in (names, beginnings) if alike else (names,):
            short = [shorten(name, length) for name in candidates]
            if len(set(short)) == len(set(names)):
                return short
        length += 1


def percent(share: float) -> str:
    """12.3 %, and small shares with two significant digits: 0.0046 %."""
    return f"{100 * share:.1f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def format_known(value: float | None, form: Callable[[float], str] = "{:.4g}".format) -> str:
    """The value as text; nothing if it is None."""
    return "" if value is None else form(value)


def table_width(columns: Sequence[Sequence[str]]) -> int:
    """How many characters a line of `align` has at most."""
    return sum(max(map(len, column)) + 2 for column in columns) - 2


def shorten_names(columns: list[list[str]]) -> None:
    """Shorten the names in the first column until the table fits, but not to less than 12 characters."""
    if (excess := table_width(columns) - WIDTH) > 0:
        title, *names = columns[0]
        columns[0] = [title, *shorten_all(names, max(12, max(map(len, names)) - excess))]


def align_blocks(columns: Sequence[Sequence[str]], count: int) -> str:
    """A table of some of so many blocks, and how many it does not show."""
    hidden = count + 1 - len(columns[0])
    return align(columns, numbers=True) + (f"\n({hidden} more blocks)" if hidden else "")


def align(columns: Sequence[Sequence[str]], numbers: bool = False) -> str:
    """Columns of text side by side; with `numbers`, all but the first are aligned to the right."""
    padded = []
    for index, column in enumerate(columns):
        width = max(map(len, column))
        padded.append([cell.rjust(width) if numbers and index else cell.ljust(width) for cell in column])
    return "\n".join("  ".join(line).rstrip() for line in zip(*padded, strict=True))


def without_nonfinite(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same with None for NaN and infinity, which JSON does not have."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }


def csv_text(names: Sequence[str], rows: Iterable[dict[str, Any]]) -> str:
    """A header and one line per row."""
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def table_html(table: str, text: str) -> str:
    """A preformatted table, with text below it."""
    return f"<div><pre>{escape(table)}</pre>{_paragraphs(text)}</div>"


def _paragraphs(text: str) -> str:
    return "".join(f"<div>{escape(line)}</div>" for line in text.splitlines())


def report_html(
    caption: str, columns: Mapping[str, Sequence[str]], shares: Sequence[float], text: str
) -> str:
    """A table of columns by title, names first, with the branch shares and their bars; text below it."""
    if not shares:
        return f"<div>{_paragraphs(text)}</div>"
    titles = (*columns, "branch share")
    head = "".join(f'<th style="{_CELL}">{escape(title)}</th>' for title in titles)
    shown = [_row(*row) for row in zip(shares, *columns.values(), strict=True)]
    cut = len(shown) - _ROWS
    if cut > 0:
        middle = f'<tr><td colspan="{len(titles)}" style="text-align:center">{cut} more</td></tr>'
        shown = [*shown[: _ROWS // 2], middle, *shown[-_ROWS // 2 :]]
    table = (
        f'<table style="border-collapse:collapse"><caption style="text-align:left"><b>{escape(caption)}</b>'
        f"</caption><thead><tr>{head}</tr></thead><tbody>{''.join(shown)}</tbody></table>"
    )
    return f"<div>{table}{_paragraphs(text)}</div>"


def _row(share: float, name: str, *cells: str) -> str:
    first = f'<td style="text-align:left;padding:1px 8px">{escape(name)}</td>'
    others = "".join(f'<td style="{_CELL}">{escape(cell)}</td>' for cell in cells)
    width = round(80 * min(1.0, max(0.0, share))) if share == share else 0
    bar = f'<span style="{_TRACK}"><span style="{_BAR};width:{width}px"></span></span>'
    return f'<tr>{first}{others}<td style="{_CELL};white-space:nowrap">{percent(share)} {bar}</td></tr>'
