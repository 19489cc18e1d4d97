"""The cost of a sweep's store: a million rows of metrics written, and `results` and `status` over them.

    python benchmarks/store.py [--trials 5000] [--epochs 200]
    python benchmarks/store.py --trials 100000 --epochs 2

The commands are timed as a user waits for them: a fresh process, imports and printing included. A sweep
starts when its first trial does; all others have their results already.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from skipinit.config import TrainConfig
from skipinit.provenance import Provenance
from skipinit.sweeping.engine import run_sweep
from skipinit.sweeping.grid import Grid, expand
from skipinit.sweeping.store import open_writer
from skipinit.training.protocol import identity
from skipinit.training.records import EpochRecord, Trial

PACK = 16
HERE = Provenance("benchmark", "cpu", {}, None)


def measured(seed: int, epoch: int) -> EpochRecord:
    return EpochRecord(epoch, 1 / epoch, 90 + seed % 7 - 1 / epoch, 0.3, 0.25, 1e5 / (seed + 1))


def grid(trials: int, epochs: int) -> Sequence[TrainConfig]:
    seeds = -(-trials // (4 * 13))
    axes = {"model": "wrn16_2,wrn100_2", "data": "digits", "batch_size": 64, "epochs": epochs}
    axes |= {"scheme": "batchnorm,skipinit", "lr": "2^-10..2^2", "seed": f"0..{seeds - 1}"}
    return expand(axes).trials[:trials]


def filled(configs: Sequence[TrainConfig]) -> Iterator[tuple[Trial, list[EpochRecord]]]:
    for config in configs:
        curve = [measured(config.seed, epoch) for epoch in range(1, config.epochs + 1)]
        yield Trial(identity(config), config, "finished", classes=10, provenance=HERE), curve


def commits_per_second(folder: Path, commits: int = 300) -> float:
    """The epoch of a whole pack is one commit, on the disk when it returns."""
    configs = grid(PACK, epochs=200)
    with open_writer(folder) as writer:
        writer.add(configs)
        for config in configs:
            writer.start(identity(config), HERE, classes=10)
        start = time.perf_counter()
        for epoch in range(1, commits + 1):
            writer.record((identity(config), measured(config.seed, epoch)) for config in configs)
        return commits / (time.perf_counter() - start)


def cost_of(code: str) -> str:
    """Of a process that runs some code: seconds, those on the CPU, and its largest memory; best of three."""
    costs = []
    for _ in range(3):
        start = time.perf_counter()
        child = subprocess.run(
            [sys.executable, "-c", code + _SAY_COST],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        )
        costs.append((time.perf_counter() - start, *map(float, child.stderr.split())))
    wall, cpu, peak = min(costs)
    return f"{wall:>10.2f} s, {cpu:.2f} s of the CPU, {peak:.0f} MiB"


_SAY_COST = """
import re, sys, time
peak = re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())
print(time.process_time(), int(peak[1]) / 1024, file=sys.stderr, flush=True)
"""
"""At the end of a process; what the system tells its parent includes the parent's memory."""


def start_sweep(folder: Path, trials: int, epochs: int) -> None:
    """All trials and one that is new; the process ends as that one starts."""

    def end(event: object) -> None:
        exec(_SAY_COST)
        os._exit(0)

    run_sweep(Grid(tuple(grid(trials + 1, epochs))), folder, device="cpu", progress=False, observer=end)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=5_000)
    parser.add_argument("--epochs", type=int, default=200)
    given = parser.parse_args()
    rows = given.trials * given.epochs
    with tempfile.TemporaryDirectory() as scratch:
        big, small = Path(scratch, "big"), Path(scratch, "small")
        configs = grid(given.trials, given.epochs)
        start = time.perf_counter()
        with open_writer(big) as writer:
            writer.put(filled(configs))
        took = time.perf_counter() - start
        size = (big / "sweep.sqlite").stat().st_size
        print(f"{len(configs):,} trials of {given.epochs} epochs, {rows:,} rows, {size / 1e6:.0f} MB")
        print(f"put            {rows / took:>10,.0f} rows/s, in one commit")
        rate = commits_per_second(small)
        print(f"record         {rate * PACK:>10,.0f} rows/s, {PACK} a commit of {1e3 / rate:.2f} ms")
        code = f"from pathlib import Path; from skipinit.cli import store; folder = Path({str(big)!r})"
        for command in ("status", "results"):
            print(f"{command:14} {cost_of(f'{code}; store.{command}(folder)')}")
        for form in ("json", "csv"):
            print(f"results --{form:4} {cost_of(f'{code}; store.results(folder, {form}_=True)')}")
        call = f"store.start_sweep(store.Path({str(big)!r}), {given.trials}, {given.epochs})"
        print(f"sweep starts   {cost_of(f'import store; {call}')}")


if __name__ == "__main__":
    main()
