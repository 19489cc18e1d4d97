"""Operands that are only a part of a tensor, such as half of its channels.

All views of a storage share one node of the graph, so the graph alone does not tell two parts from the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .operations import Node, TensorInfo

if TYPE_CHECKING:
    from .adds import Paths


class Part(NamedTuple):
    """A view of some of a storage."""

    offset: int
    shape: torch.Size
    stride: tuple[int, ...]
    whole: int
    """How many elements the storage has."""

    def overlaps(self, other: Part) -> bool:
        """Whether both have an element in common."""
        memory = torch.zeros(self.whole, dtype=torch.bool)
        memory.as_strided(self.shape, self.stride, self.offset).fill_(True)
        return bool(memory.as_strided(other.shape, other.stride, other.offset).any())

    def completes(self, other: Part) -> bool:
        """Whether both, if they do not overlap, are all of each example: each is the rest of the other."""
        every_example = self.shape[0] * self.stride[0] == self.whole
        return every_example and self.shape.numel() + other.shape.numel() == self.whole


def part_of(tensor: Tensor, storage: Any) -> Part | None:
    """Which part of its storage the tensor is; None if it is all of it."""
    whole = storage.nbytes() // tensor.itemsize
    if tensor.numel() >= whole:
        return None
    return Part(int(tensor.storage_offset()), tensor.shape, tensor.stride(), whole)


def parts_read(
    tensors: Sequence[Tensor], storages: Sequence[Any], infos: Sequence[TensorInfo | None]
) -> tuple[tuple[Node, Part], ...]:
    """Of which operands an operation used only a part of the storage, and which part."""
    read = zip(tensors, storages, infos, strict=True)
    parts = ((info.node, part_of(tensor, storage)) for tensor, storage, info in read if info is not None)
    return tuple((node, part) for node, part in parts if part is not None)


def sees_skip(paths: Paths, skip: Node, part: Part | None) -> bool:
    """Whether the branch uses what an identity skip carries, or all the rest of the tensor.

    The rest: two halves of a tensor are two coupled streams, as in reversible networks.
    """
    if paths.skip or part is None:
        return True
    used = [
        [read for parent, read in node.parts if parent is skip]
        for node in paths.branch
        if skip in node.parents
    ]
    return not used or any(
        not reads or any(part.overlaps(read) or part.completes(read) for read in reads) for reads in used
    )
