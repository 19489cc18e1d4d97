"""Control of a long computation: how it is shown, and how it is asked to stop in good order."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Stop:
    """Whether to stop at the next step, and why."""

    def __init__(self, time_limit: float | None = None) -> None:
        self.deadline = None if time_limit is None else time.monotonic() + time_limit
        self.signal: int | None = None

    @property
    def requested(self) -> bool:
        """Whether a signal has come or time is up."""
        return self.signal is not None or (self.deadline is not None and time.monotonic() >= self.deadline)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal == signal.SIGINT == number:
            raise KeyboardInterrupt  # asked twice: at once
        self.signal = number


@contextmanager
def stopped_by_signals(stop: Stop) -> Iterator[None]:
    """While inside, SIGTERM and Ctrl-C only raise the flag; a second Ctrl-C interrupts at once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    before = {number: signal.signal(number, stop._note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@cache
def say_once(words: str) -> None:
    """A remark on standard error, which many runs may make."""
    print(f"skipinit: {words}", file=sys.stderr)


class Bar:
    """Steps done out of all, and a word on how it goes."""

    def __init__(self, progress: Progress, total: int) -> None:
        self.progress, self.task = progress, progress.add_task("starting", total=total)

    def update(self, done: int, words: str | None = None) -> None:
        """Move to a step; change the words if there are new ones."""
        self.progress.update(self.task, completed=done, description=words)

    def advance(self, steps: int) -> None:
        """Move by so many steps."""
        self.progress.advance(self.task, steps)


@contextmanager
def steps_bar(total: int, shown: bool) -> Iterator[Bar]:
    """A bar over so many steps, on standard error where that is a terminal."""
    console = Console(stderr=True)
    hidden = not (shown and console.is_terminal)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        yield Bar(progress, total)
