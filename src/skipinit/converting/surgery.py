"""The operation on a copy of the model: norms out, scalars and biases in; its forward is never touched."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import cast

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from ..errors import SkipinitError
from ..nets.layers import ScalarBias, Weighted, scale_normal
from .changes import Change
from .conversions import Plan
from .extensions import (
    BiasedInput,
    ChannelAffine,
    Copy,
    DividedOutput,
    DroppedInput,
    ScaledOutput,
    extend,
    scalar,
)
from .flow import Block, Flow
from .folding import as_affine, can_fold, fold

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def he_everywhere(model: nn.Module, seed: int | None) -> None:
    """Variance 2 / fan-in for every convolution and dense layer, biases 0 (section 2.3)."""
    device = next((parameter.device for parameter in model.parameters()), None)
    generator = None if seed is None else torch.Generator(device).manual_seed(seed)
    for module in model.modules():
        if isinstance(module, (*CONVOLUTIONS, nn.Linear)):
            scale_normal(cast(Weighted, module), 2.0, generator)


@torch.no_grad()
def start_fixup(model: nn.Module, blocks: Iterable[Block], classifier: str | None) -> None:
    """Components 1 and 2: the last map of each branch and the classifier zero, the others scaled by depth."""
    branches = [block.weights for block in blocks if block.weights]
    for weights in branches:
        for name in weights[:-1]:
            model.get_parameter(name).mul_(len(branches) ** (-1 / (2 * len(weights) - 2)))
        model.get_parameter(weights[-1]).zero_()
    if classifier is not None:
        model.get_submodule(classifier).get_parameter("weight").zero_()


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


class Surgery:
    """Turns `model` into what the plan says; `changes` tells what was done."""

    def __init__(self, model: nn.Module, flow: Flow, plan: Plan) -> None:
        self.model, self.flow, self.plan = model, flow, plan
        self.changes: list[Change] = []
        self.left = [f"{add}, a long skip over other residual adds" for add in _long_skips(flow.blocks)]
        self.blocks = [block for block in flow.blocks if not block.add.nested]
        self._tails = Counter(block.tail for block in self.blocks)

    def run(self) -> None:
        """Everything, in order."""
        scheme = self.plan.scheme
        if scheme.merge == "scale":
            self._check_tails()
        elif scheme.merge == "divide-sqrt2":
            self._check_sums()
        changes, left = remove_norms(self.model, self.flow, self.plan)
        self.changes += changes
        self.left += left
        if self.plan.biases and not self.plan.keep_function:
            self._add_biases()
        if not self.plan.keep_function:
            self._initialize()
        if scheme.fixup:
            self._bias_inputs()
        if scheme.dropout:
            self._drop_classifier_input()
        if scheme.merge == "scale":
            self._scale_branches()
        elif scheme.merge == "divide-sqrt2":
            self._divide_sums()
        self._leave_fused_paths()

    def _add_biases(self) -> None:
        """The paper's unnormalized ImageNet nets, and Regularized SkipInit, have one in every convolution."""
        fed = {self.flow.feeders.get(norm) for norm in self.flow.norms}
        added = 0
        for name, layer in self.model.named_modules():
            wanted = isinstance(layer, CONVOLUTIONS) or (isinstance(layer, nn.Linear) and name in fed)
            if wanted and layer._parameters["bias"] is None:
                weight = layer.get_parameter("weight")
                layer.register_parameter("bias", nn.Parameter(weight.new_zeros(len(weight))))
                added += 1
        if added:
            self._log(None, "", "", f"a bias in {added} layers that had none")

    def _initialize(self) -> None:
        he_everywhere(self.model, self.plan.seed)
        with torch.no_grad():
            for block in self.blocks:
                if block.add.scale is not None:  # The new scalar does its work from now on.
                    self.model.get_parameter(block.add.scale).fill_(1.0)
        if self.plan.scheme.fixup:
            start_fixup(self.model, self.blocks, self.flow.classifier)

    def _check_tails(self) -> None:
        for block in self.blocks:
            name = block.add.name
            if block.tail is None:
                raise SkipinitError(
                    f"{name}: its branch ends in a function, and the scalar needs a module there; use one, "
                    "such as nn.ReLU() for F.relu, or send the branch through an nn.Identity() last"
                )
            if self.flow.calls[block.tail] > self._tails[block.tail]:
                raise SkipinitError(
                    f"{name}: {block.tail} ends its branch and is used elsewhere too; give each place its own"
                )

    def _scale_branches(self) -> None:
        biased = {block.tail: block.add.activation is not None for block in self.blocks}
        named = {block.tail: block.add.name for block in reversed(self.blocks)}
        for tail, with_bias in biased.items():
            assert tail is not None
            layer = self.model.get_submodule(tail)
            merge_bias = scalar(0.0, layer, self.model) if with_bias else None
            alpha = scalar(self.plan.alpha, layer, self.model)
            extend(layer, ScaledOutput, branch_alpha=alpha, merge_bias=merge_bias)
            bias = ", scalar bias before the activation" if with_bias else ""
            self._log(named[tail], tail, "", f"branch scalar, {self.plan.alpha:g}{bias}")

    def _check_sums(self) -> None:
        adds = Counter(block.add.module for block in self.flow.blocks)
        for block in self.blocks:
            activation = block.add.activation
            after = None if activation is None else self.model.get_submodule(activation)
            commutes = after is None or isinstance(after, (nn.ReLU, nn.LeakyReLU))
            if not (block.hands_on_sum and commutes and adds[block.add.module] == 1):
                raise SkipinitError(
                    f"{block.add.name}: its sum cannot be divided by sqrt(2) from outside; the module that "
                    "adds must do so once and return the sum, or its nn.ReLU: try scheme='skipinit'"
                )

    def _divide_sums(self) -> None:
        for block in self.blocks:
            extend(self.model.get_submodule(block.add.module), DividedOutput)
            self._log(block.add.name, block.add.module, "", "output / sqrt(2)")

    def _bias_inputs(self) -> None:
        layers = [
            layer
            for name, layer in self.model.named_modules()
            if isinstance(layer, (*CONVOLUTIONS, nn.Linear)) and self.flow.calls.get(name)
        ]
        for layer in layers:
            extend(layer, BiasedInput, input_bias=scalar(0.0, layer))
        self._log(None, "", "", f"a scalar bias before {len(layers)} layers")

    def _drop_classifier_input(self) -> None:
        name = self.flow.classifier
        if name is None:
            raise SkipinitError(
                f"scheme {self.plan.scheme.name!r} has dropout before the classifier, and no one dense layer "
                f"makes the output of {type(self.model).__name__}; use scheme='skipinit' and your own dropout"
            )
        extend(self.model.get_submodule(name), DroppedInput, input_dropout=self.plan.dropout)
        self._log(None, name, "", f"dropout {self.plan.dropout:g} before it")

    def _leave_fused_paths(self) -> None:
        """In evaluation torch's encoder would bypass its modules for one fused kernel: not any more."""
        for module in self.model.modules():
            if isinstance(module, nn.TransformerEncoderLayer):
                module.activation_relu_or_gelu = 0
            elif isinstance(module, nn.TransformerEncoder):
                module.use_nested_tensor = False

    def _log(self, block: str | None, module: str, went: str, came: str) -> None:
        self.changes.append(Change(block, module, went, came))


def _long_skips(blocks: Iterable[Block]) -> list[str]:
    """They keep their weight of 1: it is the chain of blocks inside that depth makes hard to train."""
    return [block.add.name for block in blocks if block.add.nested]
