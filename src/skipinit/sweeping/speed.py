"""How fast a device trains, in two numbers that are measured in a second.

A training step costs its arithmetic and, on top, a fixed time for every layer: small networks on small images
are all overhead.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn

from ..config import Precision

PASSES = 3
"""Forward, and backward for inputs and for weights."""
_LAYERS = 8
_REPETITIONS = 4


@dataclass(frozen=True)
class Speed:
    """What a device can do."""

    macs_per_second: float
    seconds_per_layer: float
    """Of one training step, were there no arithmetic."""


@cache
def measure_speed(device: torch.device, precision: Precision) -> Speed:
    """Time a training step of a few layers on next to nothing, and on plenty."""
    overhead = _step_seconds(device, precision, batch=2, channels=8, side=4)
    batch, channels, side = 1024 if device.type == "cuda" else 16, 64, 16
    macs = PASSES * _LAYERS * batch * 9 * channels**2 * side**2
    plenty = _step_seconds(device, precision, batch, channels, side)
    # Noise must not make arithmetic free.
    return Speed(macs / max(plenty - overhead, plenty / 2), overhead / _LAYERS)


def _step_seconds(device: torch.device, precision: Precision, batch: int, channels: int, side: int) -> float:
    layers = [
        layer
        for _ in range(_LAYERS)
        for layer in (
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
        )
    ]
    net = nn.Sequential(*layers).to(device)
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    weights = list(net.parameters())
    momenta = [torch.zeros_like(weight) for weight in weights]
    images = torch.zeros(batch, channels, side, side, device=device).to(memory_format=torch.channels_last)

    def step() -> None:
        rounds = precision == "bfloat16"
        with torch.autocast(device.type, torch.bfloat16, enabled=rounds, cache_enabled=False):
            gradients = torch.autograd.grad(net(images).sum(), weights)
        # By hand: the first step of torch.optim loads the compiler, which takes longer than all the rest.
        torch._foreach_mul_(momenta, 0.9)
        torch._foreach_add_(momenta, gradients)

    with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=precision != "float32"):
        return _fastest(_captured(step, device) if device.type == "cuda" else step, device)


def _captured(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The step as one CUDA graph, as training does it."""
    with torch.cuda.device(device):
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
    return graph.replay


def _fastest(step: Callable[[], None], device: torch.device) -> float:
    times = []
    for _ in range(_REPETITIONS):
        started = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - started)
    return min(times)
