"""What the store of a sweep costs: a million rows of metrics written, and `results` and `status` over them.

    python benchmarks/store.py [--rows 1000000]

The commands are timed as a user waits for them: a fresh process, imports and printing included.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from skipinit.config import TrainConfig
from skipinit.provenance import Provenance
from skipinit.sweeping.grid import expand
from skipinit.sweeping.store import open_writer
from skipinit.training.protocol import identity
from skipinit.training.records import EpochRecord, Trial

EPOCHS = 200
PACK = 16
HERE = Provenance("benchmark", "cpu", {}, None)


def measured(seed: int, epoch: int) -> EpochRecord:
    return EpochRecord(epoch, 1 / epoch, 90 + seed % 7 - 1 / epoch, 0.3, 0.25, 1e5 / (seed + 1))


def grid(trials: int) -> Sequence[TrainConfig]:
    seeds = -(-trials // (4 * 13))
    axes = {"model": "wrn16_2,wrn100_2", "data": "cifar10", "batch_size": 64, "epochs": EPOCHS}
    axes |= {"scheme": "batchnorm,skipinit", "lr": "2^-10..2^2", "seed": f"0..{seeds - 1}"}
    return expand(axes).trials[:trials]


def filled(configs: Sequence[TrainConfig]) -> Iterator[tuple[Trial, list[EpochRecord]]]:
    for config in configs:
        curve = [measured(config.seed, epoch) for epoch in range(1, EPOCHS + 1)]
        yield Trial(identity(config), config, "finished", classes=10, provenance=HERE), curve


def commits_per_second(folder: Path, commits: int = 300) -> float:
    """The epoch of a whole pack is one commit, on the disk when it returns."""
    configs = grid(PACK)
    with open_writer(folder) as writer:
        writer.add(configs)
        for config in configs:
            writer.start(identity(config), HERE, classes=10)
        start = time.perf_counter()
        for epoch in range(1, commits + 1):
            writer.record((identity(config), measured(config.seed, epoch)) for config in configs)
        return commits / (time.perf_counter() - start)


def seconds_of(command: str, folder: Path, *options: str) -> float:
    """The best of three."""
    code = f"from pathlib import Path; from skipinit.cli import store; store.{command}"
    times = []
    for _ in range(3):
        start = time.perf_counter()
        call = [sys.executable, "-c", f"{code}(Path({str(folder)!r}), {', '.join(options)})"]
        subprocess.run(call, stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as scratch:
        big, small = Path(scratch, "big"), Path(scratch, "small")
        configs = grid(rows // EPOCHS)
        start = time.perf_counter()
        with open_writer(big) as writer:
            writer.put(filled(configs))
        took = time.perf_counter() - start
        size = (big / "sweep.sqlite").stat().st_size
        print(f"{len(configs):,} trials of {EPOCHS} epochs, {rows:,} rows, {size / 1e6:.0f} MB")
        print(f"put            {rows / took:>10,.0f} rows/s, in one commit")
        rate = commits_per_second(small)
        print(f"record         {rate * PACK:>10,.0f} rows/s, {PACK} a commit of {1e3 / rate:.2f} ms")
        print(f"results        {seconds_of('results', big):>10.2f} s")
        print(f"results --json {seconds_of('results', big, 'json_=True'):>10.2f} s")
        print(f"results --csv  {seconds_of('results', big, 'csv_=True'):>10.2f} s")
        print(f"status         {seconds_of('status', big):>10.2f} s")


if __name__ == "__main__":
    main()
