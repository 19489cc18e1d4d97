"""What is known of a tensor while its memory lives.

Views share their memory, so they share what is known of it; an operation that writes into it renews that.
When the memory goes, all goes but the lineage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import Tensor

from .lineage import Node


@dataclass(eq=False, slots=True)
class Living:
    """The operation that wrote the memory last, and what was found out about the result."""

    node: Node
    channels: tuple[int, int] | None = None
    """Stride and size of the channel axis, where known."""
    measured: tuple[Any, int] | None = None
    """A view of the memory, and where the ledger has its statistics."""


class _Nowhere:
    """The memory of a tensor that has no single one, as sparse tensors have not: never remembered."""


def memory_of(tensor: Tensor) -> Any:
    """What all views of one tensor have in common."""
    try:
        return tensor.untyped_storage()
    except NotImplementedError:
        return _Nowhere()


def tensors_in(values: Any) -> Iterator[Tensor]:
    """The tensors among an operation's arguments or results, also in lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def written_by(function: Any, args: tuple[Any, ...], result: Any, memories: list[Any]) -> list[Tensor]:
    """The tensors whose memory the operation wrote: new results and mutated inputs."""
    fresh = [out for out in tensors_in((result,)) if memory_of(out) not in memories]
    mutated = tensors_in(args[i] for i in _mutated(function) if i < len(args))
    return [tensor for tensor in (*fresh, *mutated) if not isinstance(memory_of(tensor), _Nowhere)]


@cache
def _mutated(function: Any) -> tuple[int, ...]:
    """Positions of the arguments that an in-place operation writes into."""
    arguments = function._schema.arguments
    return tuple(i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write)
