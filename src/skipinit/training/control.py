"""Control of a long computation: its progress, and requests to stop."""

from __future__ import annotations

import math
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

from ..notation import check_value, duration_text, not_allowed, plain

_LOG_SECONDS = 60.0
"""Between two lines about the progress in a log."""


class Stop:
    """A request to stop at the next step: a signal, or a time limit."""

    def __init__(self, time_limit: float | None = None) -> None:
        seconds = math.inf if time_limit is None else check_seconds("time_limit", time_limit)
        self.deadline = time.monotonic() + seconds
        self.signal: int | None = None

    @property
    def requested(self) -> bool:
        """Whether a signal has come or time is up."""
        return self.signal is not None or time.monotonic() >= self.deadline

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal == signal.SIGINT == number:
            raise KeyboardInterrupt  # asked twice: at once
        self.signal = number


def check_seconds(name: str, value: object) -> float:
    """A length of time: 0 seconds or more; infinity means never."""
    within = " of seconds, 0 or more, or infinity"
    seconds = math.inf if plain(value) == math.inf else check_value(name, value, float, within)
    if seconds < 0:
        raise not_allowed(name, value, float, within)
    return seconds


@contextmanager
def stopped_by_signals(stop: Stop) -> Iterator[None]:
    """Inside, SIGTERM and Ctrl-C only request a stop; a second Ctrl-C interrupts at once."""
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
    """Print a remark to standard error, once however many runs make it."""
    print(f"skipinit: {words}", file=sys.stderr)


class Bar:
    """A progress bar with a description; in a log, a line each minute."""

    def __init__(self, progress: Progress, total: int, logs: bool) -> None:
        self.progress, self.task = progress, progress.add_task("starting", total=total)
        self.logged_at = time.monotonic() if logs else math.inf
        self.note = ""
        """What the lines in a log end with."""

    def update(self, done: int, words: str | None = None) -> None:
        """Move to a step; replace the description if `words` are given."""
        self.progress.update(self.task, completed=done, description=words)
        self.tick()

    def advance(self, steps: int) -> None:
        """Move by a number of steps."""
        self.progress.advance(self.task, steps)
        self.tick()

    def tick(self) -> None:
        """In a log, print a line if it is time; called also while there is nothing new."""
        now = time.monotonic()
        if now - self.logged_at < _LOG_SECONDS:
            return
        self.logged_at = now
        task = self.progress.tasks[self.task]
        left = "" if task.time_remaining is None else f", about {duration_text(task.time_remaining)} left"
        steps = f"{task.completed:.0f}/{task.total:.0f}"
        print(f"{task.description}, {steps}{left}{self.note}", file=sys.stderr, flush=True)


@contextmanager
def steps_bar(total: int, shown: bool) -> Iterator[Bar]:
    """A bar over `total` steps on standard error, or lines if that is no terminal; nothing if not `shown`."""
    console = Console(stderr=True)
    hidden = not (shown and console.is_terminal)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        yield Bar(progress, total, logs=shown and hidden)
