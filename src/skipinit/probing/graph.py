"""The graph of a forward pass: a node for each operation, and what its paths say."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from .tensors import Part


class Kind(Enum):
    """The role of an operation in a residual network."""

    INPUT = "input"
    LINEAR = "linear map with learned weights, or a recurrent layer"
    NORM = "normalization"
    ATTENTION = "product of data and data, as in attention"
    ACTIVATION = "activation"
    SCALE = "multiplication by something that is not data"
    PASS = "copy or dropout"
    SHIFT = "addition of something that is not data, such as a bias"
    RESIDUAL = "residual add"
    SQUARE = "square or variance"
    ROOT = "square root"
    SIZE = "standard deviation or vector norm"
    INVERSE = "inverse of one of the two before, or inverse root"
    CHOICE = "whole numbers, such as token ids"
    INDEX = "whole numbers that a comparison found, such as the expert of each token"
    OTHER = "anything else"


@dataclass(eq=False, slots=True)
class Node:
    """One operation, in the graph of a forward pass.

    The graph records which operations led to a tensor. It holds no tensor but the factors of learned scales.
    """

    order: int
    """Grows with time, so parents have smaller numbers than children."""
    kind: Kind
    parents: tuple[Node, ...] = ()
    """The operations that computed its data."""
    sources: tuple[Node, ...] = ()
    """The same for operands that are not data but could be a stream: learned queries."""
    module: str = ""
    """Qualified name of the innermost module that was running."""
    call: int = 0
    """Number of the call of that module."""
    parameters: tuple[str, ...] = ()
    """Names of the parameters it used."""
    parts: tuple[tuple[Node, Part], ...] = ()
    """Of which parents it used only a part of the storage, and which."""
    constant: float | None = 1.0
    """The number it multiplied by, if it did; None if that was a tensor."""
    factor: Tensor | None = None
    """The learned tensor it multiplied by, or what was computed from one."""
    masks: bool = False
    """Whether it multiplied all examples by one tensor that is neither learned nor data."""
    input_statistics: int | None = None
    """Index of the statistics of its input, for a batch norm or a scale that cannot be divided out."""
    fan_in: int | None = None
    """For a product of data and learned matrices as they are: how many products a value sums."""
    stream: Node | None = None
    """For a residual add: its skip operand."""
    consumers: tuple[tuple[Kind, str], ...] = ()
    """For a residual add: kind and module of the operations on its result. No nodes, to avoid cycles."""
    from_data: bool = True
    """Whether the batch has a part in it; otherwise parameters and constants alone."""
    layered: bool = True
    """Without data: whether a linear map took part, so that it is not only a weight."""
    over_batch: bool = False
    """For a norm: whether the examples of a batch share its statistics."""
    difference: tuple[Node, Node] | None = None
    """For a difference: what something was taken from, and what was taken."""


def split_paths(a: Node, b: Node, along_skips: bool = False) -> tuple[list[Node], list[Node], Node | None]:
    """The ancestors of `a` alone, those of `b` alone (both oldest first), and their latest common ancestor.

    Walks back in time from both at once and stops when no node is left that only one descends from. The cost
    depends on the size of the block, not of the network. With `along_skips`, the way through a residual add
    is its skip alone, and streams may also come from learned tensors. Whole numbers are no common ancestor:
    one token may choose from two tables.
    """
    learned = along_skips or not (a.from_data and b.from_data)
    reach = {a: 1, b: 2}
    frontier = [(-node.order, node) for node in reach]
    heapq.heapify(frontier)
    one_sided = 2
    only: dict[int, list[Node]] = {1: [], 2: []}
    fork: Node | None = None
    while frontier and one_sided:
        node = heapq.heappop(frontier)[1]
        sides = reach[node]
        if sides == 3:
            if _chooses(node):
                continue
            fork = fork or node
        else:
            one_sided -= 1
            only[sides].append(node)
        for parent in origins(node, learned, along_skips):
            before = reach.get(parent, 0)
            after = reach[parent] = before | sides
            one_sided += (after in (1, 2)) - (before in (1, 2))
            if not before:
                heapq.heappush(frontier, (-parent.order, parent))
    if fork is None:
        fork = next((node for _, node in sorted(frontier) if not _chooses(node)), None)
    return only[1][::-1], only[2][::-1], fork


def _chooses(node: Node) -> bool:
    """Whether these are whole numbers, such as token ids."""
    return node.kind in (Kind.CHOICE, Kind.INDEX)


def note_difference(node: Node, operation: str) -> None:
    """Note what a difference takes from what, and that a + (b - a) passes b on.

    Quantizers write such sums to pass gradients straight through.
    """
    if operation == "sub":
        node.difference = node.parents[0], node.parents[1]
    elif operation == "add" and (restored := _restored_by(node)) is not None:
        node.kind, node.parents = Kind.PASS, (restored,)


def _restored_by(add: Node) -> Node | None:
    """What a sum of two restores: b in a + (b - a)."""
    for total in add.parents:
        if total.difference is not None:
            first, taken = total.difference
            if taken in add.parents and dict(add.parts).get(taken) == dict(total.parts).get(taken):
                return first
    return None


def origins(node: Node, learned: bool, along_skips: bool = False) -> tuple[Node, ...]:
    """The inputs of an operation that carry a signal; with `learned`, also learned tensors."""
    if node.kind is Kind.INDEX:
        return ()
    if along_skips and node.stream is not None:
        return (node.stream,)
    return node.parents + node.sources if learned else node.parents


def ancestors(roots: Iterable[Node]) -> list[Node]:
    """The nodes themselves and all that they were computed from, oldest first."""
    seen = set(roots)
    waiting = list(seen)
    while waiting:
        node = waiting.pop()
        for parent in (*node.parents, *node.sources):
            if parent not in seen:
                seen.add(parent)
                waiting.append(parent)
    return sorted(seen, key=lambda node: node.order)


def descending_labels(labels: Mapping[Node, Hashable]) -> set[Hashable]:
    """The labels of nodes that were computed from another node of the same label."""
    repeated = [label for label, count in Counter(labels.values()).items() if count > 1]
    bits = {label: 1 << place for place, label in enumerate(repeated)}
    found, past = set[Hashable](), dict[Node, int]()
    for node in ancestors(labels) if bits else ():
        past[node] = reduce(or_, (past[parent] for parent in (*node.parents, *node.sources)), 0)
        if node in labels and (bit := bits.get(labels[node], 0)):
            if past[node] & bit:
                found.add(labels[node])
            past[node] |= bit
    return found


def depth_of(path: Sequence[Node], end: Node) -> int:
    """The largest number of linear maps on any way along the path."""
    depths: dict[Node, int] = {}
    for node in path:
        before = max((depths.get(parent, 0) for parent in node.parents), default=0)
        depths[node] = before + (node.kind is Kind.LINEAR)
    return depths.get(end, 0)


def leads_past(kinds: Iterable[Kind], path: Sequence[Node], end: Node) -> bool:
    """Whether a way along the path leads to its end without an operation of these kinds."""
    within, reached = set(path), set[Node]()
    for node in path:
        before = origins(node, learned=True)
        if node.kind not in kinds and (not before or any(p in reached or p not in within for p in before)):
            reached.add(node)
    return end in reached


def has_layer(path: Sequence[Node]) -> bool:
    """Whether there is a linear map or a norm, of more than entries of a table that an index chose."""
    looked_up = set[Node]()
    for node in path:
        if node.parents and all(p.kind is Kind.INDEX or p in looked_up for p in node.parents):
            looked_up.add(node)
        elif node.kind in (Kind.LINEAR, Kind.NORM):
            return True
    return False


def back_from(node: Node) -> list[Node]:
    """The node and those before it, as far back as norms, activations and copies alone lead; that is last."""
    path = [node]
    while (node := path[-1]).kind in (Kind.NORM, Kind.ACTIVATION, Kind.PASS, Kind.SHIFT) or _ends_norm(node):
        if node.kind is Kind.NORM and len(node.parents) == 2:  # (x - m) / s: x is older than s.
            path.append(min(map(_before_centring, node.parents), key=lambda before: before.order))
        elif len(node.parents) == 1:
            path += node.parents
        else:
            break
    return path


def _ends_norm(node: Node) -> bool:
    """Whether this is the scale of a norm written by hand."""
    return node.kind is Kind.SCALE and _before_centring(node).kind is Kind.NORM


def _before_centring(node: Node) -> Node:
    """What a value was before something was taken from it, or before a scale."""
    while True:
        if node.kind is Kind.OTHER and node.difference is not None:
            node = node.difference[0]
        elif node.kind in (Kind.SCALE, Kind.PASS) and len(node.parents) == 1:
            node = node.parents[0]
        else:
            return node
