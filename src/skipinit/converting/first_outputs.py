"""The first outputs of a converted network: the signal has not vanished, and the loss is near chance."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from ..nets.layers import scale_weight
from ..probing.forward import Inputs
from .changes import Change
from .folding import is_plain
from .fresh import is_tied
from .passes import run_once
from .surgery import Surgery

_VANISHED = 1e-3
"""With outputs of a smaller standard deviation, a network does not learn."""
_FIRST_OUTPUTS = 1.0
"""Standard deviation of the first outputs: the cross-entropy is within 1/2 of that of chance."""


@torch.no_grad()
def start_outputs(surgery: Surgery, inputs: Inputs) -> None:
    """Start the classifier at zero, or so small that the outputs have a standard deviation of at most 1.

    A classifier that is tied to an embedding stays as it is.
    """
    model, flow, plan = surgery.model, surgery.flow, surgery.plan
    if plan.classifier_init == "he" or flow.classifier is None or flow.classifier not in surgery.selection:
        return
    layer = model.get_submodule(flow.classifier)
    spread = _spread_of_output(layer, model, inputs)
    if spread < _VANISHED:
        _restore_signal(surgery, inputs)
        spread = _spread_of_output(layer, model, inputs)
    if is_tied(layer, model):
        return
    if spread < _VANISHED:
        warnings.warn(
            f"the signal vanishes: the outputs have a standard deviation of {spread:.0e}; layers without a "
            "skip around them need their norms, exclude= keeps them",
            stacklevel=4,
        )
    if plan.classifier_init == "zero":
        scale_weight(layer, 0.0)
    elif spread > _FIRST_OUTPUTS and math.isfinite(spread):
        scale_weight(layer, _FIRST_OUTPUTS / spread)


def _restore_signal(surgery: Surgery, inputs: Inputs) -> None:
    """Give layers outside of branches the scale that their norms gave them, where the signal vanishes.

    The weights before each removed norm are divided by what the norm would have divided by on these inputs.
    """
    model, flow = surgery.model, surgery.flow
    removed = {change.module for change in surgery.changes if change.removed}
    within = {norm for block in flow.blocks for norm in block.add.branch_norms}
    names = [flow.feeders[norm] for norm in flow.norms if norm in removed - within and norm in flow.feeders]
    layers = {
        name: layer
        for name in names
        if flow.calls[name] == 1
        and name in surgery.selection
        and is_plain(layer := model.get_submodule(name))
    }
    _unit_spread(layers.values(), model, inputs)
    for name in layers:
        surgery.changes.append(Change(None, name, "", "weights scaled to a signal of deviation 1"))


def _spread_of_output(layer: nn.Module, model: nn.Module, inputs: Inputs) -> float:
    """The standard deviation of a layer's output while the model runs in evaluation mode."""
    outputs: list[Tensor] = []
    with layer.register_forward_hook(lambda _, __, output: outputs.append(output)):
        run_once(model, inputs)
    return outputs[-1].std(correction=0).item()


def _unit_spread(layers: Iterable[nn.Module], model: nn.Module, inputs: Inputs) -> None:
    """Scale the weights of some layers so that the output of each has a standard deviation of 1."""

    def rescale(layer: nn.Module, _: object, output: Tensor) -> Tensor:
        spread = output.std(correction=0).item()
        if not 0 < spread < math.inf:
            return output
        layer.get_parameter("weight").div_(spread)
        return output / spread  # The next layers get the rescaled output.

    with ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(layer.register_forward_hook(rescale))
        run_once(model, inputs)
