"""`skipinit demo`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..files import write_whole
from ..paper.exhibits import EXHIBITS, METHODS
from ..paper.presets import PRESETS
from . import FAILED_TRIALS, INTERRUPTED

if TYPE_CHECKING:
    from ..paper.cells import ExhibitCell
    from ..paper.exhibits import Method
    from ..reporting.tables import Agreement, Comparison

_TABLE = EXHIBITS["table1"]
_MARKS: dict[Agreement, tuple[str, str]] = {
    "agrees": ("✓", "green"),
    "differs": ("✗", "bold red"),
    "open": ("·", "yellow"),
}
"""The mark and the style of a cell."""
_NEXT = """What to try next:
  skipinit probe wrn100_2 --scheme none          see the variance grow from block to block
  skipinit train wrn16_2 --data digits           train a network of your choice
  skipinit reproduce --list                      every table and figure of the paper"""


def demo(seed: int = 0, out: Path = Path("demo")) -> int:
    """Show which networks of 16, 100 and 1000 layers train and which fail.

    Takes minutes on a CPU.
    - Trains them on handwritten digits with batch norm, with SkipInit, and in two
      ways that fail in deep networks.
    - Measures the variances of Figure 2.
    - Writes a report that compares all results with the paper.

    Args:
        seed: Seed of weights and data order.
        out: Folder for results and report.
    """
    from ..paper.reproduce import reproduce
    from ..reporting.page import report

    console = Console(highlight=False)
    about = PRESETS["demo"].about
    console.print(f"{about[:1].upper()}{about[1:]}. Everything goes into {out}.", soft_wrap=True)
    with _clock(out / "seconds.txt") as seconds:
        board = Board(console, out, seed, seconds)
        with Live(board, console=console, refresh_per_second=2) if console.is_terminal else nullcontext():
            outcome = reproduce(
                ["table1", "figure2"], out, preset="demo", first_seed=seed, device="cpu", progress=False,
                observer=lambda event: board.read(),
            )  # fmt: skip
            board.read()
        if outcome.left:
            console.print("Stopped. Run the same command again to resume.")
            return INTERRUPTED
        if not console.is_terminal:
            console.print(board)
        console.print(board.summary(), soft_wrap=True)
        page = report(out, out / "report.html")
        console.print(f"\nOpen {page} in a browser ({seconds():.0f} s in all).\n{_NEXT}", soft_wrap=True)
    return FAILED_TRIALS if outcome.failures else 0


@contextmanager
def _clock(file: Path) -> Iterator[Callable[[], float]]:
    """The seconds that the demo has taken, over all its starts; the file keeps them."""
    before, started = 0.0, time.monotonic()
    with suppress(OSError, ValueError):
        before = float(file.read_text(encoding="utf-8"))

    def seconds() -> float:
        return before + time.monotonic() - started

    try:
        yield seconds
    finally:
        if file.parent.is_dir():
            write_whole(file, lambda stream: stream.write(f"{seconds():.1f}\n".encode()))


class Board:
    """Table 1 of the demo, filled as trainings end; outside a terminal, a line for each finished cell."""

    def __init__(self, console: Console, out: Path, seed: int, seconds: Callable[[], float]) -> None:
        from ..paper.cells import plan_cells

        self.console, self.out, self.seconds = console, out, seconds
        planned = plan_cells(_TABLE, PRESETS["demo"])
        self.cells = [cell.narrow(1, around_best=False, first_seed=seed) for cell in planned]
        self.printed: set[str] = set()

    def read(self) -> None:
        """Read the cells from the store, and print those that are new."""
        from ..paper.collect import fill
        from ..sweeping.store import open_store

        with open_store(self.out) as store:
            self.cells = list(fill(self.cells, store.trials()))
        for cell in self.cells:
            name = f"{cell.at} layers, {cell.method.label}"
            if cell.results and name not in self.printed and not self.console.is_terminal:
                published = _published(cell.method, cell.at)
                words = f"{self.seconds():4.0f} s  {name}: {_outcome(cell)}; paper: {published}"
                self.console.print(words, soft_wrap=True)
                self.printed.add(name)

    def __rich__(self) -> Table:
        """A row per depth, a column per method; each cell has the measured value above the paper's."""
        title = f"Test accuracy in percent, after {self.seconds():.0f} s"
        table = Table(title=title, title_justify="left", show_lines=True)
        table.add_column("layers", justify="right")
        cells = {(cell.at, cell.method): cell for cell in self.cells}
        methods = dict.fromkeys(cell.method for cell in self.cells)
        for method in methods:
            table.add_column(method.label)
        for depth in dict.fromkeys(cell.at for cell in self.cells):
            table.add_row(
                str(depth), *(_show(cells.get((depth, method)), method, depth) for method in methods)
            )
        return table

    def summary(self) -> str:
        """The conditions of the numbers, and how many cells agree with the paper."""
        from ..reporting.tables import conditions

        found = [(cell, _compare(cell)) for cell in self.cells]
        agreeing = sum(each.training == "agrees" for _, each in found)
        lines = [
            f"Here: {conditions(_TABLE, self.cells)}.",
            "Paper: CIFAR-10, width 2, 200 epochs, best of 13 rates.",
            f"{agreeing} of {len(found)} cells agree with the paper on which networks train.",
            "The accuracies are not comparable: the data sets differ.",
            *(
                f"Left out: {METHODS[name].label}, {depth} layers, which takes as long as all the others."
                for name, depth in PRESETS["demo"].omitted
            ),
            *(
                f"{_MARKS[each.training][0]} {cell.method.label}, {cell.at} layers: {each.words}."
                for state in ("open", "differs")
                for cell, each in found
                if each.training == state
            ),
        ]
        return "\n".join(lines)


def _show(cell: ExhibitCell | None, method: Method, depth: int) -> Text:
    published = f"paper {_published(method, depth)}"
    if cell is None or not cell.results:
        return Text(f"{_progress(cell) if cell else 'left out'}\n{published}", style="dim")
    mark, style = _MARKS[_compare(cell).training]
    return Text(f"{_outcome(cell)} {mark}\n", style=style).append(published, style="default")


def _compare(cell: ExhibitCell) -> Comparison:
    """With the paper's cell, as the report does."""
    from ..reporting.tables import compare

    return compare(_TABLE.cells[cell.method.name, cell.at], cell, "test_accuracy")


def _published(method: Method, depth: int) -> str:
    published = _TABLE.cells[method.name, depth]
    return "fails" if published.failed else f"{published.value}"


def _outcome(cell: ExhibitCell) -> str:
    """The accuracy, or how it failed."""
    return str(cell.results["test_accuracy"]) if cell.ending == "trains" else str(cell.ending)


def _progress(cell: ExhibitCell) -> str:
    states = {trial.state for trial in cell.recorded}
    if "running" not in states:
        return "raised an error" if "failed" in states else "waiting"
    (trial, *_) = cell.recorded
    return f"epoch {(trial.last.epoch if trial.last else 0) + 1} of {trial.config.epochs}"
