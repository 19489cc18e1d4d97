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
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from .operations import Kind, Node

if TYPE_CHECKING:
    from .trace import Sighting, Watcher


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


@dataclass(frozen=True, slots=True)
class ResidualAdd:
    """One residual add, in the order the data meets them; modules and parameters by qualified name."""

    name: str
    """Unique: the module, with #2, #3, ... for its further adds; the model's class for the model itself."""
    depth: int
    """1 for the first residual add."""
    module: str
    """The module whose forward performs the add."""
    operation: str
    """"add", "sub" or "addcmul"."""
    shape: tuple[int, ...]
    skip_operand: int
    """0 if the skip is the left operand, 1 if it is the right one."""
    skip_is_identity: bool
    """Whether the skip operand went through no operation of its own."""
    continues: str | None
    """The earlier add whose sum the skip operand is, as it was or times `skip_constant`."""
    skip_constant: float
    skip_from: str | None
    """The module whose forward computed the skip operand; None if it is the input or from `module` itself."""
    branch_from: str | None
    """The same for the branch operand."""
    skip_modules: tuple[str, ...]
    """The modules that only the skip went through, in order; without those that merely contain others."""
    branch_modules: tuple[str, ...]
    """The modules that only the branch went through."""
    skip_norms: tuple[str, ...]
    branch_norms: tuple[str, ...]
    shared_norms: tuple[str, ...]
    """Norms right before a projection skip and its branch part."""
    parameters: tuple[str, ...]
    """The parameters that the block uses on its own paths."""
    scale: str | None
    """The learned parameter that multiplies the branch at its end."""
    activation: str | None
    """The module that runs the activation directly after the add, if nothing else uses the sum."""
    nested: bool
    """Whether the branch holds other residual adds: a long skip."""


def describe(model: nn.Module, watcher: Watcher) -> list[ResidualAdd]:
    """Everything seen, as plain data."""
    uses: Counter[str] = Counter()
    names: dict[Node, str] = {}
    for sighting in watcher.sightings:
        label = sighting.node.module or type(model).__name__
        uses[label] += 1
        names[sighting.node] = label if uses[label] == 1 else f"{label}#{uses[label]}"
    return [_describe(sighting, depth, names) for depth, sighting in enumerate(watcher.sightings, start=1)]


def _describe(sighting: Sighting, depth: int, names: dict[Node, str]) -> ResidualAdd:
    node, split = sighting.node, sighting.split
    skip, branch = sighting.operands[split.skip], sighting.operands[1 - split.skip]
    paths = (*split.shared_path, *split.skip_path, *split.branch_path)
    learned = [parameter for scaling in scalings(branch) for parameter in scaling.parameters]
    stream, constant = _stream(skip)
    (after, after_module), *others = node.consumers or [(Kind.OTHER, "")]
    return ResidualAdd(
        name=names[node],
        depth=depth,
        module=node.module,
        operation=sighting.operation,
        shape=sighting.shape,
        skip_operand=split.skip,
        skip_is_identity=not split.skip_path,
        continues=names.get(stream),
        skip_constant=constant,
        skip_from=_origin(skip, node),
        branch_from=_origin(branch, node),
        skip_modules=_modules(split.skip_path, node),
        branch_modules=_modules(split.branch_path, node),
        skip_norms=_modules(_norms(split.skip_path), node),
        branch_norms=_modules(_norms(split.branch_path), node),
        shared_norms=_modules(_norms(split.shared_path), node),
        parameters=tuple(dict.fromkeys(p for n in paths for p in n.parameters)),
        scale=learned[0] if learned else None,
        activation=after_module if after is Kind.ACTIVATION and not others else None,
        nested=any(n.kind is Kind.RESIDUAL for n in split.branch_path),
    )


def _stream(skip: Node) -> tuple[Node, float]:
    """What the skip operand is a constant multiple of, and the constant."""
    constant = 1.0
    while skip.kind is Kind.SCALE and not skip.parameters:
        constant *= skip.constant
        skip = skip.parents[0]
    return skip, constant


def _norms(path: Iterable[Node]) -> list[Node]:
    return [node for node in path if node.kind is Kind.NORM]


def _modules(path: Iterable[Node], add: Node) -> tuple[str, ...]:
    return tuple(dict.fromkeys(node.module for node in path if node.call != add.call))


def _origin(operand: Node, add: Node) -> str | None:
    if operand.call == add.call:
        if operand.kind is Kind.SCALE and len(operand.parents) == 1:
            return _origin(operand.parents[0], add)
        return None
    return None if operand.kind is Kind.INPUT else operand.module
