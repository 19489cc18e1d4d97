"""The convolutions and dense layers of any module: which they are, how their weights start, which get L2."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

Weighted = nn.Conv2d | nn.Linear
Transposed = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
CONVOLUTIONS_AND_DENSE = (*CONVOLUTIONS, nn.Linear)
TRANSPOSED_CONVOLUTIONS = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
LINEAR_MAPS = (*CONVOLUTIONS_AND_DENSE, *TRANSPOSED_CONVOLUTIONS)
"""Layers of torch that compute one linear map and have `weight` and `bias`."""
_SEVERAL_MAPS = (nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase)
"""Layers of torch with several weights, each of which has "weight" in its name."""


def is_linear_map(module: nn.Module) -> bool:
    """Whether the module computes one linear map: a layer of torch, or a dense one of another class."""
    return isinstance(module, LINEAR_MAPS) or is_dense(module)


def is_dense(module: nn.Module) -> bool:
    """Whether this is a dense layer: `nn.Linear`, or one of another class, such as transformers' `Conv1D`.

    Those have a matrix `weight`, a vector `bias` along one of its axes, and no other parameters but scalars.
    Tables, such as embeddings, have no bias.
    """
    if isinstance(module, nn.Linear):
        return True
    others = dict(module.named_parameters())
    weight, bias = others.pop("weight", None), others.pop("bias", None)
    if weight is None or bias is None or any(parameter.dim() for parameter in others.values()):
        return False
    return weight.dim() == 2 and bias.dim() == 1 and len(bias) in weight.shape


def weighted_layers(module: nn.Module) -> list[Weighted]:
    """The convolutions and dense layers of a module, in order."""
    return [m for m in module.modules() if isinstance(m, nn.Conv2d | nn.Linear)]


def l2_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that get L2 regularization (weight decay), by name.

    These are the weights of convolutions, dense, attention and recurrent layers. Left out are biases, scale
    and shift of norms, branch scalars, embeddings and weights tied to them, and parameters of other modules,
    where a weight matrix and a table of positions look the same.

    Args:
        model: any module.

    >>> list(l2_parameters(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.LayerNorm(3))))
    ['0.weight']
    """
    weights, tables = set[int](), set[int]()
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
                tables.add(id(parameter))
            elif (is_linear_map(module) and name == "weight") or (
                isinstance(module, _SEVERAL_MAPS) and "weight" in name
            ):
                weights.add(id(parameter))
    decayed = weights - tables
    return {name: parameter for name, parameter in model.named_parameters() if id(parameter) in decayed}


@torch.no_grad()
def scale_normal(layer: Weighted | Transposed, gain: float, generator: torch.Generator | None) -> None:
    """w ~ N(0, gain / fan-in), b = 0."""
    with _weight_to_write(layer) as weight:
        if weight.numel():  # A layer without outputs, as a narrow version of a network may have, has none.
            weight.normal_(0, math.sqrt(gain / _fan_in(layer)), generator=generator)
    if layer.bias is not None:
        layer.bias.zero_()


def _fan_in(layer: Weighted | Transposed) -> float:
    """The number of products that an output sums; for a transposed convolution, on average."""
    if not isinstance(layer, LINEAR_MAPS):  # Its weight may be (in, out); the bias tells which axis is out.
        return layer.weight.numel() / layer.bias.numel()
    if isinstance(layer, TRANSPOSED_CONVOLUTIONS):
        products = layer.in_channels // layer.groups * math.prod(layer.kernel_size)
        return products / math.prod(layer.stride)
    return layer.weight[0].numel()


@torch.no_grad()
def scale_weight(layer: nn.Module, factor: float) -> None:
    """w becomes factor * w."""
    with _weight_to_write(layer) as weight:
        weight.mul_(factor)


@contextmanager
def _weight_to_write(layer: Any) -> Iterator[Tensor]:
    """The weight, to write into. A parametrized one is computed on each access, so it is assigned after."""
    weight = layer.weight
    yield weight
    if is_parametrized(layer, "weight"):
        layer.weight = weight


def he(module: nn.Module, generator: torch.Generator | None = None) -> None:
    """Weights of variance 2 / fan-in: a ReLU and the layer after it together keep the variance."""
    for layer in weighted_layers(module):
        scale_normal(layer, 2.0, generator)


def lecun(module: nn.Module, generator: torch.Generator | None = None) -> None:
    """Weights of variance 1 / fan-in: a linear layer keeps the variance."""
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
