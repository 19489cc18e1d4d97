"""What a recipe would cost on this machine: an estimate from two numbers that are measured in a second.

A training step costs its arithmetic and, on top, a fixed time for every layer: small networks on small images
are all overhead. Estimates are of the right size, not right.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from ..config import TrainConfig
from ..data.catalog import describe
from ..nets.architectures import find_architecture
from ..training.world import find_device
from .presets import PRESETS
from .recipes import RECIPES, Order, Recipe, make_grid, plan_exhibit

_PASSES = 3
"""Forward, and backward for inputs and for weights."""
_LAYERS = 8
_RESNET50_MACS = 4.1e9
"""For one image of 224 × 224."""
_PROBE_SECONDS = 3.0


@dataclass(frozen=True)
class Speed:
    """What a device can do."""

    macs_per_second: float
    seconds_per_layer: float
    """Of one training step, were there no arithmetic."""


@dataclass(frozen=True)
class Cost:
    """Of one recipe under one preset."""

    trials: int
    seconds: float

    @property
    def time(self) -> str:
        """In the unit that fits."""
        for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
            if self.seconds >= size:
                return f"{self.seconds / size:,.0f} {unit}"
        return f"{self.seconds:.0f} s"


def estimate_costs(device: str = "auto") -> Mapping[Recipe, list[Cost | None]]:
    """For every recipe its cost under each preset, in their order; None where the preset has none of it."""
    speed = measure_speed(find_device(device))
    return {recipe: [_cost(recipe, name, speed) for name in PRESETS] for recipe in RECIPES.values()}


def _cost(recipe: Recipe, preset: str, speed: Speed) -> Cost | None:
    plans = [plan for name in recipe.exhibits for plan in plan_exhibit(name, Order(PRESETS[preset]))]
    trials = make_grid(plans).trials
    if not trials and not recipe.probes:
        return None
    probes = _PROBE_SECONDS * len(recipe.probes)
    return Cost(len(trials), probes + sum(trial_seconds(trial, speed) for trial in trials))


def trial_seconds(config: TrainConfig, speed: Speed) -> float:
    """One trial, alone on the device."""
    data = describe(config.data)
    macs, layers = _network_size(config.model.name, data.shape[1])
    arithmetic = (_PASSES * data.train_size + data.test_size) * macs / speed.macs_per_second
    overhead = data.train_size / config.batch_size * layers * speed.seconds_per_layer
    return config.epochs * (arithmetic + overhead)


def _network_size(name: str, image: int) -> tuple[float, int]:
    """Multiply-accumulates for one image, and layers."""
    architecture = find_architecture(name)
    blocks = sum(architecture.groups)
    if architecture.imagenet:
        return _RESNET50_MACS * blocks / 16 * (image / 224) ** 2, 3 * blocks
    # Two 3×3 convolutions per block; each group has half the side and twice the channels of the one before.
    macs = sum(
        2 * count * 9 * (16 * architecture.widen * 2**group) ** 2 * (image / 2**group) ** 2
        for group, count in enumerate(architecture.groups)
    )
    return macs, 2 * blocks


def measure_speed(device: torch.device) -> Speed:
    """Time a training step of a few layers on next to nothing, and on plenty."""
    overhead = _step_seconds(device, batch=2, channels=8, side=4)
    channels, side, batch = 64, 16, 64
    macs = _PASSES * _LAYERS * batch * 9 * channels**2 * side**2
    return Speed(macs / _step_seconds(device, batch, channels, side), overhead / _LAYERS)


def _step_seconds(device: torch.device, batch: int, channels: int, side: int) -> float:
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
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0, momentum=0.9)
    images = torch.zeros(batch, channels, side, side, device=device)
    times = []
    for _ in range(4):
        started = time.perf_counter()
        optimizer.zero_grad()
        net(images).sum().backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - started)
    return min(times)
