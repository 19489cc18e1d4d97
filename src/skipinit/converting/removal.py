"""Remove the norms of a model, or replace each by what it computes in evaluation mode.

In evaluation mode batch norm is a scale and a shift per channel. After a linear map they become part of it.
So the function of a network with batch norm can be kept, and whether the outputs agree is checked.
"""

from __future__ import annotations

import copy
import math
from collections import Counter, OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..errors import ConfigError, SkipinitError
from ..nets.blocks import ScalarBias
from ..nets.layers import CONVOLUTIONS_AND_DENSE, is_linear_map
from ..probing.forward import copy_model
from ..probing.inputs import tensors_given
from ..probing.tensors import tensors_in, values_of
from .changes import Change
from .extensions import ChannelAffine, Copy, scalar
from .flow import Flow
from .norms import is_batch_norm, is_norm
from .plan import Plan, Selection

NO_BATCH_NORM = "normalizes each example by itself, which no scale and shift computes"


def why_not_folded(norm: nn.Module, over_batch: bool) -> str:
    """Why a norm that is no batch norm of torch stays if the function is kept."""
    kind = type(norm).__name__
    if over_batch:
        return f"{kind} normalizes over the batch in its own forward; only layers of batch norm can be folded"
    return f"{kind} {NO_BATCH_NORM}"


class NormRemoval:
    """Removes the norms that the flow names, except those of the blocks in `unscaled`.

    `left` says which stayed, and why. With `stand_ins`, a buffer stays where a norm had a weight.
    """

    def __init__(
        self,
        model: nn.Module,
        flow: Flow,
        plan: Plan,
        selection: Selection,
        unscaled: Collection[str],
        stand_ins: bool,
    ) -> None:
        self.model, self.flow, self.plan, self.selection = model, flow, plan, selection
        self.stand_ins = stand_ins
        self.changes: list[Change] = []
        self.left: dict[str, str] = {}
        """The norms that stayed, except those that the user excluded: name and reason."""
        # A block inside another one runs first, and its norms belong to it alone.
        self.blocks = {
            norm: block.add.name
            for block in reversed(flow.blocks)
            for norm in (*block.add.branch_norms, *block.add.skip_norms, *block.add.shared_norms)
        }
        self.unscaled = {norm for norm, block in self.blocks.items() if block in unscaled}
        # By modules, not by names: a layer may have several, as nnU-Net's `conv` is also `all_modules.0`.
        self.uses = Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))
        self.at_an_end = {block.tail for block in flow.blocks} | {
            norm for block in flow.blocks for norm in block.add.skip_norms
        }

    def run(self) -> None:
        """Replace each norm, under every name it has."""
        replacements: dict[nn.Module, nn.Module] = {}
        for name in self.flow.norms:
            norm = self.model.get_submodule(name)
            if name not in self.selection or norm in replacements:
                continue
            if reason := self.stays(name, norm):
                self.left[name or type(norm).__name__] = reason
                continue
            layer, added = self.keep(name, norm) if self.plan.keep_function else self.drop(name, norm)
            layer.train(norm.training)
            replacements[norm] = _with_children(norm, layer)
            if self.stand_ins:
                _keep_attributes(norm, layer)
            self.changes.append(Change(self.blocks.get(name), name, type(norm).__name__, added))
        for parent in list(self.model.modules()):
            for name, child in list(parent._modules.items()):
                if child in replacements:
                    setattr(parent, name, replacements[child])

    def stays(self, name: str, norm: nn.Module) -> str:
        """Why the norm stays; empty if it is removed."""
        kind = type(norm).__name__
        if name in self.flow.several_tensors:
            return f"{kind} takes or returns several tensors, so it is more than a norm"
        if self.plan.keep_function:
            return "" if is_batch_norm(norm) else why_not_folded(norm, name in self.flow.over_batch)
        if name in self.unscaled:
            return "its branch has no scalar"
        if isinstance(norm, self.selection.norms):
            return ""
        if name in self.flow.more_than_norms:
            return f"{kind} also has a linear map or an activation; norms=({kind},) removes them with it"
        if is_norm(norm):
            return ""
        inside = f"{kind} normalizes inside its own forward"
        if any(is_linear_map(layer) for layer in norm.modules()):
            return f"{inside}, beside its layers; a norm in a module of its own can be removed, with norms="
        return f"{inside}; if it is nothing but a norm, give norms=({kind},)"

    def keep(self, name: str, norm: nn.Module) -> tuple[nn.Module, str]:
        """A layer that computes what the norm computes in evaluation mode."""
        affine = as_affine(norm, name)
        feeder = self.flow.feeders.get(name)
        once = self.flow.calls[name] == 1
        if feeder is not None and once and self.flow.calls[feeder] == 1 and feeder in self.selection:
            linear = self.model.get_submodule(feeder)
            along = name in self.flow.along_channels
            if along and can_fold(linear, affine) and self.uses[id(linear.weight)] == 1:
                fold(linear, affine)
                return nn.Identity(), f"folded into {feeder}"
        given = cast(Any, norm)
        like = given.running_var if given.weight is None else given.weight
        layer = ChannelAffine(affine.scale.to(like), affine.shift.to(like))
        if given.weight is not None:
            layer.requires_grad_(given.weight.requires_grad)
        return layer, "scale and shift"

    def drop(self, name: str, norm: nn.Module) -> tuple[nn.Module, str]:
        """The identity, or with Fixup the scalar bias before the activation that follows."""
        if self.plan.scheme.fixup and name not in self.at_an_end:
            bias = ScalarBias()
            bias.bias = scalar(0.0, norm)
            return bias, "scalar bias"
        if name in self.flow.overwritten and name not in self.flow.feeders:
            return Copy(), "a copy, since what follows writes in place"
        return nn.Identity(), ""


def _keep_attributes(norm: nn.Module, layer: nn.Module) -> None:
    """Buffers instead of the norm's parameters, neither saved nor trained: a forward may read their dtype."""
    for name, parameter in norm.named_parameters(recurse=False):
        if not hasattr(layer, name):
            layer.register_buffer(name, parameter.detach().new_ones(()), persistent=False)


def _with_children(norm: nn.Module, layer: nn.Module) -> nn.Module:
    """Some norms contain an activation or dropout, as timm's BatchNormAct2d does: those stay."""
    children = {name: child for name, child in norm.named_children() if not list(child.parameters())}
    if not children:
        return layer
    head = {} if isinstance(layer, nn.Identity) else {"affine": layer}
    together = nn.Sequential(OrderedDict(head | children))
    together.training = norm.training
    return together


@dataclass(frozen=True)
class Affine:
    """scale * x + shift, in float64 on the CPU, since not every device has float64."""

    scale: Tensor
    shift: Tensor


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
    """max |output - expected| / max |expected| over all tensors; NaN if one is, infinite if shapes differ."""
    if [output.shape for output in outputs] != [wanted.shape for wanted in expected]:
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
    """A copy with every floating-point tensor in float64; of a model, or of its inputs."""
    if isinstance(value, nn.Module):
        return copy_model(value).double()
    tensors = tensors_given(value)
    return copy.deepcopy(value, {id(t): t.double() if t.is_floating_point() else t for t in tensors})


def floating_tensors(outputs: Any) -> list[Tensor]:
    """The floating-point tensors of what a model returned, without empty ones, such as no boxes."""
    return [values_of(t) for t in tensors_in(outputs) if t.is_floating_point() and t.numel()]
