"""Where tensors come from, and the one question asked of it: is this addition a residual add?

Every operation on data is a node that knows its parents. Of an addition `a + b`, take what only `a` went
through and what only `b` went through since their paths parted. In a residual add one of the two, the
skip, went through next to nothing; the other, the branch, went through layers:

- skip untouched (the identity): the branch holds a layer, i.e. a learned linear map or a normalization;
- skip without weights (pooling, padding, a norm, a gate): the branch holds a learned linear map;
- skip with one linear map of its own (a projection): the branch holds more, and a norm or an activation, and
  neither side holds another residual add. So a projection bridges one block, as in ResNets; feature pyramids,
  low-rank adapters, recurrences and sums of parallel towers are not residual.

Long skips over other residual adds count if the skip is without weights. In `x + f(x) + g(x)`, written in
one forward, both additions count: the partial sum carries on the stream of x.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from .operators import Kind


@dataclass(eq=False, slots=True)
class Node:
    """One operation on data; `order` grows with time, so parents come before children.

    A pass keeps all of them: what a tensor went through, nothing of the tensor itself.
    """

    order: int
    kind: Kind
    parents: tuple[Node, ...] = ()
    module: str = ""
    """Qualified name of the innermost module that was running."""
    call: int = 0
    """Which call of that module it was."""
    parameters: tuple[str, ...] = ()
    """Names of the parameters it used."""
    constant: float = 1.0
    """The number it multiplied by, if it did."""
    input_statistics: int | None = None
    """Where the ledger has the statistics of what a norm or a learned scale was given."""
    stream: Node | None = None
    """Of a residual add: its skip operand."""
    consumers: tuple[tuple[Kind, str], ...] = ()
    """Of a residual add: kind and module of the operations on its result. No nodes: lineage has no cycles."""


@dataclass(frozen=True, slots=True)
class Split:
    """A residual add: which operand is the skip, and what each of the two went through alone."""

    skip: int
    skip_path: tuple[Node, ...]
    branch_path: tuple[Node, ...]
    shared_path: tuple[Node, ...]
    """Norms and activations right before the paths part, where the skip is a projection."""


def judge(a: Node, b: Node, call: int) -> Split | str:
    """How `a + b`, in that call of a module, is a residual add; or the reason why it is none."""
    if a is b:
        return "both operands are one tensor"
    only_a, only_b, fork = part(a, b)
    if fork is None:
        return "the operands have no common origin"
    if not only_a or (only_b and _continues_stream(a, b, call)):
        return _judge_identity(0, only_a, only_b)
    if not only_b or _continues_stream(b, a, call):
        return _judge_identity(1, only_b, only_a)
    weights_a, weights_b = _count(only_a, Kind.LINEAR), _count(only_b, Kind.LINEAR)
    if weights_a == weights_b:
        return "both operands went through as many layers: neither is a skip"
    skip = 0 if weights_a < weights_b else 1
    skip_path, branch_path = (only_a, only_b) if skip == 0 else (only_b, only_a)
    return _judge_projection(skip, skip_path, branch_path, fork)


def _judge_identity(skip: int, skip_path: list[Node], branch_path: list[Node]) -> Split | str:
    if not _count(branch_path, Kind.LINEAR, Kind.NORM):
        return "no layer lies on either operand's path"
    return Split(skip, tuple(skip_path), tuple(branch_path), ())


def _judge_projection(skip: int, skip_path: list[Node], branch_path: list[Node], fork: Node) -> Split | str:
    if weights := _count(skip_path, Kind.LINEAR):
        if weights > 1:
            return "both operands went through several layers"
        if _count([*skip_path, *branch_path], Kind.RESIDUAL):
            return "features of different depths, each with weights of its own"
        if not _count(branch_path, Kind.NORM, Kind.ACTIVATION):
            return "two linear maps of one tensor"
        if _parameters(skip_path) & _parameters(branch_path):
            return "one layer applied to both operands, as in a recurrence"
    return Split(skip, tuple(skip_path), tuple(branch_path), tuple(_preactivation(fork)))


def part(a: Node, b: Node) -> tuple[list[Node], list[Node], Node | None]:
    """What only `a` descends from, what only `b` does (both oldest first), and their latest common ancestor.

    Walks back in time from both at once and stops as soon as nothing is left that only one has: the cost is
    that of the block, not of the network.
    """
    reach = {a: 1, b: 2}
    frontier = [(-node.order, node) for node in reach]
    heapq.heapify(frontier)
    lone = 2
    only: dict[int, list[Node]] = {1: [], 2: []}
    fork: Node | None = None
    while frontier and lone:
        node = heapq.heappop(frontier)[1]
        mark = reach[node]
        if mark == 3:
            fork = fork or node
        else:
            lone -= 1
            only[mark].append(node)
        for parent in node.parents:
            before = reach.get(parent, 0)
            after = reach[parent] = before | mark
            lone += (after in (1, 2)) - (before in (1, 2))
            if not before:
                heapq.heappush(frontier, (-parent.order, parent))
    if fork is None and frontier:
        fork = frontier[0][1]
    return only[1][::-1], only[2][::-1], fork


def scalings(branch: Node) -> list[Node]:
    """The multiplications at the very end of a branch, last first; copies, dropout and biases between."""
    found, node = [], branch
    while node.kind in (Kind.SCALE, Kind.CARRY) and len(node.parents) == 1:
        if node.kind is Kind.SCALE:
            found.append(node)
        node = node.parents[0]
    return found


def _continues_stream(sum_: Node, branch: Node, call: int) -> bool:
    """Whether `sum_` is x + f(x) of this very call, and `branch` was computed from that x."""
    origin = sum_
    while origin.stream is not None and origin.call == call:
        origin = origin.stream
    return origin is not sum_ and origin is not branch and not part(origin, branch)[0]


def _preactivation(fork: Node) -> list[Node]:
    path, node = [], fork
    while node.kind in (Kind.NORM, Kind.ACTIVATION, Kind.CARRY) and len(node.parents) == 1:
        path.append(node)
        node = node.parents[0]
    return path[::-1]


def _parameters(path: list[Node]) -> set[str]:
    return {name for node in path for name in node.parameters}


def _count(path: list[Node], *kinds: Kind) -> int:
    return sum(node.kind in kinds for node in path)
