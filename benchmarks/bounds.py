"""Lower bounds of a training step: its bytes, arithmetic and launches, and the time of an H200 for them.

Bytes: every kernel reads its operands and writes its result once, activations in bfloat16. A convolution is
three kernels (forward, to input, to weights), and each touches its input and its output. ReLUs cost nothing:
they can be part of their neighbours. A merge reads the skip forward and adds a gradient backward. A norm
reads x, then reads x and writes y; backward it reads x and g, then reads both and writes. A weight is read
and written with its gradient and momentum in float32, and rounded.

Arithmetic: six floating-point operations for each multiply-accumulate of the forward pass.

Launches: the kernels of one run, one after the other; runs of a pack launch side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from skipinit.config import ModelConfig
from skipinit.nets.create import build
from skipinit.nets.merges import Add, DivideSqrt2, NormalizeOutput, NormalizeSkip, SkipInit

BYTES_PER_SECOND = 4.8e12
FLOPS_PER_SECOND = 989e12
SECONDS_PER_KERNEL = 1.3e-6
"""Of a node of a CUDA graph that waits for the one before."""

_VALUE = 2
_WEIGHT = 3 * 4 + 3 * 4 + 3 * 2
"""Weight, gradient and momentum read and written; the rounded weight written once and read twice."""


@dataclass(frozen=True)
class Bounds:
    """Milliseconds that a step of all runs of a pack takes at least."""

    bytes: float
    arithmetic: float
    launches: float | None
    """None where the kernels could not be counted."""

    @property
    def nearest(self) -> str:
        """The highest of them: what must give way first."""
        return max(vars(self), key=lambda name: vars(self)[name] or 0.0)


def count_bounds(config: ModelConfig, side: int, batch: int, runs: int, kernels: float | None) -> Bounds:
    """Of a pack of equal runs; `kernels` are one run's."""
    work = _count_work(config, side)
    moved = runs * (batch * work.moved * _VALUE + work.parameters * _WEIGHT)
    operations = runs * batch * work.macs * 6
    return Bounds(
        bytes=1000 * moved / BYTES_PER_SECOND,
        arithmetic=1000 * operations / FLOPS_PER_SECOND,
        launches=None if kernels is None else 1000 * kernels * SECONDS_PER_KERNEL,
    )


@dataclass
class _Work:
    """Of a training step."""

    parameters: int = 0
    macs: int = 0
    """Multiply-accumulates of the forward pass, for one example."""
    moved: int = 0
    """Activations and their gradients that kernels read or write, for one example."""


@cache
def _count_work(config: ModelConfig, side: int) -> _Work:
    work = _Work()

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(module, nn.Conv2d):
            work.macs += module.weight.numel() * output[0, 0].numel()
            work.moved += 3 * (inputs[0].numel() + output.numel())
        elif isinstance(module, nn.BatchNorm2d):
            work.moved += 8 * output.numel()
        elif isinstance(module, nn.Linear):
            work.macs += module.weight.numel()
        else:
            work.moved += 2 * output.numel()

    merges = (Add, SkipInit, DivideSqrt2, NormalizeOutput, NormalizeSkip)
    with torch.device("meta"), torch.no_grad():
        model = build(config).eval()
        for module in model.modules():
            if isinstance(module, (nn.Conv2d, nn.BatchNorm2d, nn.Linear, *merges)):
                module.register_forward_hook(count)
        model(torch.empty(1, config.in_channels, side, side))
    work.parameters = sum(parameter.numel() for parameter in model.parameters())
    return work
