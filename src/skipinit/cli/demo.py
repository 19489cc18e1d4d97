"""`skipinit demo`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..paper.exhibits import EXHIBITS
from ..paper.presets import PRESETS

if TYPE_CHECKING:
    from ..reporting.tables import ResultTable, TableRow


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
    from ..reporting.page import report
    from ..reporting.tables import make_table

    console, started = Console(highlight=False), time.monotonic()
    console.print(f"{PRESETS['demo'].about}. Everything goes into {out}.")
    outcome = reproduce(["figure2", "table1"], out, preset="demo", first_seed=seed, device="cpu")
    if outcome.left:
        console.print("Stopped. Run the same command again to resume.")
        return 130
    (cells,) = [cells for cells in collect(out).sets.values() if cells[0].preset.name == "demo"]
    table = make_table(EXHIBITS["table1"], "test_accuracy", cells)
    assert table, "the demo has trained it"
    console.print(_table(table))
    console.print(_summary(table))
    page = report(out, out / "report.html")
    console.print(f"Report: {page} ({time.monotonic() - started:.0f} s in all)")
    return 0


def _table(measured: ResultTable) -> Table:
    """Depths down, methods across; in each cell what was measured over what the paper has."""
    table = Table(title="Test accuracy in percent", title_justify="left", show_lines=True)
    table.add_column("depth", justify="right")
    columns = {label: rows for label, rows in measured.groups.items() if any(row.runs for row in rows)}
    for label in columns:
        table.add_column(label)
    for rows in zip(*columns.values(), strict=True):
        table.add_row(str(rows[0].at), *map(_cell, rows))
    return table


def _cell(row: TableRow) -> Text:
    agrees = row.comparison.training == "agrees"
    words = Text(f"{row.measured} {'✓' if agrees else '✗'}\n", style="green" if agrees else "bold red")
    words.append(f"paper {row.paper}\n", style="default")
    return words.append(f"rate {row.tried}", style="dim")


def _summary(measured: ResultTable) -> str:
    rows = [row for rows in measured.groups.values() for row in rows if row.runs]
    agreeing = sum(row.comparison.training == "agrees" for row in rows)
    lines = [
        f"Here: {measured.conditions}. Paper: CIFAR-10, width 2, 200 epochs, best of 13 rates.",
        f"{agreeing} of {len(rows)} cells agree with the paper on who trains and who fails.",
        "The accuracies themselves are not comparable: the data are others.",
        *(f"✗ {row.method}, depth {row.at}: {row.comparison.words}." for row in measured.differing),
    ]
    return "\n".join(lines)
