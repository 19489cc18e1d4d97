"""`skipinit demo`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..paper.presets import PRESETS
from ..paper.published import find_exhibit
from ..paper.recipes import RECIPES, Order

if TYPE_CHECKING:
    from ..reporting.tables import ResultTable, Row

_EXHIBIT = "table1"


def demo(seed: int = 0, out: Path = Path("demo")) -> int:
    """See the paper's point in minutes: which deep networks train, and which fail, beside its Table 1.

    Trains networks of 16, 100 and 1000 layers on handwritten digits, on the CPU, with batch norm, with
    SkipInit, and in two ways that fail; measures the variances of Figure 2; writes the report.

    Args:
        seed: Of weights and data order.
        out: Folder for results and report.
    """
    from ..paper.collect import collect
    from ..paper.reproduce import reproduce
    from ..reporting.page import write_report
    from ..reporting.tables import make_table

    console, preset, started = Console(highlight=False), PRESETS["demo"], time.monotonic()
    console.print(f"{preset.about}. Everything goes into {out}.")
    recipes = [RECIPES["figure2"], RECIPES[_EXHIBIT]]
    outcome = reproduce(recipes, Order(preset, first_seed=seed), out, device="cpu")
    if outcome.left:
        console.print("Stopped. The same command goes on where it stopped.")
        return 130
    collection = collect([out])
    (measured,) = [each for each in collection.sets if each.preset == preset]
    table = make_table(find_exhibit(_EXHIBIT), measured)
    assert table, "the demo has trained it"
    console.print(_table(table))
    console.print(_summary(table))
    page = out / "report.html"
    write_report(collection, page)
    console.print(f"Report: {page} ({time.monotonic() - started:.0f} s in all)")
    return 0


def _table(measured: ResultTable) -> Table:
    """Depths down, methods across; in each cell what was measured over what the paper has."""
    table = Table(title="Test accuracy in percent", title_justify="left", show_lines=True)
    table.add_column("depth", justify="right")
    groups = [group for group in measured.groups if any(row.runs for row in group.rows)]
    for group in groups:
        table.add_column(group.label)
    for rows in zip(*(group.rows for group in groups), strict=True):
        table.add_row(str(rows[0].at), *map(_cell, rows))
    return table


def _cell(row: Row) -> Text:
    agrees = row.comparison.agreement == "agrees"
    words = Text(f"{row.measured} {'✓' if agrees else '✗'}\n", style="green" if agrees else "bold red")
    words.append(f"paper {row.paper}\n", style="default")
    return words.append(f"rate {row.tried}", style="dim")


def _summary(measured: ResultTable) -> str:
    rows = [row for group in measured.groups for row in group.rows if row.runs]
    agreeing = sum(row.comparison.agreement == "agrees" for row in rows)
    lines = [
        f"Here: {measured.conditions}. Paper: CIFAR-10, width 2, 200 epochs, best of 13 rates.",
        f"{agreeing} of {len(rows)} cells agree with the paper on who trains and who fails.",
        *(f"✗ {row.method}, depth {row.at}: {row.comparison.words}." for row in measured.differing),
    ]
    return "\n".join(lines)
