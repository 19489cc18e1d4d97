"""Remove the norms of a model, or replace each by what it computes in evaluation mode."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable
from typing import Any, cast

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from ..nets.blocks import ScalarBias
from .changes import Change
from .extensions import ChannelAffine, Copy, scalar
from .flow import Flow
from .folding import as_affine, can_fold, fold, is_batch_norm, is_frozen_batch_norm
from .plan import Plan, Selection

NO_BATCH_NORM = "normalizes each example by itself, which no scale and shift computes"
NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def is_norm(module: nn.Module) -> bool:
    """Whether the module is one of torch's norms, or a layer that has "norm" in its class name."""
    custom = not list(module.children()) and "norm" in type(module).__name__.lower()
    return isinstance(module, NORMS) or custom or is_frozen_batch_norm(module)


def unreached_norms(model: nn.Module, reached: Iterable[str]) -> list[str]:
    """Norms that took no part in the forward pass."""
    names = set(reached)
    return [name for name, module in model.named_modules() if isinstance(module, NORMS) and name not in names]


def why_not_folded(norm: nn.Module, over_batch: bool) -> str:
    """Why a norm that is no batch norm stays if the function is kept; `over_batch`: its forward runs one."""
    kind = type(norm).__name__
    if over_batch and not is_norm(norm):
        return f"{kind} runs a batch norm in its own forward, only modules can be folded"
    return f"{kind} {NO_BATCH_NORM}"


class NormRemoval:
    """Removes the norms that the flow names. `left` says which stayed, and why."""

    def __init__(
        self,
        model: nn.Module,
        flow: Flow,
        plan: Plan,
        selection: Selection,
        norm_types: tuple[type[nn.Module], ...],
        unscaled: Collection[str],
        stand_ins: bool,
    ) -> None:
        self.model, self.flow, self.plan, self.selection = model, flow, plan, selection
        self.norm_types, self.stand_ins = norm_types, stand_ins
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
        self.uses = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
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
        if name in self.flow.several_inputs:
            return f"{kind} takes several tensors, so it is more than a norm"
        if self.plan.keep_function:
            return "" if is_batch_norm(norm) else why_not_folded(norm, name in self.flow.over_batch)
        if name in self.unscaled:
            return "its branch has no scalar"
        if is_norm(norm) or isinstance(norm, self.norm_types):
            return ""
        return f"{kind} normalizes inside its own forward; if it is nothing but a norm, give norms=({kind},)"

    def keep(self, name: str, norm: nn.Module) -> tuple[nn.Module, str]:
        """A layer that computes what the norm computes in evaluation mode."""
        affine = as_affine(norm, name)
        feeder = self.flow.feeders.get(name)
        once = self.flow.calls[name] == 1
        if feeder is not None and once and self.flow.calls[feeder] == 1 and feeder in self.selection:
            linear = self.model.get_submodule(feeder)
            if can_fold(linear, affine) and self.uses[id(linear.weight)] == 1:
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
    return nn.Sequential(OrderedDict(head | children))
