"""Change a copy of a model: remove norms, add scalars and biases. The model's own forward stays the same.

Whether each scalar scales its whole branch is for `attempts` to find out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.fx import GraphModule

from ..errors import SkipinitError
from ..nets.layers import LINEAR_MAPS, is_linear_map
from .branches import Block
from .changes import Change
from .extensions import (
    BiasedInput,
    BranchScale,
    DividedOutput,
    DroppedInput,
    ScaledOutput,
    extend,
    own_forward,
    scalar,
)
from .flow import Flow
from .initialization import Drawn, draw_weights
from .plan import Plan, Selection, outwards
from .removal import NormRemoval
from .sites import ScaledAdds, source_of


@dataclass
class Corrections:
    """What earlier attempts at a surgery showed."""

    at_the_add: set[str] = field(default_factory=set)
    """Blocks whose branch is not all scaled by the module that ends it: the scalar belongs at the add."""
    unscaled: set[str] = field(default_factory=set)
    """Blocks whose branch contributes although the add scales it: they get no scalar."""
    stand_ins: bool = False
    """Whether the forward reads the weights of removed norms: buffers stay in their place."""
    only_plain: bool = False
    """Whether the forward of a layer of another class takes no bias: only layers of torch get one."""


class Surgery:
    """Changes `model` as the plan says. `changes` lists what was done, `left` what was not, and why.

    Each branch gets its scalar at its end: on the module that ends it, or, where that module has other uses
    or there is none, at the add itself. `corrections` says where that was tried in vain.
    """

    def __init__(
        self, model: nn.Module, flow: Flow, plan: Plan, selection: Selection, corrections: Corrections
    ) -> None:
        self.model, self.flow, self.plan, self.selection = model, flow, plan, selection
        self.corrections = corrections
        self.contributing: set[str] = set()
        """The blocks whose branch contributes although every scalar is 0."""
        self.in_training: set[str] = set()
        """Adds that the model has in training alone, and whose branch contributes there."""
        self.remarks: list[str] = []
        """What the user is to be warned of."""
        self.changes: list[Change] = []
        self.kept: list[str] = []
        """The parameters that were not drawn anew, though the rest was."""
        self.unfrozen: list[str] = []
        """Parameters that were frozen and were drawn anew: they train now."""
        self.chosen = [block for block in flow.blocks if block.add.module in selection]
        scaled = plan.scheme.merge == "scale"
        self.on_tail, self.on_site, self.unscaled = list[Block](), list[Block](), list[Block]()
        for block in self.chosen:
            if scaled and block.add.name in corrections.unscaled:
                self.unscaled.append(block)
            elif self._ends_in_module(block) and block.add.name not in corrections.at_the_add:
                self.on_tail.append(block)
            elif self._can_scale_at_add(block):
                self.on_site.append(block)
            elif scaled:
                self.unscaled.append(block)
        self.blocks = [block for block in self.chosen if block not in self.unscaled]
        names = [block.add.name for block in self.unscaled]
        self.removal = NormRemoval(model, flow, plan, selection, names, corrections.stand_ins)

    @property
    def left(self) -> dict[str, str]:
        """Branches without a scalar and norms that stayed, each with the reason."""
        unscaled = {block.add.name: _why_unscaled(block, self._adder(block)) for block in self.unscaled}
        return unscaled | self.removal.left

    @property
    def removed_norms(self) -> set[str]:
        """The norms that were removed."""
        return {change.module for change in self.changes if change.removed}

    # A module of torch.fx makes a class of its own for each copy of it, which cannot be extended.
    def _ends_in_module(self, block: Block) -> bool:
        if block.tail is None or block.tail not in self.selection:
            return False
        return not isinstance(self.model.get_submodule(block.tail), GraphModule)

    def _can_scale_at_add(self, block: Block) -> bool:
        known = block.site is not None and not (block.is_recomputed or block.site_is_shared)
        return known and not isinstance(self._adder(block), (nn.Sequential, GraphModule))

    def _adder(self, block: Block) -> nn.Module:
        return self.model.get_submodule(block.add.module)

    def run(self) -> None:
        """All steps, in order."""
        scheme = self.plan.scheme
        if scheme.merge == "divide-sqrt2":
            self._check_sums()
        # A layer's own rule may initialize norms inside it: they have to be there.
        fresh = not self.plan.keep_function
        drawn = draw_weights(self.model, self.selection, self.plan, self.flow) if fresh else None
        self.removal.run()
        self.changes += self.removal.changes
        if drawn is not None:
            if self.plan.biases:
                self._add_biases()
            self._note_drawn(drawn)
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
            if not isinstance(layer, LINEAR_MAPS):
                continue
            wanted = not isinstance(layer, nn.Linear) or name in fed
            takes_one = type(layer) in LINEAR_MAPS or not self.corrections.only_plain
            wanted = wanted and takes_one and f"{name}.weight" not in self.flow.untrained
            if wanted and name in self.selection and layer.bias is None:
                size = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
                layer.register_parameter("bias", nn.Parameter(layer.weight.new_zeros(size)))
                count += 1
        if count:
            self._log(None, "", f"a bias in {count} layers that had none")

    def _note_drawn(self, drawn: Drawn) -> None:
        """What was drawn of the parameters that are left. Learned scales at the end of a branch become 1."""
        for name in drawn.by_own_rule:
            if self._remains(name):
                self._log(None, name, "drawn by its own rule")
        kept = drawn.kept
        remaining = dict(self.model.named_parameters())
        with torch.no_grad():
            for block in self.blocks:
                scale = block.add.scale  # The new scalar replaces it. (If it belonged to a norm, it is gone.)
                if scale is not None and scale in remaining:
                    remaining[scale].fill_(1.0)
                    kept = [name for name in kept if name != scale]
        self.kept = [name for name in kept if self._remains(name)]
        self.unfrozen = [name for name in drawn.unfrozen if self._remains(name)]

    def _remains(self, name: str) -> bool:
        """Whether the module or parameter is in no norm that was removed."""
        return self.removed_norms.isdisjoint(outwards(name))

    def _scale_branches(self) -> None:
        for block in self.on_tail:
            assert block.tail is not None
            layer = self.model.get_submodule(block.tail)
            if not isinstance(layer, ScaledOutput):  # A block that runs again has one scalar.
                alpha, bias = self._scalars(block, layer)
                extend(layer, ScaledOutput, branch_alpha=alpha, merge_bias=bias)
                self._log_scalar(block, block.tail, bias)
        scales: dict[str, dict[object, int]] = {}
        for block in self.on_site:
            assert block.site is not None
            adder = self._adder(block)
            if not isinstance(adder, ScaledAdds):
                extend(adder, ScaledAdds, branch_sites={}, branch_source=source_of(own_forward(adder)))
                adder.branch_scales = nn.ModuleList().train(adder.training)
            assert isinstance(adder, ScaledAdds)
            numbers = scales.setdefault(block.add.module, {})
            # Weights that are computed tell nothing: then each run of the expression is another block.
            layers = block.site.path, block.add.parameters or block.site.hit
            if layers not in numbers:  # A block that runs again has one scalar.
                alpha, bias = self._scalars(block, adder)
                numbers[layers] = len(adder.branch_scales)
                adder.branch_scales.append(BranchScale(alpha, bias).train(adder.training))
                name = f"{block.add.module}.branch_scales.{numbers[layers]}".lstrip(".")
                self._log_scalar(block, name, bias)
            for site in (block.site, *block.other_sites):
                hits = adder.branch_sites.setdefault(site.path, {})
                hits.setdefault(site.hit, (numbers[layers], site))

    def _scalars(self, block: Block, layer: nn.Module) -> tuple[nn.Parameter, nn.Parameter | None]:
        """The branch's scalar and, where an activation follows the add, the bias before it."""
        biased = block.add.activation is not None and block.add.operation in ("add", "sum")
        bias = scalar(0.0, layer, self.model) if biased else None
        return scalar(self.plan.alpha, layer, self.model), bias

    def _log_scalar(self, block: Block, module: str, bias: nn.Parameter | None) -> None:
        words = "" if bias is None else ", scalar bias before the activation"
        self._log(block.add.name, module, f"branch scalar, {self.plan.alpha:g}{words}")

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
            if is_linear_map(layer) and self.flow.calls.get(name) and name in self.selection
        ]
        for layer in layers:
            extend(layer, BiasedInput, input_bias=scalar(0.0, layer))
        self._log(None, "", f"a scalar bias before {len(layers)} layers")

    def _drop_classifier_input(self) -> None:
        name = self.flow.classifier
        if name is None:
            raise SkipinitError(
                f"scheme {self.plan.scheme.name!r} has dropout before the classifier, and no one last layer "
                f"makes the output of {type(self.model).__name__}; use scheme='skipinit' and your own dropout"
            )
        if name in self.selection:
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


def _why_unscaled(block: Block, adder: nn.Module) -> str:
    own = "let a module of its own end it, used nowhere else"
    if isinstance(adder, GraphModule):
        return f"torch.fx wrote the forward of its module; convert the model before you trace it, or {own}"
    if "forward" in vars(adder):
        return f"the forward of its module was replaced; convert the model before you wrap it, or {own}"
    if block.is_recomputed:
        return f"its add is checkpointed by its own module; checkpoint the module as a whole, or {own}"
    if block.site_is_shared:
        why = "a loop that drops layers, or a module that blocks share"
        return f"its add cannot be told from those of other blocks ({why}); {own}"
    return f"its branch cannot be scaled from outside; {own}"
