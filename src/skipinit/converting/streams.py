"""Streams that start from tables: embeddings of tokens and positions, class tokens, learned queries.

Tables have small entries, often of a deviation of 0.02, because a norm follows. Without norms the stream
would keep that size: attention would be uniform and activations linear, and the network would hardly learn.
So what is looked up is multiplied until the stream has a deviation of 1, as He's weights give it to images.
The entries stay as they are, for the optimizer, and for a classifier that is tied to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from ..probing.adds import ResidualAdd, TracedAdd
from ..probing.forward import Inputs
from ..probing.measure import measure
from ..probing.operations import Kind, Node, origins
from .changes import Change
from .extensions import ScaledTable, extend

if TYPE_CHECKING:
    from .surgery import Surgery

_SMALL = 0.5
"""A stream of a smaller deviation is scaled up."""
_HOLDS_ENTRIES = (Kind.INPUT, Kind.SHIFT, Kind.OTHER)


def find_tables(
    model: nn.Module, adds: Sequence[ResidualAdd], traced: Sequence[TracedAdd]
) -> dict[str, tuple[str, ...]]:
    """For blocks whose skip comes from tables alone: embeddings, and parameters that are used directly."""
    embeddings = {name for name, module in model.named_modules() if isinstance(module, nn.Embedding)}
    found = {
        add.name: _tables_before(traced_add.skip, embeddings)
        for add, traced_add in zip(adds, traced, strict=True)
    }
    return {name: tables for name, tables in found.items() if tables}


def _tables_before(skip: Node, embeddings: set[str]) -> tuple[str, ...]:
    """The tables that lead to the skip operand; none if data or another block does, too."""
    looked_up, entries, used = list[str](), set[str](), list[str]()
    waiting, seen = [skip], {skip}
    while waiting:
        node = waiting.pop()
        if node.kind is Kind.RESIDUAL or (node.kind is Kind.INPUT and node.from_data):
            return ()
        if node.kind is Kind.LINEAR and node.module in embeddings:
            looked_up.append(node.module)
            entries.update(node.parameters)
            continue  # What follows are the numbers of the entries.
        if node.kind in _HOLDS_ENTRIES:
            used += node.parameters
        before = origins(node, learned=True)
        waiting += [parent for parent in before if parent not in seen]
        seen.update(before)
    return tuple(dict.fromkeys([*looked_up, *(name for name in used if name not in entries)]))


@torch.no_grad()
def start_streams(surgery: Surgery, inputs: Inputs) -> None:
    """Multiply what comes from tables until the streams that start from them have a deviation of 1.

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
            scale = torch.full_like(embedding.get_parameter("weight")[0, 0], factor)
            embedding.register_buffer("table_scale", scale)
        surgery.changes.append(Change(None, name, "", f"times {factor:.3g}, for a signal of deviation 1"))
