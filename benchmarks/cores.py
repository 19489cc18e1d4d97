"""A sweep on the CPU: trials per minute, one at a time and side by side, on a quiet and on a busy machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

from bench import Bench, Row

from skipinit.provenance import usable_cores
from skipinit.sweeping.engine import run_sweep
from skipinit.sweeping.grid import Grid
from skipinit.training.control import Stop
from skipinit.training.records import Event, Finished, Recorded

_EPOCHS = 3
_WINDOW = 12.0
"""Seconds of training counted for each second asked for: several epochs must fall into it."""


def measure_cores(bench: Bench, network: str) -> Iterator[Row]:
    """As the sweep trains, against one trial at a time with one thread and with a thread for every core."""
    cores = usable_cores()
    ways = (
        ("one at a time, 1 thread", 1, 1),
        (f"one at a time, {cores} threads", cores, cores),
        (f"{cores} at once, 1 thread each", cores, 1),
    )
    for busy in (0, 1):
        alone = None
        for way, at_once, threads in ways:
            with _busy_processes(busy):
                speed = _trials_per_minute(bench, network, at_once, threads)
            alone = alone or speed
            yield {
                "network": network, "scheme": "skipinit", "way": way, "busy_processes_beside": busy,
                "trials_per_minute": round(speed, 2), "of_one_at_a_time": round(speed / alone, 2),
            }  # fmt: skip


def _trials_per_minute(bench: Bench, network: str, cores: int, threads: int) -> float:
    """Epochs recorded in a window, as trials of three; until all workers are warm they do not count."""
    trials = [replace(bench.config(network, "skipinit", seed), epochs=_EPOCHS) for seed in range(1000)]
    recorded: list[float] = []
    first, window = 3 * cores, _WINDOW * bench.seconds

    class Enough(Stop):
        """Asks to stop when the window is over."""

        @property
        def requested(self) -> bool:
            return len(recorded) > first and time.perf_counter() > recorded[first] + window

    def observer(event: Event) -> None:
        if isinstance(event, Recorded | Finished):
            recorded.append(time.perf_counter())

    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch("skipinit.sweeping.workers.usable_cores", return_value=cores),
        mock.patch.dict(os.environ, OMP_NUM_THREADS=str(threads)),
    ):
        grid, stop = Grid(tuple(trials)), Enough()
        run_sweep(grid, Path(folder), device="cpu", progress=False, stop=stop, observer=observer)
    within = [moment for moment in recorded[first:] if moment <= recorded[first] + window]
    return 60 * (len(within) - 1) / _EPOCHS / (within[-1] - within[0])


@contextmanager
def _busy_processes(count: int) -> Iterator[None]:
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in others:
            process.kill()
            process.wait()
