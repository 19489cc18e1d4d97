"""Change a copy of a model: norms out, scalars and biases in. The model's own forward is not changed."""

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
from .plan import Plan

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def is_norm(module: nn.Module) -> bool:
    """Whether the module is one of torch's norms, or a layer that has "norm" in its class name."""
    custom = not list(module.children()) and "norm" in type(module).__name__.lower()
    return isinstance(module, NORMS) or custom


def unreached_norms(model: nn.Module, reached: Iterable[str]) -> list[str]:
    """Norms that took no part in the forward pass."""
    names = set(reached)
    return [name for name, module in model.named_modules() if isinstance(module, NORMS) and name not in names]


def disable_inplace(model: nn.Module) -> None:
    """Without the norm before it, an in-place activation would write into the skip."""
    for module in model.modules():
        if getattr(module, "inplace", False) is True:
            module.inplace = False  # type: ignore[assignment]


class Surgery:
    """Changes `model` as the plan says. `changes` lists what was done, `left` what was not, and why."""

    def __init__(self, model: nn.Module, flow: Flow, plan: Plan) -> None:
        self.model, self.flow, self.plan = model, flow, plan
        self.blocks = [block for block in flow.blocks if not block.add.nested]
        self.changes: list[Change] = []
        # Long skips keep their weight of 1: it is the chain of blocks inside that is hard to train when deep.
        nested = [block.add.name for block in flow.blocks if block.add.nested]
        self.left = [f"{name}, a long skip over other residual adds" for name in nested]

    def run(self) -> None:
        """All steps, in order."""
        scheme = self.plan.scheme
        if scheme.merge == "scale":
            self._check_tails()
        elif scheme.merge == "divide-sqrt2":
            self._check_sums()
        removal = _NormRemoval(self.model, self.flow, self.plan)
        removal.run()
        self.changes += removal.changes
        self.left += removal.left
        if not self.plan.keep_function:
            if self.plan.biases:
                self._add_biases()
            self._initialize()
        if scheme.fixup:
            self._bias_inputs()
        if scheme.dropout:
            self._drop_classifier_input()
        if scheme.merge == "scale":
            self._scale_branches()
        elif scheme.merge == "divide-sqrt2":
            self._divide_sums()
        self._disable_fused_paths()

    def _add_biases(self) -> None:
        """The paper's unnormalized ImageNet nets, and Regularized SkipInit, have one in every convolution."""
        fed = {self.flow.feeders.get(norm) for norm in self.flow.norms}
        count = 0
        for name, layer in self.model.named_modules():
            wanted = isinstance(layer, CONVOLUTIONS) or (isinstance(layer, nn.Linear) and name in fed)
            if wanted and layer._parameters["bias"] is None:
                weight = layer.get_parameter("weight")
                layer.register_parameter("bias", nn.Parameter(weight.new_zeros(len(weight))))
                count += 1
        if count:
            self._log(None, "", f"a bias in {count} layers that had none")

    def _initialize(self) -> None:
        _he_initialize(self.model, self.plan.seed)
        with torch.no_grad():
            for block in self.blocks:
                if block.add.scale is not None:  # The new scalar takes over its role.
                    self.model.get_parameter(block.add.scale).fill_(1.0)
        if self.plan.scheme.fixup:
            _fixup_initialize(self.model, self.blocks, self.flow.classifier)

    def _check_tails(self) -> None:
        tails = Counter(block.tail for block in self.blocks)
        for block in self.blocks:
            name = block.add.name
            if block.tail is None:
                raise SkipinitError(
                    f"{name}: its branch ends in a function, and the scalar needs a module there; use one, "
                    "such as nn.ReLU() for F.relu, or send the branch through an nn.Identity() last"
                )
            if self.flow.calls[block.tail] > tails[block.tail]:
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
            self._log(named[tail], tail, f"branch scalar, {self.plan.alpha:g}{bias}")

    def _check_sums(self) -> None:
        adds = Counter(block.add.module for block in self.flow.blocks)
        for block in self.blocks:
            activation = block.add.activation
            after = None if activation is None else self.model.get_submodule(activation)
            commutes = after is None or isinstance(after, (nn.ReLU, nn.LeakyReLU))
            if not (block.returns_sum and commutes and adds[block.add.module] == 1):
                raise SkipinitError(
                    f"{block.add.name}: its sum cannot be divided by sqrt(2) from outside; the module that "
                    "adds must do so once and return the sum, or its nn.ReLU: try scheme='skipinit'"
                )

    def _divide_sums(self) -> None:
        for block in self.blocks:
            extend(self.model.get_submodule(block.add.module), DividedOutput)
            self._log(block.add.name, block.add.module, "output / sqrt(2)")

    def _bias_inputs(self) -> None:
        layers = [
            layer
            for name, layer in self.model.named_modules()
            if isinstance(layer, (*CONVOLUTIONS, nn.Linear)) and self.flow.calls.get(name)
        ]
        for layer in layers:
            extend(layer, BiasedInput, input_bias=scalar(0.0, layer))
        self._log(None, "", f"a scalar bias before {len(layers)} layers")

    def _drop_classifier_input(self) -> None:
        name = self.flow.classifier
        if name is None:
            raise SkipinitError(
                f"scheme {self.plan.scheme.name!r} has dropout before the classifier, and no one dense layer "
                f"makes the output of {type(self.model).__name__}; use scheme='skipinit' and your own dropout"
            )
        extend(self.model.get_submodule(name), DroppedInput, input_dropout=self.plan.dropout)
        self._log(None, name, f"dropout {self.plan.dropout:g} before it")

    def _disable_fused_paths(self) -> None:
        """In evaluation mode torch's encoder would run one fused kernel, without the scalars."""
        for module in self.model.modules():
            if isinstance(module, nn.TransformerEncoderLayer):
                module.activation_relu_or_gelu = 0
            elif isinstance(module, nn.TransformerEncoder):
                module.use_nested_tensor = False

    def _log(self, block: str | None, module: str, added: str) -> None:
        self.changes.append(Change(block, module, removed="", added=added))


class _NormRemoval:
    def __init__(self, model: nn.Module, flow: Flow, plan: Plan) -> None:
        self.model, self.flow, self.plan = model, flow, plan
        self.changes: list[Change] = []
        self.left: list[str] = []
        adds = [block.add for block in flow.blocks if not block.add.nested]
        self.blocks = {
            norm: add.name for add in adds for norm in (*add.branch_norms, *add.skip_norms, *add.shared_norms)
        }
        self.uses = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
        self.adding = {add.module for add in adds}
        self.at_an_end = {block.tail for block in flow.blocks} | {n for add in adds for n in add.skip_norms}

    def run(self) -> None:
        replacements: dict[nn.Module, nn.Module] = {}
        for name in self.flow.norms:
            norm = self.model.get_submodule(name)
            if self.stays(name, norm):
                continue
            layer, added = self.keep(name, norm) if self.plan.keep_function else self.drop(name, norm)
            replacements[norm] = _with_children(norm, layer)
            self.changes.append(Change(self.blocks.get(name), name, type(norm).__name__, added))
        for parent in list(self.model.modules()):
            for name, child in list(parent._modules.items()):
                if child in replacements:  # Under every name it has.
                    setattr(parent, name, replacements[child])

    def stays(self, name: str, norm: nn.Module) -> bool:
        kind = type(norm).__name__
        if self.plan.keep_function:
            if not isinstance(norm, _BatchNorm):
                self.left.append(f"{name}, {kind} is no batch norm")
            return not isinstance(norm, _BatchNorm)
        if is_norm(norm):
            return False
        if name in self.blocks or name in self.adding:
            raise SkipinitError(
                f"{name or kind} normalizes inside its own forward; only norms that are modules can be taken "
                "out: make it one, such as nn.LayerNorm"
            )
        self.left.append(f"{name or kind}, it normalizes inside its own forward")
        return True

    def keep(self, name: str, norm: nn.Module) -> tuple[nn.Module, str]:
        """A layer that computes what the norm computes in evaluation mode."""
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
        """The identity, or with Fixup the scalar bias before the activation that follows."""
        if self.plan.scheme.fixup and name not in self.at_an_end:
            bias = ScalarBias()
            bias.bias = scalar(0.0, norm)
            return bias, "scalar bias"
        if name in self.flow.overwritten and name not in self.flow.feeders:
            return Copy(), "a copy, since what follows writes in place"
        return nn.Identity(), ""


def _with_children(norm: nn.Module, layer: nn.Module) -> nn.Module:
    """Some norms contain an activation or dropout, as timm's BatchNormAct2d does: those stay."""
    children = dict(norm.named_children())
    if not children:
        return layer
    head = {} if isinstance(layer, nn.Identity) else {"affine": layer}
    return nn.Sequential(OrderedDict(head | children))


def _he_initialize(model: nn.Module, seed: int | None) -> None:
    """Variance 2 / fan-in for every convolution and dense layer, biases 0 (section 2.3)."""
    device = next((parameter.device for parameter in model.parameters()), None)
    generator = None if seed is None else torch.Generator(device).manual_seed(seed)
    for module in model.modules():
        if isinstance(module, (*CONVOLUTIONS, nn.Linear)):
            scale_normal(cast(Weighted, module), 2.0, generator)


@torch.no_grad()
def _fixup_initialize(model: nn.Module, blocks: Iterable[Block], classifier: str | None) -> None:
    """Components 1 and 2: the last map of each branch and the classifier zero, the others scaled by depth."""
    branches = [block.weights for block in blocks if block.weights]
    for weights in branches:
        for name in weights[:-1]:
            model.get_parameter(name).mul_(len(branches) ** (-1 / (2 * len(weights) - 2)))
        model.get_parameter(weights[-1]).zero_()
    if classifier is not None:
        model.get_submodule(classifier).get_parameter("weight").zero_()
