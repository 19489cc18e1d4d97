"""Norms out: each becomes nothing, or what computes the same at test time."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from ..errors import SkipinitError
from ..nets.layers import ScalarBias
from .flow import Flow
from .folding import as_affine, can_fold, fold
from .layers import ChannelAffine, Copy, scalar
from .report import Change
from .schemes import Plan

_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def is_norm(module: nn.Module) -> bool:
    """One of torch's, or a layer of someone's own that says so by its name."""
    own = not list(module.children()) and "norm" in type(module).__name__.lower()
    return isinstance(module, _NORMS) or own


def unreached_norms(model: nn.Module, seen: Iterable[str]) -> list[str]:
    """Norms that took no part in the forward pass."""
    reached = set(seen)
    return [
        name for name, module in model.named_modules() if isinstance(module, _NORMS) and name not in reached
    ]


def write_nowhere_in_place(model: nn.Module) -> None:
    """Without the norm before it, an in-place activation would write into the skip."""
    for module in model.modules():
        if getattr(module, "inplace", False) is True:
            module.inplace = False  # type: ignore[assignment]


def remove_norms(model: nn.Module, flow: Flow, plan: Plan) -> tuple[list[Change], list[str]]:
    """What was changed, and what stayed with the reason."""
    removal = _Removal(model, flow, plan)
    removal.run()
    return removal.changes, removal.left


class _Removal:
    def __init__(self, model: nn.Module, flow: Flow, plan: Plan) -> None:
        self.model, self.flow, self.plan = model, flow, plan
        self.changes: list[Change] = []
        self.left: list[str] = []
        adds = [block.add for block in flow.blocks if not block.add.nested]
        self.places = {
            norm: add.name for add in adds for norm in (*add.branch_norms, *add.skip_norms, *add.shared_norms)
        }
        self.uses = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
        self.adding = {add.module for add in adds}
        self.at_an_end = {block.tail for block in flow.blocks} | {n for add in adds for n in add.skip_norms}

    def run(self) -> None:
        swaps: dict[nn.Module, nn.Module] = {}
        for name in self.flow.norms:
            norm = self.model.get_submodule(name)
            if self.stays(name, norm):
                continue
            layer, came = self.keep(name, norm) if self.plan.keep_function else self.drop(name, norm)
            swaps[norm] = _with_children(norm, layer)
            self.changes.append(Change(self.places.get(name), name, type(norm).__name__, came))
        for parent in list(self.model.modules()):
            for name, child in list(parent._modules.items()):
                if child in swaps:  # Under every name it has.
                    setattr(parent, name, swaps[child])

    def stays(self, name: str, norm: nn.Module) -> bool:
        kind = type(norm).__name__
        if self.plan.keep_function:
            if not isinstance(norm, _BatchNorm):
                self.left.append(f"{name}, {kind} is no batch norm")
            return not isinstance(norm, _BatchNorm)
        if is_norm(norm):
            return False
        if name in self.places or name in self.adding:
            raise SkipinitError(
                f"{name or kind} normalizes inside its own forward; only norms that are modules can be taken "
                "out: make it one, such as nn.LayerNorm"
            )
        self.left.append(f"{name or kind}, it normalizes inside its own forward")
        return True

    def keep(self, name: str, norm: nn.Module) -> tuple[nn.Module, str]:
        """What computes the same as the norm in evaluation mode."""
        assert isinstance(norm, _BatchNorm)
        affine = as_affine(norm, name)
        feeder = self.flow.feeders.get(name)
        if feeder is not None and self.flow.calls[feeder] == 1:
            layer = self.model.get_submodule(feeder)
            if can_fold(layer, affine) and self.uses[id(layer.weight)] == 1:
                fold(layer, affine)
                return nn.Identity(), f"folded into {feeder}"
        like = norm.running_var if norm.weight is None else norm.weight
        return ChannelAffine(affine.scale.to(like), affine.shift.to(like)), "scale and shift"

    def drop(self, name: str, norm: nn.Module) -> tuple[nn.Module, str]:
        """Nothing, or with Fixup the scalar bias before the activation that follows."""
        if self.plan.scheme.fixup and name not in self.at_an_end:
            bias = ScalarBias()
            bias.bias = scalar(0.0, norm)
            return bias, "scalar bias"
        if name in self.flow.overwritten and name not in self.flow.feeders:
            return Copy(), "a copy, since what follows writes in place"
        return nn.Identity(), ""


def _with_children(norm: nn.Module, layer: nn.Module) -> nn.Module:
    """Some norms carry an activation or dropout along, as timm's BatchNormAct2d does: those stay."""
    children = dict(norm.named_children())
    if not children:
        return layer
    head = {} if isinstance(layer, nn.Identity) else {"affine": layer}
    return nn.Sequential(OrderedDict(head | children))
