"""Streams that start from tables: embeddings of tokens and positions, class tokens, learned queries.

Tables have small entries, often of a deviation of 0.02, because a norm follows. Without norms the stream
would keep that size: attention would be uniform and activations linear, and the network would hardly learn.
So the tables are scaled up until the stream has a deviation of 1, as He's weights give it to images. A
classifier whose weight is also a table gets its input scaled down, so that its outputs do not grow along.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from ..nets.layers import is_linear_map
from ..probing.adds import ResidualAdd, TracedAdd
from ..probing.forward import Inputs
from ..probing.measure import measure
from ..probing.operations import Kind, Node, origins
from .changes import Change
from .extensions import ScaledInput, extend

if TYPE_CHECKING:
    from .surgery import Surgery

_SMALL = 0.5
"""A stream of a smaller deviation is scaled up."""
_HOLDS_ENTRIES = (Kind.INPUT, Kind.SHIFT, Kind.OTHER)


def find_tables(
    model: nn.Module, adds: Sequence[ResidualAdd], traced: Sequence[TracedAdd]
) -> dict[str, tuple[str, ...]]:
    """For blocks whose skip comes from tables alone: the parameters that hold the entries."""
    lookups = {name for name, module in model.named_modules() if isinstance(module, nn.Embedding)}
    found = {
        add.name: _entries(traced_add.skip, lookups) for add, traced_add in zip(adds, traced, strict=True)
    }
    return {name: entries for name, entries in found.items() if entries}


def _entries(skip: Node, lookups: set[str]) -> tuple[str, ...]:
    """The entries that lead to the skip operand; none if data or another block does, too."""
    entries, waiting, seen = list[str](), [skip], {skip}
    while waiting:
        node = waiting.pop()
        is_lookup = node.module in lookups
        if node.kind is Kind.RESIDUAL or (node.kind is Kind.INPUT and node.from_data):
            return ()
        if is_lookup or node.kind in _HOLDS_ENTRIES:
            entries += node.parameters
        before = () if is_lookup else origins(node, learned=True)
        waiting += [parent for parent in before if parent not in seen]
        seen.update(before)
    return tuple(dict.fromkeys(entries))


@torch.no_grad()
def start_streams(surgery: Surgery, inputs: Inputs) -> None:
    """Scale tables up until the streams that start from them have a deviation of 1.

    A table that several streams share is scaled once, and the other tables of these streams along with it.
    """
    tables = surgery.flow.tables
    if not tables:
        return
    model = surgery.model
    rows = {row.name: row for row in measure(model, inputs, "whole").rows}
    factors: dict[str, float] = {}
    for block, entries in tables.items():
        spread = rows[block].skip_variance ** 0.5 if block in rows else 0.0
        known = next((factors[name] for name in entries if name in factors), None)
        if known is None and not 0 < spread < _SMALL:
            continue
        factors = dict.fromkeys(entries, known or 1 / spread) | factors
    for name, factor in factors.items():
        if name.rpartition(".")[0] in surgery.selection:
            _scale(name, factor, surgery)


def _scale(name: str, factor: float, surgery: Surgery) -> None:
    """Scale a table. A layer that is tied to it, such as the classifier, computes what it did before."""
    model, table = surgery.model, surgery.model.get_parameter(name)
    table.mul_(factor)
    surgery.changes.append(Change(None, name, "", f"times {factor:.3g}, for a signal of deviation 1"))
    for tied, layer in model.named_modules():
        if is_linear_map(layer) and layer._parameters.get("weight") is table:
            extend(layer, ScaledInput)
            layer.register_buffer("input_scale", torch.full_like(table[0, 0], 1 / factor))
            surgery.changes.append(Change(None, tied, "", f"input times {1 / factor:.3g}"))
