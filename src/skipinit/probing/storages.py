"""What is known about the storages of a forward pass, and the nodes that the pass adds to the graph.

All views of a storage share what is known about it. It is dropped together with the storage, so no
activation is kept alive.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from .graph import Kind, Node
from .modules import Modules
from .operations import COMPARISONS
from .tensors import (
    OperatorCall,
    Part,
    StackedPairs,
    TensorInfo,
    cast_of,
    channels_of,
    is_signal,
    parts_read,
    storage_of,
    written_by,
)

_JOINS = (Kind.ATTENTION, Kind.OTHER)


class Storages:
    """Infos about storages, from the `inputs` of a model on. Nodes belong to the module that is running."""

    def __init__(self, modules: Modules, inputs: Sequence[Tensor]) -> None:
        self._modules = modules
        self._order = 0
        self._infos: WeakKeyDictionary[Any, TensorInfo] = WeakKeyDictionary()
        self._leaves: WeakKeyDictionary[Any, TensorInfo] = WeakKeyDictionary()
        self.stacks = StackedPairs()
        for tensor in inputs:
            start = self.node(Kind.INPUT if is_signal(tensor) else Kind.CHOICE)
            self._infos[storage_of(tensor)] = TensorInfo(start)

    def node(self, kind: Kind, parents: tuple[Node, ...] = (), parameters: tuple[str, ...] = ()) -> Node:
        """A new node of the graph."""
        self._order += 1
        call = self._modules.running
        return Node(self._order, kind, parents, module=call.name, call=call.number, parameters=parameters)

    def node_of(self, tensor: Tensor) -> Node | None:
        """The operation that computed a tensor of the pass; None if that is not known."""
        info = self._infos.get(storage_of(tensor))
        return None if info is None else info.node

    def info(self, tensor: Tensor, storage: Any) -> TensorInfo | None:
        """What is known about a tensor in that storage that an operation reads."""
        return self._infos.get(storage) or self._cast_before(tensor, storage)

    def stream_info(self, tensor: Tensor) -> TensorInfo | None:
        """The same for a tensor that is added; a parameter or a constant may be the start of a stream."""
        storage = storage_of(tensor)
        return self._infos.get(storage) or self._leaves.get(storage)

    def parameters_in(self, storage: Any) -> tuple[str, ...]:
        """The parameters that a storage without data holds, or that its contents were computed from."""
        info = self._infos.get(storage)
        return self._modules.parameters_in(storage) if info is None else info.node.parameters

    def parts_read(self, call: OperatorCall) -> tuple[tuple[Node, Part], ...]:
        """Of which operands the operation used only a part of the storage, and which part."""
        return parts_read(call, self._leaves)

    def sources(
        self, kind: Kind, parents: tuple[Node, ...], operands: Iterable[tuple[Tensor, TensorInfo | None]]
    ) -> tuple[Node, ...]:
        """The operands that are not data but could be a stream: learned queries, not weights and biases."""
        found: list[Node] = []
        for tensor, info in operands:
            if tensor.dim() < 2 or (info is not None and info.node.from_data):
                continue
            if not parents:
                found.append(self._leaf(tensor).node if info is None else info.node)
            elif info is not None and (info.node.layered or kind in _JOINS):
                found.append(info.node)
            elif info is None and kind in _JOINS and self.parameters_in(storage_of(tensor)):
                found.append(self._leaf(tensor).node)
        return tuple(dict.fromkeys(found))

    def record(self, info: TensorInfo, call: OperatorCall, result: Any) -> None:
        """Keep what is known about the tensors that the operation wrote; if none, the result is a view."""
        if not (written := written_by(call, result)):
            return
        node = info.node
        info.channels = channels_of(call, written[0])
        numbers = Kind.INDEX if call.operation in COMPARISONS else Kind.CHOICE
        for parent in node.parents:
            if parent.kind is Kind.RESIDUAL:
                parent.consumers += ((node.kind, node.module),)
        for tensor in written:
            if tensor.dtype is torch.bool:
                continue  # A mask carries no signal.
            chosen = node.parents and not is_signal(tensor)
            self._infos[storage_of(tensor)] = TensorInfo(self.node(numbers, (node,))) if chosen else info
        self.stacks.add(call, written[0])

    def _leaf(self, tensor: Tensor) -> TensorInfo:
        """A parameter or a constant as the start of a stream."""
        storage = storage_of(tensor)
        if storage not in self._leaves:
            leaf = self.node(Kind.INPUT, (), self.parameters_in(storage))
            leaf.from_data = leaf.layered = False
            self._leaves[storage] = TensorInfo(leaf)
        return self._leaves[storage]

    def _cast_before(self, tensor: Tensor, storage: Any) -> TensorInfo | None:
        """What the trace would know about a cast of a parameter if it had not been made before."""
        parameter = cast_of(tensor)
        if parameter is None or not (names := self._modules.parameters_in(storage_of(parameter))):
            return None
        sources = self.sources(Kind.PASS, (), [(parameter, None)])
        cast = self.node(Kind.PASS, (), names)
        cast.sources = sources
        cast.from_data = cast.layered = False
        info = self._infos[storage] = TensorInfo(cast)
        return info
