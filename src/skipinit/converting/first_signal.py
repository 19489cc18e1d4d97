"""The first signal of a converted network has the scale that norms gave it.

He's weights keep the scale of their inputs. So three places need a scale of their own, measured on the inputs
of the conversion: streams that start from tables, norms on what no layer computed, and the outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..nets.layers import scale_weight
from ..probing.forward import preserve_state
from ..probing.inputs import Inputs, arguments_of
from ..probing.measure import measure
from ..probing.tensors import tensors_in, values_of
from .attempts import branch_scalars_at
from .changes import Change
from .extensions import ScaledInput, ScaledTable, extend
from .initialization import is_tied
from .surgery import Surgery

_SMALL = 0.5
"""A stream of a smaller deviation is scaled up."""
_NEAR_1 = (0.5, 2.0)
"""An input of a deviation between these needs no scale."""
_VANISHED = 1e-3
"""With outputs of a smaller standard deviation, a network does not learn."""
_FIRST_OUTPUTS = 1.0
"""Standard deviation of the first outputs: the cross-entropy is within 1/2 of that of chance."""


@torch.no_grad()
def start_streams(surgery: Surgery, inputs: Inputs) -> None:
    """Multiply what comes from tables until the streams that start from them have a deviation of 1.

    Tables are embeddings of tokens and positions, class tokens, learned queries. They have small entries,
    often of a deviation of 0.02, because a norm follows. Without norms the stream would keep that size:
    attention would be uniform and activations linear, and the network would hardly learn. The entries of
    embeddings stay as they are, for the optimizer, and for a classifier that is tied to them.

    A table that several streams share has one factor, which the other tables of these streams get, too.
    """
    if not surgery.flow.tables:
        return
    rows = {row.name: row for row in measure(surgery.model, inputs, "whole").rows}
    factors: dict[str, float] = {}
    for block, tables in surgery.flow.tables.items():
        spread = rows[block].skip_variance ** 0.5 if block in rows else 0.0
        known = next((factors[name] for name in tables if name in factors), None)
        # A constant, such as the first state of a recurrence, is no stream: its parameters may be decays.
        if spread > 0 and (known is not None or spread < _SMALL):
            factors = dict.fromkeys(tables, known or 1 / spread) | factors
    modules = dict(surgery.model.named_modules())
    for name, factor in factors.items():
        embedding = modules.get(name)
        if (name if embedding is not None else name.rpartition(".")[0]) not in surgery.selection:
            continue
        if embedding is None:
            surgery.model.get_parameter(name).mul_(factor)
        else:
            extend(embedding, ScaledTable)
            scale = torch.full_like(cast(Tensor, embedding.weight)[0, 0], factor)
            embedding.register_buffer("table_scale", scale)
        surgery.changes.append(Change(None, name, "", f"times {factor:.3g}, for a signal of deviation 1"))


@torch.no_grad()
def start_raw_inputs(surgery: Surgery, inputs: Inputs) -> None:
    """Put a constant in the place of each removed norm on what no layer computed, for a deviation of 1.

    That is raw data, whatever its unit, or a table beside the stream, such as what latents attend to.
    """
    for name in surgery.flow.raw_norms:
        if name not in surgery.removed_norms or surgery.flow.calls[name] != 1:
            continue
        layer, given = surgery.model.get_submodule(name), list[Tensor]()

        def keep(_: nn.Module, args: Any, kwargs: Any, given: list[Tensor] = given) -> None:
            given.extend(tensors_in((args, kwargs)))

        with layer.register_forward_pre_hook(keep, with_kwargs=True):
            _run_once(surgery, inputs)
        if len(given) != 1:
            continue
        spread = values_of(given[0]).std(correction=0)
        if 0 < spread < _NEAR_1[0] or _NEAR_1[1] < spread < torch.inf:
            extend(layer, ScaledInput)
            layer.register_buffer("input_scale", 1 / spread)
            words = f"times {1 / spread.item():.3g}, for an input of deviation 1"
            surgery.changes.append(Change(None, name, "", words))


@torch.no_grad()
def start_outputs(surgery: Surgery, inputs: Inputs) -> None:
    """Start the classifier at zero, or so small that the outputs have a standard deviation of at most 1.

    A classifier that is tied to an embedding stays as it is.
    """
    model, flow, plan = surgery.model, surgery.flow, surgery.plan
    if plan.classifier_init == "he" or flow.classifier is None or flow.classifier not in surgery.selection:
        return
    layer = model.get_submodule(flow.classifier)
    spread = _spread_of_output(layer, surgery, inputs)
    if _vanishes(spread, surgery, layer, inputs):
        _restore_signal(surgery, inputs)
        spread = _spread_of_output(layer, surgery, inputs)
    if is_tied(layer, model):
        return
    if _vanishes(spread, surgery, layer, inputs):
        surgery.remarks.append(
            f"the signal vanishes: the outputs have a standard deviation of {spread:.0e}; layers without a "
            "skip around them need their norms, exclude= keeps them"
        )
    if plan.classifier_init == "zero":
        scale_weight(layer, 0.0)
    elif spread > _FIRST_OUTPUTS and math.isfinite(spread):
        scale_weight(layer, _FIRST_OUTPUTS / spread)


def _vanishes(spread: float, surgery: Surgery, layer: nn.Module, inputs: Inputs) -> bool:
    """Whether the outputs have no signal: neither at the start nor while all branches contribute.

    A class token may hold the signal only then: at the start it is the same for all examples, in DeiT zero.
    """
    if spread >= _VANISHED:
        return False
    with branch_scalars_at(max(1, len(surgery.blocks)) ** -0.5, surgery.model):
        return _spread_of_output(layer, surgery, inputs) < _VANISHED


def _restore_signal(surgery: Surgery, inputs: Inputs) -> None:
    """Give layers outside of branches the scale that their norms gave them.

    The weights before each removed norm are divided by what the norm would have divided by on these inputs.
    """
    model, flow = surgery.model, surgery.flow
    removed = surgery.removed_norms
    within = {norm for block in flow.blocks for norm in block.add.branch_norms}
    names = [flow.feeders[norm] for norm in flow.norms if norm in removed - within and norm in flow.feeders]
    layers = {
        model.get_submodule(name): name
        for name in names
        if flow.calls[name] == 1 and name in surgery.selection
    }
    for layer in _unit_spread(layers, surgery, inputs):
        surgery.changes.append(Change(None, layers[layer], "", "weights scaled to a signal of deviation 1"))


def _spread_of_output(layer: nn.Module, surgery: Surgery, inputs: Inputs) -> float:
    """The standard deviation of a layer's output while the model runs in evaluation mode."""
    outputs: list[Tensor] = []
    with layer.register_forward_hook(lambda _, __, output: outputs.append(output)):
        _run_once(surgery, inputs)
    return values_of(outputs[-1]).std(correction=0).item()


def _unit_spread(layers: Iterable[nn.Module], surgery: Surgery, inputs: Inputs) -> list[nn.Module]:
    """Scale the weights of some layers so that the output of each has a standard deviation of 1.

    Returns those that could be scaled: others use their weights in another way, such as standardized.
    """
    scaled: list[nn.Module] = []

    def rescale(layer: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Tensor:
        spread = values_of(output).std(correction=0).item()
        weight = layer._parameters.get("weight")
        if weight is None or not 0 < spread < math.inf:
            return output
        weight.data.div_(spread)
        found: Tensor = layer.forward(*args, **kwargs)
        if not math.isclose(values_of(found).std(correction=0).item(), 1, rel_tol=0.01):
            weight.data.mul_(spread)
            return output
        scaled.append(layer)
        return found  # The next layers get the rescaled output.

    with ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(layer.register_forward_hook(rescale, with_kwargs=True))
        _run_once(surgery, inputs)
    return scaled


def _run_once(surgery: Surgery, inputs: Inputs) -> None:
    """One pass in evaluation mode; the model is left as it was."""
    args, kwargs = arguments_of(surgery.model, inputs)
    differentiates = surgery.flow.differentiates
    with preserve_state(surgery.model, "evaluation"), torch.set_grad_enabled(differentiates):
        surgery.model(*args, **kwargs)
