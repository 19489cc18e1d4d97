"""How a converted network starts: He everywhere, and what Fixup changes about it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import nn

from ..nets.init import Weighted, scale_normal
from .flow import Block

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def he(model: nn.Module, seed: int | None) -> None:
    """Variance 2 / fan-in for every convolution and dense layer, biases 0 (section 2.3)."""
    device = next((parameter.device for parameter in model.parameters()), None)
    generator = None if seed is None else torch.Generator(device).manual_seed(seed)
    for module in model.modules():
        if isinstance(module, (*CONVOLUTIONS, nn.Linear)):
            scale_normal(cast(Weighted, module), 2.0, generator)


@torch.no_grad()
def fixup(model: nn.Module, blocks: Iterable[Block], classifier: str | None) -> None:
    """Components 1 and 2: the last map of each branch and the classifier zero, the others scaled by depth."""
    branches = [block.weights for block in blocks if block.weights]
    for weights in branches:
        for name in weights[:-1]:
            model.get_parameter(name).mul_(len(branches) ** (-1 / (2 * len(weights) - 2)))
        model.get_parameter(weights[-1]).zero_()
    if classifier is not None:
        model.get_submodule(classifier).get_parameter("weight").zero_()
