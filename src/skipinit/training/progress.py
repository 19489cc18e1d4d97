"""A bar with time left, on a terminal; silence elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Bar:
    """Steps done out of all, and a word on how it goes."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress = progress
        self.task = None if progress is None else progress.add_task("starting", total=total)

    def update(self, done: int, words: str | None = None) -> None:
        """Move to a step; change the words if there are new ones."""
        if self.progress is not None and self.task is not None:
            self.progress.update(self.task, completed=done, description=words)

    def advance(self, steps: int) -> None:
        """Move by so many steps."""
        if self.progress is not None and self.task is not None:
            self.progress.advance(self.task, steps)


@contextmanager
def steps_bar(total: int, shown: bool) -> Iterator[Bar]:
    """A bar over so many steps, on standard error."""
    console = Console(stderr=True)
    if not (shown and console.is_terminal):
        yield Bar(None, total)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield Bar(progress, total)
