"""Many trainings side by side: packs on a GPU against eager loops and processes; processes on a CPU's cores.

    python benchmarks/sweep.py --json results/sweep-speed.json
    python benchmarks/sweep.py --only wrn16_2 spread --seconds 2
    python benchmarks/sweep.py --device cpu --only cores         # trials per minute, quiet and busy
    python benchmarks/sweep.py --device cpu                      # the rest in tiny settings: does it run?

Images/s are summed over all runs: the median of seven groups of steps (three windows for processes), with the
slowest and the fastest. The eager loop is that of train.py, what a step must take at least is counted in
bounds.py. `spread` trains one run twice alone and once among seven others, and says how far the losses part.
The most important parts come first; what has not begun at --limit is left out, and named.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from bench import SCHEMES, Bench, Row, speed_row
from bounds import count_bounds
from cores import measure_cores
from processes import measure_processes
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from train import BATCH, plain_loop

from skipinit.config import TrainConfig
from skipinit.data.catalog import DATA_SETS
from skipinit.provenance import Provenance
from skipinit.training.loop import Executor, make_executor
from skipinit.training.run import Run
from skipinit.training.sources import DeviceImages
from skipinit.training.world import World, find_device

ON_GPU = [
    ("wrn16_2", "skipinit", (1, 4, 8, 16)), ("wrn16_2", "batchnorm", (1, 4, 8, 16)),
    ("wrn1000_2", "skipinit", (1, 2, 4)), ("wrn28_10", "skipinit", (1, 2)),
    ("wrn100_2", "skipinit", (1, 2, 4)), ("wrn100_2", "batchnorm", (1, 2, 4)),
    ("wrn1000_2", "batchnorm", (1, 2, 4)), ("wrn28_10", "batchnorm", (1, 2)),
]  # fmt: skip
ON_CPU = [("wrn10_1", "skipinit", (1, 2)), ("wrn10_1", "batchnorm", (1, 2))]
Part = tuple[str, str, Callable[[], Iterator[Row]]]
"""Its name, what it is, and how to measure it."""


def make_parts(bench: Bench) -> list[Part]:
    def packs(network: str, scheme: str, sizes: Sequence[int]) -> Part:
        return network, f"{network} {scheme}", lambda: measure_packs(bench, network, scheme, sizes)

    plan, processes, steps = (ON_GPU, 8, 200) if bench.on_gpu else (ON_CPU, 2, 10)
    small = plan[0][0]
    cores: list[Part] = [("cores", "cores", lambda: measure_cores(bench, "wrn16_1"))]
    return [
        *([] if bench.on_gpu else cores),
        *(packs(*each) for each in plan[:2]),
        ("eager", "eager loops", lambda: measure_eager(bench, small, processes)),
        ("spread", "spread", lambda: measure_spread(bench, small, steps)),
        *(packs(*each) for each in plan[2:]),
    ]


def measure_packs(bench: Bench, network: str, scheme: str, sizes: Sequence[int]) -> Iterator[Row]:
    """Packs of several sizes, with memory and with what a step must take at least."""
    kernels: float | None = None
    for size in sizes:
        bench.clear()
        configs = [bench.config(network, scheme, seed) for seed in range(size)]
        pack = make_pack(bench, configs)
        times = bench.milliseconds(pack.step)
        row = speed_row(network, scheme, f"pack of {size}", [1000 * size * BATCH / each for each in times])
        row["ms_per_step"] = round(statistics.median(times), 3)
        if bench.on_gpu:
            row |= bench.memory()
            kernels = kernels or count_kernels(pack.step) / size
        bounds = count_bounds(configs[0].model, bench.data.train_images.shape[-1], BATCH, size, kernels)
        row |= {"kernels_per_run": kernels, "bounds_ms": asdict(bounds), "nearest_bound": bounds.nearest}
        del pack
        yield row


def make_pack(bench: Bench, configs: Sequence[TrainConfig]) -> Executor:
    world = World(bench.device)
    runs = []
    for config in configs:
        source = DeviceImages(DATA_SETS[config.data], bench.data).source(config, world)
        source.begin(0, 0)
        runs.append(Run(config, source, world, BATCH))
    return make_executor(runs, images_on_device=True)


def count_kernels(step: Callable[[], None]) -> float:
    """Kernels and copies of one replay."""
    replays = 3
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(replays):
            step()
        torch.cuda.synchronize()
    return sum(row.count for row in profiler.key_averages() if row.self_device_time_total > 0) / replays


def measure_eager(bench: Bench, network: str, processes: int) -> Iterator[Row]:
    """One eager loop, then several at once, each in its own process."""
    for scheme in SCHEMES:
        bench.clear()
        times = bench.milliseconds(plain_loop(bench.config(network, scheme), bench.data, bench.device))
        yield speed_row(network, scheme, "eager loop", [1000 * BATCH / each for each in times])
    bench.clear()
    yield from measure_processes(bench, network, processes)


def measure_spread(bench: Bench, network: str, steps: int) -> Iterator[Row]:
    """How far the losses of one run part: between two times alone, and between alone and in company."""
    for scheme in SCHEMES:
        company = [bench.config(network, scheme, seed) for seed in range(8)]
        first, second = (first_losses(bench, company[:1], steps) for _ in range(2))
        packed = first_losses(bench, company, steps)
        yield {
            "network": network, "scheme": scheme, "steps": steps, "last_loss": first[-1].item(),
            "identical_runs": largest_difference(first, second),
            "alone_and_among_7_others": largest_difference(first, packed),
        }  # fmt: skip


def first_losses(bench: Bench, configs: Sequence[TrainConfig], steps: int) -> Tensor:
    """The losses of the first of some runs that step together."""
    bench.clear()
    pack = make_pack(bench, configs)
    for _ in range(steps):
        pack.step()
    return pack.runs[0].epoch_losses().double()


def largest_difference(one: Tensor, other: Tensor) -> float:
    """Relative to the losses themselves."""
    return float(((one - other).abs() / one.abs()).max())


def show_cores(rows: Sequence[Row], console: Console) -> None:
    table = Table("network", "scheme", "way", "beside", box=None, pad_edge=False)
    for header in ("trials/min", "of one at a time"):
        table.add_column(header, justify="right")
    for row in rows:
        beside = "a busy process" if row["busy_processes_beside"] else "nothing"
        numbers = f"{row['trials_per_minute']:.1f}", f"{row['of_one_at_a_time']:.2f} x"
        table.add_row(row["network"], row["scheme"], row["way"], beside, *numbers)
    console.print(table)


def show(content: dict[str, Any]) -> None:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    if content["cores"]:
        show_cores(content["cores"], console)
    table = Table("network", "scheme", "way", box=None, pad_edge=False)
    numbers = ("images/s", "slowest", "fastest", "GiB", "kernels", "bound", "is", "of ms")
    for header in numbers:
        table.add_column(header, justify="right")
    for row in content["rows"]:
        low, high = row["slowest_and_fastest"]
        cells = [row["network"], row["scheme"], row["way"]]
        cells += [f"{speed:,}" for speed in (row["images_per_second"], low, high)]
        counted = (row.get(name) for name in ("held_memory_gib", "kernels_per_run"))
        cells += ["" if number is None else f"{number:g}" for number in counted]
        if bound := row.get("nearest_bound"):
            cells += [bound, f"{row['bounds_ms'][bound]:.3f}", f"{row['ms_per_step']:.3f}"]
        table.add_row(*cells)
    if content["rows"]:
        console.print(table)
    for row in content["spread"]:
        console.print(
            f"{row['network']} {row['scheme']}, losses of {row['steps']} steps: two identical runs differ by "
            f"at most {row['identical_runs']:.2g} of their size, alone and among 7 others by at most "
            f"{row['alone_and_among_7_others']:.2g}"
        )
    for what in content["left_out"]:
        console.print(f"left out: {what}", markup=False)


def keep(content: dict[str, Any], path: Path | None) -> None:
    if path:
        path.write_text(json.dumps(content, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=1.0, help="measuring time per row")
    parser.add_argument("--only", nargs="+", metavar="PART", help="some of: cores, networks, eager, spread")
    parser.add_argument("--limit", type=float, default=165.0, help="seconds after which no part is begun")
    parser.add_argument("--json", type=Path, help="also write all numbers, with the machine, to this file")
    arguments = parser.parse_args()
    began = time.monotonic()
    device = find_device(arguments.device)
    bench = Bench.on(device, arguments.seconds)
    parts = make_parts(bench)
    names = dict.fromkeys(name for name, *_ in parts)
    if unknown := set(arguments.only or ()) - names.keys():
        parser.error(f"no part is called {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    machine = Provenance.here(torch.cuda.get_device_name(device) if bench.on_gpu else "cpu")
    content: dict[str, Any] = {
        "command": " ".join(["python benchmarks/sweep.py", *sys.argv[1:]]), "ran_on": asdict(machine),
        "data": bench.data.name, "precision": bench.precision,
        "cores": [], "rows": [], "spread": [], "left_out": [],
    }  # fmt: skip
    for name, what, measure in parts:
        if arguments.only and name not in arguments.only:
            continue
        if time.monotonic() - began > arguments.limit:
            content["left_out"].append(f"{what}: no time was left")
            continue
        try:
            for row in measure():
                content[name if name in ("cores", "spread") else "rows"].append(row)
                print(f"{time.monotonic() - began:6.1f} s  {json.dumps(row)}", file=sys.stderr, flush=True)
        except Exception as error:  # a part that fails must not cost the others
            content["left_out"].append(f"{what}: {type(error).__name__}: {error}")
        keep(content, arguments.json)
    keep(content, arguments.json)
    show(content)


if __name__ == "__main__":
    main()
