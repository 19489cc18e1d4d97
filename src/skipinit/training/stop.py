"""Asking a training to stop in good order: by signal, or because time is up."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


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
