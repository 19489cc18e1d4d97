"""Norms written by hand: x / |x|, (x - m) / s, x * (1 / s). What counts is what a tensor is divided by.

It is its own standard deviation or vector norm: the root of a sum of its own squares, which several of its
values share. The root of something else, such as the degrees of a graph or the noise of a diffusion model, is
none.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .graph import Kind, Node, split_paths
from .operations import BATCH_NORMS
from .tensors import storage_of

_STEPS = {
    "square": Kind.SQUARE, "var": Kind.SQUARE, "var_mean": Kind.SQUARE, "sqrt": Kind.ROOT,
    "rsqrt": Kind.INVERSE, "std": Kind.SIZE, "std_mean": Kind.SIZE, "linalg_vector_norm": Kind.SIZE,
    "norm": Kind.SIZE,
}  # fmt: skip
_NOT_IN_A_NORM = (Kind.INPUT, Kind.LINEAR, Kind.ATTENTION, Kind.ACTIVATION)


def written_kind(operation: str, tensors: Sequence[Tensor], nodes: Sequence[Node | None]) -> Kind | None:
    """The kind of an operation that is a norm or a step of one; None if it is neither.

    Args:
        operation: its name.
        tensors: its operands.
        nodes: what computed each of them; None if no data did.
    """
    if operation in _STEPS:
        return _STEPS[operation]
    if operation == "reciprocal" or (operation == "div" and nodes[0] is None):  # 1 / s, or w / s
        inverted = nodes[-1] is not None and _before_scaling(nodes[-1]).kind in (Kind.SIZE, Kind.ROOT)
        return Kind.INVERSE if inverted else None
    first, second = nodes if operation in ("mul", "div") and len(nodes) == 2 else (None, None)
    if first is None or second is None:
        return None
    if first is second:
        return Kind.SQUARE if operation == "mul" and tensors[0] is tensors[1] else None
    normalizes = _has_more_values(*tensors) and _divides_by_size(operation, first, second)
    if operation == "mul":
        normalizes |= _has_more_values(*tensors[::-1]) and _divides_by_size(operation, second, first)
    return Kind.NORM if normalizes else None


def normalizes_over_batch(operation: str, tensors: Sequence[Tensor]) -> bool:
    """Whether the examples of a batch share the statistics of a norm.

    Torch's instance norm runs its batch norm on one example, whose channels are those of all.
    """
    if operation in BATCH_NORMS:
        return len(tensors[0]) > 1
    if operation not in ("mul", "div"):
        return False
    values, size = max(tensors, key=Tensor.numel), min(tensors, key=_count_held)
    shared = size.dim() < values.dim() or len(size) == 1 or size.stride(0) == 0
    return shared and len(values) > 1


def _has_more_values(tensor: Tensor, other: Tensor) -> bool:
    """Whether some of its values meet the same value of the other tensor, which may be expanded."""
    return tensor.numel() > _count_held(other)


def _count_held(tensor: Tensor) -> int:
    held: int = storage_of(tensor).nbytes() // tensor.itemsize
    return min(tensor.numel(), held)


def _divides_by_size(operation: str, tensor: Node, size: Node) -> bool:
    if operation == "mul" and _before_scaling(size).kind is not Kind.INVERSE:
        return False  # A gate may be computed from a norm.
    above, below, fork = split_paths(tensor, size)
    # It may be centred or scaled before. What else is added to it, such as noise, has no part in the size.
    # An activation belongs to more than a norm, such as EvoNorm.
    if fork is None or any(node.kind in _NOT_IN_A_NORM for node in above):
        return False
    kinds = {node.kind for node in below}
    # The variance may come with the mean that was taken away. A sum of squares may be written as x @ x.
    squared = fork.kind is Kind.SQUARE or bool(kinds & {Kind.SQUARE, Kind.ATTENTION})
    return Kind.SIZE in kinds or (squared and (Kind.INVERSE if operation == "mul" else Kind.ROOT) in kinds)


def _before_scaling(node: Node) -> Node:
    """What a value was before it was multiplied or shifted by numbers, bounded or cast."""
    while node.kind in (Kind.SCALE, Kind.SHIFT, Kind.ACTIVATION, Kind.PASS) and len(node.parents) == 1:
        node = node.parents[0]
    return node
