"""Batch norm at test time is a scale and a shift per channel; after a linear map it is part of that map."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import ConfigError

_FOLDABLE = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


@dataclass(frozen=True)
class Affine:
    """scale * x + shift, in float64 on the CPU: not every device has that."""

    scale: Tensor
    shift: Tensor


@torch.no_grad()
def as_affine(norm: _BatchNorm, name: str) -> Affine:
    """gamma (x - mu) / sqrt(sigma^2 + eps) + beta, with the running averages as mu and sigma^2."""
    mean, variance = norm.running_mean, norm.running_var
    if mean is None or variance is None or getattr(norm, "batch_statistics_at_test", False):
        raise ConfigError(
            f"{name} has no running statistics, its output depends on the batch at test time too; "
            "no scale and shift computes that: use keep_function=False"
        )
    scale = (_exact(variance) + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * _exact(norm.weight)
    shift = -_exact(mean) * scale
    return Affine(scale, shift if norm.bias is None else shift + _exact(norm.bias))


def _exact(tensor: Tensor) -> Tensor:
    return tensor.to("cpu", torch.float64)


def can_fold(layer: nn.Module, affine: Affine) -> bool:
    """Whether the layer is a plain one; a subclass may compute with its weights as it likes."""
    return type(layer) in _FOLDABLE and len(layer.get_parameter("weight")) == len(affine.scale)


@torch.no_grad()
def fold(layer: nn.Module, affine: Affine) -> None:
    """scale * (W x + b) + shift = (scale W) x + (scale b + shift)."""
    weight = layer.get_parameter("weight")
    scale = affine.scale.view(-1, *(1,) * (weight.dim() - 1))
    old = layer._parameters["bias"]
    bias = affine.shift if old is None else _exact(old) * affine.scale + affine.shift
    weight.copy_(_exact(weight) * scale)
    layer.register_parameter("bias", nn.Parameter(bias.to(weight), requires_grad=weight.requires_grad))
