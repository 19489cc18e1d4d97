"""The operation on a copy of the model: norms out, scalars and biases in; its forward is never touched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch
from torch import nn

from ..errors import SkipinitError
from . import initialization
from .flow import Block, Flow
from .initialization import CONVOLUTIONS
from .layers import BiasedInput, DividedOutput, DroppedInput, ScaledOutput, extend, scalar
from .removal import remove_norms
from .report import Change
from .schemes import Plan


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
        initialization.he(self.model, self.plan.seed)
        with torch.no_grad():
            for block in self.blocks:
                if block.add.scale is not None:  # The new scalar does its work from now on.
                    self.model.get_parameter(block.add.scale).fill_(1.0)
        if self.plan.scheme.fixup:
            initialization.fixup(self.model, self.blocks, self.flow.classifier)

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
