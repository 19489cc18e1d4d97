"""Random cases of a test, each from its seed, and what is counted of them; see `tests/faults/conftest.py`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count


class Torture:
    """The cases of one test, and what came of them."""

    def __init__(self, seconds: float | None, first: int, tally: dict[str, int]) -> None:
        self.seconds, self.first, self.tally = seconds, first, tally

    def cases(self, few: int) -> Iterator[int]:
        """Seeds: a few, or as many as there is time for, at least one."""
        began = time.monotonic()
        for seed in count(self.first):
            tried = seed - self.first
            if tried == few if self.seconds is None else tried and time.monotonic() - began > self.seconds:
                return
            self.tally["seed"] = seed
            yield seed

    def count(self, what: str, number: int = 1) -> None:
        """Add to what is printed in the end."""
        self.tally[what] = self.tally.get(what, 0) + number
