"""The cost of probing: its time and that of a plain forward pass, and extra memory at two depths.

    python benchmarks/probe.py [--device cuda] [--only NAME] [--batch 32] [--repeats 5] [--processes 3]
        [--out FILE]

Each model has its own processes. In one, plain and probed passes take turns; times are medians. In a few
others, extra memory is how much the peak rises when a probe follows three plain passes, which have brought
torch's and Python's own memory to its level: of the whole process on the CPU, of torch's allocator on a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

import skipinit
from skipinit.probing.measure import probe

MODELS = {"wrn100_2": 32, "wrn1000_2": 32, "resnet50_v1": 224, "vit_s": 224}
"""With the size of their images. ViT-S is transformers'."""


Pass = Callable[[], None]


def make_passes(name: str, device: str, batch_size: int) -> tuple[Pass, Pass]:
    """A plain forward pass and a probe of the same model and batch."""
    torch.manual_seed(0)
    model = (_vit() if name == "vit_s" else skipinit.create_model(name, scheme="batchnorm")).to(device)
    batch = torch.randn(batch_size, 3, MODELS[name], MODELS[name]).to(device)
    probe(skipinit.create_model("wrn10_1").to(device), batch[:2])  # What is loaded on first use is no cost.

    def forward() -> None:
        with torch.no_grad():
            model(batch)

    def probed() -> None:
        probe(model, batch)

    return forward, probed


def _vit() -> torch.nn.Module:
    from transformers import ViTConfig, ViTModel

    options = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
    model: torch.nn.Module = ViTModel(ViTConfig(**options)).train()
    return model


def time_passes(forward: Pass, probed: Pass, device: str, repeats: int) -> dict[str, float]:
    forward()
    probed()
    times = [(_seconds(forward, device), _seconds(probed, device)) for _ in range(repeats)]
    plain, probing = (median(column) for column in zip(*times, strict=True))
    return {"forward_seconds": plain, "probe_seconds": probing, "ratio": probing / plain}


def weigh_passes(forward: Pass, probed: Pass, device: str) -> dict[str, float]:
    for _ in range(3):
        forward()
    plain = _peak(device)
    probed()
    return {"forward_peak_mib": plain / 2**20, "extra_peak_mib": (_peak(device) - plain) / 2**20}


def _seconds(run: Pass, device: str) -> float:
    # On the CPU processor time, so that other processes do not count.
    clock = time.perf_counter if device == "cuda" else time.process_time
    start = clock()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def _peak(device: str) -> float:
    if device == "cuda":
        return float(torch.cuda.max_memory_allocated())
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    weights = [_in_process(name, "memory", options) for _ in range(options.processes)]
    extra = [weight["extra_peak_mib"] for weight in weights]
    return {
        **_in_process(name, "time", options),
        "forward_peak_mib": median(weight["forward_peak_mib"] for weight in weights),
        "extra_peak_mib": median(extra),
        "extra_peak_mib_range": (min(extra), max(extra)),
    }


def _in_process(name: str, what: str, options: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", name, what, "--device", options.device]
    command += ["--batch", str(options.batch), "--repeats", str(options.repeats)]
    # glibc keeps large blocks that were freed, now more, now less; so it hands them back at once.
    strict = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"} if what == "memory" else {}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | strict)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="also write the measurements there, as JSON")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, what = options.one
        passes = make_passes(name, options.device, options.batch)
        if what == "time":
            print(json.dumps(time_passes(*passes, options.device, options.repeats)))
        else:
            print(json.dumps(weigh_passes(*passes, options.device)))
        return
    machine = torch.cuda.get_device_name() if options.device == "cuda" else platform.machine()
    threads = torch.get_num_threads()
    print(f"batch of {options.batch}, {machine}, {threads} threads, torch {torch.__version__}")
    print("model       forward s   probe s   ratio   forward peak MiB   extra peak MiB (range)")
    results = {}
    for name in MODELS:
        if options.only not in name:
            continue
        found = results[name] = measure(name, options)
        low, high = found["extra_peak_mib_range"]
        print(
            f"{name:10} {found['forward_seconds']:10.3f} {found['probe_seconds']:9.3f} {found['ratio']:7.2f}"
            f"{found['forward_peak_mib']:19.1f}{found['extra_peak_mib']:17.1f} ({low:.1f} to {high:.1f})"
        )
    if options.out:
        about = {"machine": machine, "threads": threads, "batch": options.batch}
        options.out.write_text(json.dumps({**about, **results}, indent=2))


if __name__ == "__main__":
    main()
