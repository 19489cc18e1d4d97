"""Norms on what no layer computed: raw data, or tables beside the stream, such as what latents attend to.

He's weights keep the scale of their inputs. The norm gave them a deviation of 1, whatever the unit of the
data is, or however small the entries of a table are. A constant in its place does the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..probing.adds import TracedAdd
from ..probing.forward import Inputs
from ..probing.operations import Kind, Node, origins
from .changes import Change
from .extensions import ScaledInput, extend
from .norm_uses import entries_of
from .passes import run_once

if TYPE_CHECKING:
    from .surgery import Surgery

_NEAR_1 = (0.5, 2.0)
"""A deviation between these needs no scale."""


def find_raw_norms(
    model: nn.Module, norms: Mapping[Node, str], nodes: Iterable[Node], adds: Sequence[TracedAdd]
) -> tuple[str, ...]:
    """The norms whose input no linear map or block computed, and which is not a stream itself.

    A branch of such a stream starts with the stream's own scale.
    """
    embeddings = {name for name, module in model.named_modules() if isinstance(module, nn.Embedding)}
    streams = {add.skip for add in adds}
    entries = entries_of(nodes)
    raw = {
        name: all(_is_raw(given, embeddings, streams) for given in entries[node.module, node.call])
        for node, name in norms.items()
    }
    return tuple(name for name, found in raw.items() if found)


def _is_raw(end: Node, embeddings: set[str], streams: set[Node]) -> bool:
    waiting, seen = [end], {end}
    while waiting:
        node = waiting.pop()
        computed = node.kind is Kind.LINEAR and node.module not in embeddings
        if computed or node in streams or node.kind in (Kind.RESIDUAL, Kind.ATTENTION):
            return False
        before = origins(node, learned=True)
        waiting += [parent for parent in before if parent not in seen]
        seen.update(before)
    return True


@torch.no_grad()
def start_raw_inputs(surgery: Surgery, inputs: Inputs) -> None:
    """Multiply the input of each norm on raw data that was removed, until it has a deviation of 1."""
    removed = {change.module for change in surgery.changes if change.removed}
    for name in surgery.flow.raw_norms:
        if name not in removed or surgery.flow.calls[name] != 1:
            continue
        layer, given = surgery.model.get_submodule(name), list[Tensor]()
        with layer.register_forward_pre_hook(lambda _, args, given=given: given.extend(args)):
            run_once(surgery.model, inputs)
        if len(given) != 1:
            continue
        spread = given[0].std(correction=0)
        if 0 < spread < _NEAR_1[0] or _NEAR_1[1] < spread < torch.inf:
            extend(layer, ScaledInput)
            layer.register_buffer("input_scale", 1 / spread)
            words = f"times {1 / spread.item():.3g}, for an input of deviation 1"
            surgery.changes.append(Change(None, name, "", words))
