"""What probing costs: time beside a plain forward pass, and extra memory at two depths.

    python benchmarks/probe.py [--device cuda] [--batch 32] [--repeats 5] [--out FILE]

Each model has a process of its own. There plain and probed passes take turns, after one of each that is not
timed. Extra memory is how much the peak rises when probing begins: of the whole process on the CPU, of
torch's allocator on a GPU. Lineage and hooks take about 2 KiB a module, in Python's memory; activations none.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

import skipinit
from skipinit.probing.measure import probe

MODELS = ("wrn100_2", "wrn1000_2")


def measure(name: str, device: str, batch_size: int, repeats: int) -> dict[str, float]:
    torch.manual_seed(0)
    model = skipinit.create_model(name, scheme="batchnorm").to(device)
    batch = torch.randn(batch_size, 3, 32, 32).to(device)

    def forward() -> None:
        with torch.no_grad():
            model(batch)

    def probed() -> None:
        probe(model, batch)

    probe(skipinit.create_model("wrn10_1").to(device), batch[:2])  # What is loaded on first use is no cost.
    _seconds(forward, device)
    plain_peak = _peak(device)
    _seconds(probed, device)
    extra = _peak(device) - plain_peak
    times = [(_seconds(forward, device), _seconds(probed, device)) for _ in range(repeats)]
    plain, probing = (median(column) for column in zip(*times, strict=True))
    return {
        "forward_seconds": plain,
        "probe_seconds": probing,
        "ratio": probing / plain,
        "forward_peak_mib": plain_peak / 2**20,
        "extra_peak_mib": extra / 2**20,
    }


def _seconds(run: Callable[[], None], device: str) -> float:
    start = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _peak(device: str) -> float:
    if device == "cuda":
        return float(torch.cuda.max_memory_allocated())
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="also write the measurements there, as JSON")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.device, options.batch, options.repeats)))
        return
    machine = torch.cuda.get_device_name() if options.device == "cuda" else platform.machine()
    print(f"batch of {options.batch}x3x32x32, {machine}, torch {torch.__version__}")
    print("model       forward s   probe s   ratio   forward peak MiB   extra peak MiB")
    results = {}
    for name in MODELS:
        command = [sys.executable, __file__, "--one", name, "--device", options.device]
        command += ["--batch", str(options.batch), "--repeats", str(options.repeats)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        results[name] = found
        print(
            f"{name:10} {found['forward_seconds']:10.3f} {found['probe_seconds']:9.3f} {found['ratio']:7.2f}"
            f"{found['forward_peak_mib']:19.1f}{found['extra_peak_mib']:17.1f}"
        )
    if options.out:
        options.out.write_text(json.dumps({"machine": machine, "batch": options.batch, **results}, indent=2))


if __name__ == "__main__":
    main()
