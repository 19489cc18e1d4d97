"""Fixup's start: the last map of each branch and the classifier zero, the other maps scaled by depth."""

from __future__ import annotations

import torch

from ..nets.layers import scale_weight
from ..probing.forward import Inputs
from ..probing.measure import measure
from .fresh import is_tied
from .surgery import Surgery


@torch.no_grad()
def start_fixup(surgery: Surgery, inputs: Inputs) -> None:
    """Apply Fixup's components 1 (zeros) and 2 (scaling by depth)."""
    model, selection, classifier = surgery.model, surgery.selection, surgery.flow.classifier
    branches = [block.weights for block in surgery.blocks if block.weights]
    zeros = _zero_ends(surgery, inputs)
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


def _zero_ends(surgery: Surgery, inputs: Inputs) -> set[str]:
    """Zero as few of each branch's last maps as make the branch zero; returns their weights.

    A sum needs both maps at zero, a product only one: if both were zero, neither would ever learn. A gate's
    map does not help, since sigmoid(0) = 1/2. Trial tells which maps are needed: zero all, then restore one
    after another, the last one first.
    """
    model = surgery.model
    ends = {
        block.add.name: [name for name in block.ends if _owner(name) in surgery.selection]
        for block in surgery.blocks
    }
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
