"""Keep what a model computes: batch norm as a scale and shift, and the check that the outputs agree.

In evaluation mode batch norm is a scale and a shift per channel. After a linear map they become part of it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import ConfigError, SkipinitError
from ..nets.layers import CONVOLUTIONS_AND_DENSE
from ..probing.tensors import tensors_in


@dataclass(frozen=True)
class Affine:
    """scale * x + shift, in float64 on the CPU, since not every device has float64."""

    scale: Tensor
    shift: Tensor


def is_batch_norm(module: nn.Module) -> bool:
    """Whether the module is a batch norm, frozen or not."""
    return isinstance(module, _BatchNorm) or is_frozen_batch_norm(module)


def is_frozen_batch_norm(module: nn.Module) -> bool:
    """Whether the module is a batch norm whose statistics and affine parameters are buffers.

    torchvision, timm and Hugging Face each have a class of their own for it.
    """
    named = "norm" in type(module).__name__.lower() and not isinstance(module, _BatchNorm)
    statistics = (getattr(module, name, None) for name in ("running_mean", "running_var"))
    return named and all(isinstance(values, Tensor) and values.dim() == 1 for values in statistics)


@torch.no_grad()
def as_affine(norm: Any, name: str) -> Affine:
    """gamma (x - mu) / sqrt(sigma^2 + eps) + beta, with the running averages as mu and sigma^2."""
    mean, variance = norm.running_mean, norm.running_var
    if mean is None or variance is None or getattr(norm, "batch_statistics_at_test", False):
        raise ConfigError(
            f"{name} has no running statistics, its output depends on the batch at test time too; "
            "no scale and shift computes that: use keep_function=False"
        )
    scale = (_exact(variance) + getattr(norm, "eps", 1e-5)).rsqrt()
    if norm.weight is not None:
        scale = scale * _exact(norm.weight)
    shift = -_exact(mean) * scale
    return Affine(scale, shift if norm.bias is None else shift + _exact(norm.bias))


def _exact(tensor: Tensor) -> Tensor:
    return tensor.to("cpu", torch.float64)


def is_plain(layer: nn.Module) -> bool:
    """Whether the output is linear in its own weights; a subclass may use them in another way."""
    return type(layer) in CONVOLUTIONS_AND_DENSE and "weight" in layer._parameters


def can_fold(layer: nn.Module, affine: Affine) -> bool:
    """Whether the layer can take the scale and shift of its outputs into its weights."""
    return is_plain(layer) and len(layer.get_parameter("weight")) == len(affine.scale)


@torch.no_grad()
def fold(layer: nn.Module, affine: Affine) -> None:
    """scale * (W x + b) + shift = (scale W) x + (scale b + shift)."""
    weight = layer.get_parameter("weight")
    scale = affine.scale.view(-1, *(1,) * (weight.dim() - 1))
    old = layer._parameters["bias"]
    bias = affine.shift if old is None else _exact(old) * affine.scale + affine.shift
    weight.copy_(_exact(weight) * scale)
    layer.register_parameter("bias", nn.Parameter(bias.to(weight), requires_grad=weight.requires_grad))


def check_finite(outputs: Sequence[Tensor], model: str) -> None:
    """Raise if an output of the model of that class in evaluation mode is not finite."""
    if not all(bool(output.isfinite().all()) for output in outputs):
        raise SkipinitError(
            f"{model} gives NaN or infinity in evaluation mode: there is no function to keep; "
            "its running statistics do not fit: train it first, or use keep_function=False"
        )


def largest_difference(outputs: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """max |output - expected| / max |expected| over all tensors; NaN if anything is."""
    if len(outputs) != len(expected):
        return math.inf
    ratios = [
        ((output - wanted).abs().max() / wanted.abs().max().clamp(min=torch.finfo(wanted.dtype).tiny)).item()
        for output, wanted in zip(outputs, expected, strict=True)
        if wanted.numel()
    ]
    return max(ratios, default=0.0, key=lambda ratio: math.inf if math.isnan(ratio) else ratio)


def rounding_tolerance(outputs: Sequence[Tensor]) -> float:
    """The square root of the coarsest rounding error: more than folding costs, less than a mistake does."""
    return max((torch.finfo(tensor.dtype).eps ** 0.5 for tensor in outputs), default=0.0)


def in_double(value: Any) -> Any:
    """The same with every floating-point tensor in float64; a module is copied."""
    if isinstance(value, nn.Module):
        return copy.deepcopy(value).double()
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, Mapping):
        return {name: in_double(item) for name, item in value.items()}
    return type(value)(in_double(item) for item in value) if type(value) in (list, tuple) else value


def floating_tensors(outputs: Any) -> list[Tensor]:
    """The floating-point tensors of what a model returned."""
    return [tensor for tensor in tensors_in(outputs) if tensor.is_floating_point()]
