"""Draw the weights of a model anew: variance 2 / fan-in for linear maps (section 2.3), or Fixup's start.

Other layers are drawn by their own `reset_parameters`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrize import is_parametrized

from ..errors import ConfigError, one_line
from ..nets.layers import is_linear_map, scale_normal, scale_weight
from ..probing.forward import seeded
from ..probing.inputs import Inputs
from ..probing.measure import measure
from .branches import Block
from .flow import Flow
from .norms import is_norm
from .plan import Plan, Selection


@dataclass(frozen=True)
class Drawn:
    """What was drawn, and what was not."""

    by_own_rule: list[str]
    """Layers that their own function initialized."""
    kept: list[str]
    """Parameters that no rule covers."""
    unfrozen: list[str]
    """Parameters that were frozen and train now."""


def draw_weights(model: nn.Module, selection: Selection, plan: Plan, flow: Flow) -> Drawn:
    """He for every linear map, biases 0; other layers by their own `reset_parameters`, if they have it.

    A parameter without a layer of its own is a linear map if its fan-in is given. Embeddings are kept, and
    dense layers that share their weight: how large a table's entries are is part of a model's design. What is
    drawn anew has to train, also where the given model had it frozen.
    """
    rules = _find_rules(model, selection, flow)
    for name, layer in rules.maps.items():
        zero = plan.scheme.fixup or (name == flow.classifier and plan.classifier_init == "zero")
        _check_drawable(name, layer, plan, zero, foldable=bool(flow.foldable))
    with seeded(plan.seed):
        for name, rule in rules.own.items():
            _apply(rule, name, model.get_submodule(name))
    with seeded(plan.seed):
        for layer in rules.maps.values():
            scale_normal(cast(Any, layer), 2.0, None)
        for name, matrix in rules.matrices.items():
            nn.init.normal_(matrix, 0, math.sqrt(2 / flow.fan_ins[name]))
    drawn = {id(parameter): parameter for parameter in rules.drawn(model)}
    frozen = {key for key, parameter in drawn.items() if not parameter.requires_grad}
    for parameter in drawn.values():
        parameter.requires_grad_(True)
    return Drawn(
        by_own_rule=list(rules.own),
        kept=[name for name in rules.none if id(model.get_parameter(name)) not in drawn],
        unfrozen=[name for name, parameter in model.named_parameters() if id(parameter) in frozen],
    )


@dataclass
class _Rules:
    """By which rule each parameter of a model is drawn."""

    maps: dict[str, nn.Module] = field(default_factory=dict)
    """Layers that compute one linear map."""
    matrices: dict[str, nn.Parameter] = field(default_factory=dict)
    """Linear maps that are parameters of a larger module."""
    own: dict[str, Callable[[], Any]] = field(default_factory=dict)
    """Layers with a function that initializes them."""
    none: list[str] = field(default_factory=list)
    """All other parameters. Another module may draw one that it shares."""

    def drawn(self, model: nn.Module) -> Iterator[nn.Parameter]:
        """The parameters that a rule covers."""
        yield from self.matrices.values()
        for layer in self.maps.values():
            yield from layer.parameters()
        for name in self.own:
            yield from model.get_submodule(name).parameters(recurse=False)


def _find_rules(model: nn.Module, selection: Selection, flow: Flow) -> _Rules:
    rules, embeddings = _Rules(), _embedding_weights(model)
    for name, module in model.named_modules():
        only_norm = is_norm(module) and name not in flow.more_than_norms
        if name not in selection or only_norm or "parametrizations" in name.split("."):
            continue
        rule, own = _own_rule(module), [path for path, _ in module.named_parameters(name, recurse=False)]
        if not flow.untrained.isdisjoint(own):  # It would never learn.
            rules.none += own
        elif is_linear_map(module):
            if id(module._parameters.get("weight")) not in embeddings:
                rules.maps[name] = module
        elif rule is not None and own:
            rules.own[name] = rule
        else:
            for path, parameter in module.named_parameters(name, recurse=False):
                if path in flow.fan_ins and not isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
                    rules.matrices[path] = parameter
                else:
                    rules.none.append(path)
    return rules


def _own_rule(module: nn.Module) -> Callable[[], Any] | None:
    """The function that initializes the layer, if there is one that needs no arguments."""
    if isinstance(module, nn.MultiheadAttention):
        return module._reset_parameters
    rule = getattr(module, "reset_parameters", None)
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) or not callable(rule):
        return None
    try:
        inspect.signature(rule).bind()
    except (TypeError, ValueError):
        return None
    return cast(Callable[[], Any], rule)


@torch.no_grad()
def _apply(rule: Callable[[], Any], name: str, module: nn.Module) -> None:
    """Initialize the layer's own parameters. Layers inside it have their own rules, or are excluded."""
    inside = [parameter for child in module.children() for parameter in child.parameters()]
    values = [parameter.clone() for parameter in inside]
    try:
        rule()
    except Exception as error:
        raise ConfigError(
            f"{name}: its reset_parameters fails ({one_line(error)}); exclude={name!r} leaves it as it is"
        ) from error
    for parameter, value in zip(inside, values, strict=True):
        parameter.copy_(value)


def is_tied(layer: nn.Module, model: nn.Module) -> bool:
    """Whether the layer shares its weight with an embedding."""
    return id(layer._parameters.get("weight")) in _embedding_weights(model)


def _embedding_weights(model: nn.Module) -> set[int]:
    """The identities of the weights of embeddings."""
    return {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}


def _check_drawable(name: str, layer: nn.Module, plan: Plan, zero: bool, foldable: bool) -> None:
    """Raise if the layer computes its weight in a way that does not take the values that are to be set."""
    if "weight" in layer._parameters:
        return
    if not is_parametrized(layer, "weight"):
        reason = "a hook computes its weight"
        remove = "torch.nn.utils.remove_weight_norm, remove_spectral_norm or prune.remove"
    elif zero or not _takes_values(layer):
        reason = f"its parametrization takes no {'zero' if zero else 'drawn'} weight"
        remove = "torch.nn.utils.parametrize.remove_parametrizations"
    else:
        return
    ways = [remove, f"exclude={name!r}"]
    if plan.scheme.fixup:
        ways.append("scheme='skipinit'")
    elif foldable:
        ways.append("keep_function=True")
    raise ConfigError(
        f"{name or 'the model'}: {reason}, so it cannot start anew; use {', '.join(ways[:-1])} or {ways[-1]}"
    )


@torch.no_grad()
def _takes_values(layer: nn.Module) -> bool:
    """Whether the weight takes the values it is set to, up to factors: a spectral norm chooses one for all, a
    constraint on the norm one for each output.
    """
    old = cast(Tensor, layer.weight)
    value = torch.randn(old.shape, generator=torch.Generator().manual_seed(0)).to(old)
    try:
        layer.weight = value
    except (RuntimeError, NotImplementedError):
        return False
    return F.cosine_similarity(layer.weight.flatten(1), value.flatten(1), 1).min().item() > 0.999


@torch.no_grad()
def start_fixup(
    model: nn.Module, blocks: Sequence[Block], classifier: str | None, selection: Selection, inputs: Inputs
) -> None:
    """Fixup's components 1 and 2: the last map of each branch and the classifier are zero, the other maps
    are scaled by depth.
    """
    branches = [block.weights for block in blocks if block.weights]
    zeros = _zero_ends(model, blocks, selection, inputs)
    factors = {
        name: len(branches) ** (-1 / (2 * len(weights) - 2))
        for weights in branches
        for name in weights
        if name not in zeros and len(weights) > 1 and _owner(name) in selection
    }
    for name, factor in factors.items():
        model.get_parameter(name).mul_(factor)
    if classifier is not None and classifier in selection:
        layer = model.get_submodule(classifier)
        if not is_tied(layer, model):
            scale_weight(layer, 0.0)


def _zero_ends(model: nn.Module, blocks: Sequence[Block], selection: Selection, inputs: Inputs) -> set[str]:
    """Zero as few of each branch's last maps as make the branch zero; returns their weights.

    A sum needs both maps at zero, a product only one: if both were zero, neither would ever learn. A gate's
    map does not help, since sigmoid(0) = 1/2. Trial tells which maps are needed: zero all, then restore one
    after another, the last one first.
    """
    ends = {block.add.name: [name for name in block.ends if _owner(name) in selection] for block in blocks}
    starts = {name: model.get_parameter(name).clone() for names in ends.values() for name in names}
    zeros = set(starts)

    def apply() -> None:
        for name, start in starts.items():
            model.get_parameter(name).copy_(torch.zeros_like(start) if name in zeros else start)

    def contributing() -> set[str]:
        apply()
        rows = measure(model, inputs, "whole").rows
        return {row.name for row in rows if row.branch_variance != 0 and row.name in several}

    several = {block: names for block, names in ends.items() if len(names) > 1}
    never_zero = contributing() if several else set[str]()
    for block in never_zero:
        zeros -= set(several.pop(block)[:-1])
    for place in range(1, 1 + max(map(len, several.values()), default=0)):
        restored = {names[-place] for names in several.values() if place <= len(names)}
        zeros -= restored
        zeros |= restored.intersection(name for block in contributing() for name in several[block])
    apply()
    return zeros


def _owner(parameter: str) -> str:
    return parameter.rpartition(".")[0]
