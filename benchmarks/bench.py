"""Common parts of the sweep benchmarks: the device, its data and configs, the clock, and a row of results."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from train import BATCH, synthetic_cifar

from skipinit.config import ModelConfig, Precision, TrainConfig
from skipinit.data.images import ImageSet, load

SCHEMES = ("skipinit", "batchnorm")
Row = dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """Where, on what and how long to measure: CIFAR's shape in bfloat16 on a GPU, digits on the CPU."""

    device: torch.device
    data: ImageSet
    precision: Precision
    seconds: float

    @classmethod
    def on(cls, device: torch.device, seconds: float) -> Bench:
        """What fits the device."""
        if device.type == "cuda":
            return cls(device, synthetic_cifar(device), "bfloat16", seconds)
        return cls(device, load("digits"), "float32", seconds)

    @property
    def on_gpu(self) -> bool:
        """Whether the numbers count."""
        return self.device.type == "cuda"

    def config(self, network: str, scheme: str, seed: int = 0) -> TrainConfig:
        """A run that would last a hundred epochs."""
        model = ModelConfig(network, scheme, num_classes=10, in_channels=self.data.train_images.shape[1])
        return TrainConfig(model, self.data.name, 0.01, BATCH, 100, seed=seed, precision=self.precision)

    def wait(self) -> None:
        """Until the device has done all it was given."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def clear(self) -> None:
        """Give back what nobody uses, and count the peak of memory anew."""
        gc.collect()
        if self.on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def memory(self) -> Row:
        """Taken from the GPU at most, and what a captured pack goes on holding.

        Reserved, not allocated: a graph is captured run by run, but each run keeps its stream's memory.
        """
        peak = torch.cuda.max_memory_reserved(self.device)
        torch.cuda.empty_cache()
        held = torch.cuda.memory_reserved(self.device)
        return {"peak_memory_gib": round(peak / 2**30, 2), "held_memory_gib": round(held / 2**30, 2)}

    def milliseconds(self, step: Callable[[], None]) -> list[float]:
        """Time per step, of seven groups of steps after warming up, the fastest first."""
        step()  # compiles and captures
        self.wait()
        steps = max(2, round(1000 * self.seconds / 7 / self._time(step, 3)))
        return sorted(self._time(step, steps) for _ in range(7))

    def _time(self, step: Callable[[], None], steps: int) -> float:
        if not self.on_gpu:
            started = time.perf_counter()
            for _ in range(steps):
                step()
            return 1000 * (time.perf_counter() - started) / steps
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(steps):
            step()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / steps


def speed_row(network: str, scheme: str, way: str, speeds: Sequence[float]) -> Row:
    """The median of images per second, with the extremes."""
    low, middle, high = (round(pick(speeds)) for pick in (min, statistics.median, max))
    return {
        "network": network, "scheme": scheme, "way": way, "batch": BATCH,
        "images_per_second": middle, "slowest_and_fastest": [low, high],
    }  # fmt: skip
