"""Whether the memory of a process that trains hundreds of trials grows, and what storing their results costs.

    python benchmarks/long_life.py [--trials 500] [--model wrn10_1] [--epochs 1] [--batch-size 512]

All trials run in this process, so that leaks of memory, open files and threads add up. The last lines say
which share of the time the store (commits, checksums) and fsync of other files take.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from skipinit import files
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
    """Observes a sweep: a row after each part of the trials."""

    trials: int
    done: int = 0
    started: float = field(default_factory=time.perf_counter)

    def take(self, event: Event) -> None:
        """Count ends."""
        if not isinstance(event, Finished | Diverged):
            return
        self.done += 1
        if self.done % max(1, self.trials // PARTS) == 0:
            numbers = f"{resident_mib():>10.1f}  {count('fd'):>10}  {count('task'):>7}"
            print(f"{self.done:>6}  {numbers}  {time.perf_counter() - self.started:>7.1f}", flush=True)


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
    parser.add_argument("--model", default="wrn10_1")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=512)
    given = parser.parse_args()
    torch.set_num_threads(1)
    workers.usable_cores = lambda: 1  # no worker processes
    axes = {"model": given.model, "epochs": given.epochs, "batch_size": given.batch_size}
    axes |= {"scheme": "skipinit", "data": "digits", "lr": "2^-4", "seed": f"0..{given.trials - 1}"}
    with tempfile.TemporaryDirectory() as scratch, timed() as spent:
        watch = Watch(given.trials)
        print(
            f"{given.trials} trials of {given.model}, digits, {given.epochs} epochs, batch {given.batch_size}"
        )
        print("trials  memory MiB  open files  threads  seconds")
        run_sweep(expand(axes), Path(scratch), device="cpu", progress=False, observer=watch.take)
        seconds = time.perf_counter() - watch.started
    for name, share in spent.items():
        print(f"{name}: {share:.2f} s of {seconds:.1f} s, {share / seconds:.2%}")


if __name__ == "__main__":
    main()
