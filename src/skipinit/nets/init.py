"""How weights start: He, LeCun, and Fixup's two changes to He."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

Weighted = nn.Conv2d | nn.Linear


def weighted_layers(module: nn.Module) -> list[Weighted]:
    """The convolutions and dense layers of a module, in order."""
    return [m for m in module.modules() if isinstance(m, nn.Conv2d | nn.Linear)]


@torch.no_grad()
def scale_normal(layer: Weighted, gain: float, generator: torch.Generator | None) -> None:
    """w ~ N(0, gain / fan-in), b = 0."""
    fan_in = layer.weight[0].numel()
    layer.weight.normal_(0, math.sqrt(gain / fan_in), generator=generator)
    if layer.bias is not None:
        layer.bias.zero_()


def he(module: nn.Module, generator: torch.Generator | None = None) -> None:
    """Variance 2 / fan-in everywhere: keeps the variance through a ReLU and the layer after it."""
    for layer in weighted_layers(module):
        scale_normal(layer, 2.0, generator)


def lecun(module: nn.Module, generator: torch.Generator | None = None) -> None:
    """Variance 1 / fan-in everywhere: keeps the variance through a linear layer."""
    for layer in weighted_layers(module):
        scale_normal(layer, 1.0, generator)


@torch.no_grad()
def zero_last(parts: Iterable[nn.Module]) -> None:
    """The last convolution or dense layer of each part starts at zero: Fixup 1, for branches and head."""
    for part in parts:
        weighted_layers(part)[-1].weight.zero_()


@torch.no_grad()
def scale_by_depth(branches: list[nn.Module]) -> None:
    """Fixup 2: the other convolutions of each branch are scaled by d^(-1/(2m - 2)), m convolutions each."""
    for branch in branches:
        convolutions = weighted_layers(branch)
        factor = len(branches) ** (-1 / (2 * len(convolutions) - 2))
        for conv in convolutions[:-1]:
            conv.weight.mul_(factor)
