"""Training speed, side by side in one process: a plain PyTorch loop, and this package's step, on one network.

The plain loop is what most people write: eager, torch.optim.SGD, on a GPU bfloat16 autocast and channels
last, the data on the device. Both see the same batches' shapes and the same network. `train:own_net` is a
network from a user's own factory, which runs eagerly in both. On the CPU there is one thread, as in all runs,
and its CPU time is measured, so that other work on the machine does not count.

    python benchmarks/train.py                          # CPU: WRN-16-2 on digits; GPU: WRN-16-2, WRN-1000-2
    python benchmarks/train.py --json results/train-speed.json
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from skipinit import ModelConfig, TrainConfig
from skipinit.data.catalog import DATA_SETS
from skipinit.data.images import ImageSet, load, standardize
from skipinit.nets.create import build
from skipinit.nets.own import is_own, load_factory
from skipinit.provenance import Provenance
from skipinit.training.loop import make_executor
from skipinit.training.run import Run
from skipinit.training.sources import DeviceImages
from skipinit.training.world import World, cpu_threads, find_device

BATCH = 64
ON_CPU = [("wrn16_2", "skipinit"), ("wrn16_2", "batchnorm"), ("train:own_net", "own")]
ON_GPU = [*ON_CPU, ("wrn1000_2", "skipinit"), ("wrn1000_2", "batchnorm")]


def own_net() -> nn.Module:
    """WRN-16-2 with batch norm as a module like any other."""
    channels = 3 if torch.cuda.is_available() else 1
    return build(ModelConfig("wrn16_2", "batchnorm", num_classes=10, in_channels=channels), seed=0)


def milliseconds(step: Callable[[], None], device: torch.device, seconds: float) -> list[float]:
    """Time per step: of seven groups of steps, after warming up, each group synchronized at its end."""

    def group(steps: int) -> float:
        clock = time.perf_counter if device.type == "cuda" else time.process_time
        started = clock()
        for _ in range(steps):
            step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return 1000 * (clock() - started) / steps

    group(5)
    steps = max(2, round(seconds * 1000 / 7 / group(3)))
    return sorted(group(steps) for _ in range(7))


def plain_loop(config: TrainConfig, data: ImageSet, device: torch.device) -> Callable[[], None]:
    name = config.model.name
    model = load_factory(name)() if is_own(name) else build(config.model, seed=0)
    model.to(device).train()
    if device.type == "cuda":
        model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr, momentum=0.9, weight_decay=config.l2)

    def step() -> None:
        chosen = torch.randint(len(data.train_labels), (BATCH,), device=device)
        images = standardize(data.train_images[chosen])
        if device.type == "cuda":
            images = images.contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bfloat16"):
            loss = F.cross_entropy(model(images), data.train_labels[chosen])
        loss.backward()
        optimizer.step()

    return step


def our_step(config: TrainConfig, data: ImageSet, device: torch.device) -> Callable[[], None]:
    world = World(device)
    source = DeviceImages(DATA_SETS[config.data], data).source(config, world)
    source.begin(0, 0)
    return make_executor([Run(config, source, world, BATCH)], images_on_device=True).step


def synthetic_cifar(device: torch.device) -> ImageSet:
    """Random pixels in CIFAR-10's shape: speed does not depend on what they show."""
    images = torch.randint(0, 256, (50_000, 3, 32, 32), dtype=torch.uint8, device=device)
    labels = torch.randint(0, 10, (50_000,), device=device)
    return ImageSet("cifar10", 10, images, labels, images[:10_000], labels[:10_000])


def measure(name: str, scheme: str, device: torch.device, seconds: float) -> list[dict[str, object]]:
    on_gpu = device.type == "cuda"
    data = synthetic_cifar(device) if on_gpu else load("digits")
    precision = "bfloat16" if on_gpu else "float32"
    channels = data.train_images.shape[1]
    model = ModelConfig(name, scheme, num_classes=10, in_channels=channels)
    config = TrainConfig(model, data.name, 1e-3, BATCH, epochs=100, precision=precision)
    rows: list[dict[str, object]] = []
    for way, make in (("plain loop", plain_loop), ("skipinit", our_step)):
        gc.collect()
        if on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        times = milliseconds(make(config, data, device), device, seconds)
        middle = statistics.median(times)
        rows.append(
            {
                "network": name, "scheme": scheme, "data": data.name, "batch": BATCH, "precision": precision,
                "way": way, "ms_per_step": round(middle, 3),
                "fastest_and_slowest": [round(times[0], 3), round(times[-1], 3)],
                "images_per_second": round(1000 * BATCH / middle),
                # Reserved: what it takes from the GPU, with what allocator and graphs hold on to.
                "peak_memory_gib": round(torch.cuda.max_memory_reserved() / 2**30, 2) if on_gpu else None,
            }
        )  # fmt: skip
    rows[1]["times_as_fast"] = round(rows[0]["ms_per_step"] / rows[1]["ms_per_step"], 2)  # type: ignore[operator]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--networks", nargs="+", help="only these, such as train:own_net")
    parser.add_argument("--seconds", type=float, default=5.0, help="measuring time per row")
    parser.add_argument("--json", type=Path, help="also write the rows, with the machine, to this file")
    arguments = parser.parse_args()
    device = find_device(arguments.device)
    torch.set_num_threads(cpu_threads())
    words = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    rows = []
    everything = ON_GPU if device.type == "cuda" else ON_CPU
    for name, scheme in (each for each in everything if each[0] in (arguments.networks or each)):
        for row in measure(name, scheme, device, arguments.seconds):
            rows.append(row)
            low, high = row["fastest_and_slowest"]  # type: ignore[misc]
            ratio = f"  {row['times_as_fast']} times as fast" if "times_as_fast" in row else ""
            print(
                f"{name:13} {scheme:10} {row['way']:10} {row['ms_per_step']:9} ms ({low} to {high})"
                f" {row['images_per_second']:>8,} images/s  {row['peak_memory_gib'] or '-'} GiB{ratio}",
                flush=True,
            )
    if arguments.json:
        content = {
            "command": " ".join(["python benchmarks/train.py", *sys.argv[1:]]),
            "ran_on": asdict(Provenance.here(words)),
            "rows": rows,
        }
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
