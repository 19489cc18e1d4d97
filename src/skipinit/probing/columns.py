"""Rows as text: aligned columns for a terminal, and CSV."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

WIDTH = 80
"""Columns of a terminal."""


def wrap(text: str) -> str:
    """The text with lines of at most 80 characters."""
    return "\n".join(textwrap.fill(line, WIDTH, break_long_words=False) for line in text.splitlines())


def shorten(name: str, length: int) -> str:
    """The end of a long name, which tells blocks apart."""
    return name if len(name) <= length else f"…{name[1 - length :]}"


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
