"""Whether a process that trains hundreds of trials grows: memory, open files and threads after each part of them.

    python benchmarks/long_life.py [--trials 500]

The trials are tiny, and all in this process, so that whatever a trial leaves behind adds up here. Also what it
costs to keep them: the share of the time that goes into writing the store, and into fsync.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from skipinit import files
from skipinit.config import TrainConfig
from skipinit.sweeping import store, workers
from skipinit.sweeping.engine import run_sweep
from skipinit.sweeping.grid import expand
from skipinit.training.records import Diverged, Event, Finished

PARTS = 10


def resident_mib() -> float:
    """Memory of this process now, not at its peak."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def count(folder: str) -> int:
    return len(os.listdir(f"/proc/self/{folder}"))


@dataclass
class Watch:
    """Prints a row after each part of the trials."""

    trials: int
    done: int = 0
    started: float = field(default_factory=time.perf_counter)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Finished | Diverged):
            self.done += 1
            if self.done % (self.trials // PARTS) == 0:
                self.row()

    def row(self) -> None:
        seconds = time.perf_counter() - self.started
        print(
            f"{self.done:>6}  {resident_mib():>10.1f}  {count('fd'):>10}  {count('task'):>7}  {seconds:>7.1f}"
        )


@contextmanager
def timed() -> Iterator[dict[str, float]]:
    """Seconds spent in every commit and every fsync of the file layer."""
    spent = {"store": 0.0, "fsync": 0.0}

    def clocked(name: str, call: Any) -> Any:
        def run(*arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*arguments, **options)
            finally:
                spent[name] += time.perf_counter() - began

        return run

    kept = {name: getattr(store.Writer, name) for name in ("start", "record", "finish", "diverge")}
    fsync = os.fsync
    for name, call in kept.items():
        setattr(store.Writer, name, clocked("store", call))
    files.os.fsync = clocked("fsync", fsync)
    try:
        yield spent
    finally:
        for name, call in kept.items():
            setattr(store.Writer, name, call)
        files.os.fsync = fsync


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=500)
    trials = parser.parse_args().trials
    torch.set_num_threads(1)
    workers.usable_cores = lambda: 1  # no worker processes
    axes = {"model": "wrn10_1", "scheme": "skipinit", "data": "digits", "epochs": 1, "batch_size": 512}
    grid = expand(axes | {"lr": "2^-4,2^-3", "seed": f"0..{trials // 2 - 1}"})
    with tempfile.TemporaryDirectory() as scratch, timed() as spent:
        watch = Watch(trials)
        print(f"SQLite {sqlite3.sqlite_version}, torch {torch.__version__}, {trials} trials of wrn10_1, one epoch")
        print("trials  memory MiB  open files  threads  seconds")
        run_sweep(grid, Path(scratch), device="cpu", progress=False, observer=watch)
        seconds = time.perf_counter() - watch.started
    for name, share in (("store", spent["store"]), ("fsync", spent["fsync"])):
        print(f"{name}: {share:.2f} s of {seconds:.1f} s, {share / seconds:.2%}")


if __name__ == "__main__":
    main()
