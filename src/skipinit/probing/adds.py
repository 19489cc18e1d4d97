"""Which additions of a forward pass are residual adds.

For an addition `a + b`, take the operations that only `a` went through and those that only `b` went through
since their paths split. In a residual add one of the two, the skip, went through almost nothing; the other,
the branch, went through layers:

- The skip is the identity: the branch has a layer, i.e. a learned linear map or a normalization.
- The skip has no weights (pooling, padding, a norm, a gate): the branch has a learned linear map.
- The skip has one linear map (a projection): the branch has more, and a norm or an activation, and neither
  path has another residual add. So a projection skips one block, as in ResNets. Feature pyramids, low-rank
  adapters, recurrences and sums of parallel towers are not residual.

Long skips over other residual adds count if the skip has no weights. In `x + f(x) + g(x)`, written in one
forward, both additions count: the partial sum continues the stream of x.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from .operations import Kind, Node


@dataclass(frozen=True, slots=True)
class Paths:
    """The two paths of a residual add."""

    skip_operand: int
    """0 if the skip is the left operand, 1 if it is the right one."""
    skip: tuple[Node, ...]
    """The operations that only the skip went through."""
    branch: tuple[Node, ...]
    shared: tuple[Node, ...] = ()
    """Norms and activations right before the paths split, where the skip is a projection."""


def classify(a: Node, b: Node, call: int) -> Paths | str:
    """The paths of `a + b` in that call of a module, or the reason why it is not a residual add."""
    if a is b:
        return "both operands are one tensor"
    only_a, only_b, fork = split_paths(a, b)
    if fork is None:
        return "the operands have no common origin"
    if not only_a or (only_b and _continues_stream(a, b, call)):
        return _classify_identity(0, only_a, only_b)
    if not only_b or _continues_stream(b, a, call):
        return _classify_identity(1, only_b, only_a)
    weights_a, weights_b = _count(only_a, Kind.LINEAR), _count(only_b, Kind.LINEAR)
    if weights_a == weights_b:
        return "both operands went through as many layers: neither is a skip"
    if weights_a < weights_b:
        return _classify_projection(0, only_a, only_b, fork)
    return _classify_projection(1, only_b, only_a, fork)


def _classify_identity(operand: int, skip: list[Node], branch: list[Node]) -> Paths | str:
    if not _count(branch, Kind.LINEAR, Kind.NORM):
        return "no layer lies on either operand's path"
    return Paths(operand, tuple(skip), tuple(branch))


def _classify_projection(operand: int, skip: list[Node], branch: list[Node], fork: Node) -> Paths | str:
    if weights := _count(skip, Kind.LINEAR):
        if weights > 1:
            return "both operands went through several layers"
        if _count([*skip, *branch], Kind.RESIDUAL):
            return "features of different depths, each with weights of its own"
        if not _count(branch, Kind.NORM, Kind.ACTIVATION):
            return "two linear maps of one tensor"
        if _parameters(skip) & _parameters(branch):
            return "one layer applied to both operands, as in a recurrence"
    return Paths(operand, tuple(skip), tuple(branch), tuple(_preactivation(fork)))


def split_paths(a: Node, b: Node) -> tuple[list[Node], list[Node], Node | None]:
    """The ancestors of `a` alone, those of `b` alone (both oldest first), and their latest common ancestor.

    Walks back in time from both at once and stops when no node is left that only one descends from. The cost
    depends on the size of the block, not of the network.
    """
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
            fork = fork or node
        else:
            one_sided -= 1
            only[sides].append(node)
        for parent in node.parents:
            before = reach.get(parent, 0)
            after = reach[parent] = before | sides
            one_sided += (after in (1, 2)) - (before in (1, 2))
            if not before:
                heapq.heappush(frontier, (-parent.order, parent))
    if fork is None and frontier:
        fork = frontier[0][1]
    return only[1][::-1], only[2][::-1], fork


def _continues_stream(sum_: Node, branch: Node, call: int) -> bool:
    """Whether `sum_` is x + f(x) of this very call, and `branch` was computed from that x."""
    origin = sum_
    while origin.stream is not None and origin.call == call:
        origin = origin.stream
    return origin is not sum_ and origin is not branch and not split_paths(origin, branch)[0]


def _preactivation(fork: Node) -> list[Node]:
    path, node = [], fork
    while node.kind in (Kind.NORM, Kind.ACTIVATION, Kind.PASS) and len(node.parents) == 1:
        path.append(node)
        node = node.parents[0]
    return path[::-1]


def _parameters(path: list[Node]) -> set[str]:
    return {name for node in path for name in node.parameters}


def _count(path: list[Node], *kinds: Kind) -> int:
    return sum(node.kind in kinds for node in path)


@dataclass(eq=False, slots=True)
class TracedAdd:
    """A residual add in the graph of a pass. Statistics are indices into the tracer's buffer."""

    node: Node
    operation: str
    shape: tuple[int, ...]
    paths: Paths
    skip: Node
    """The operation that computed the skip operand."""
    branch: Node
    skip_statistics: int | None = None
    branch_statistics: int | None = None
    output_statistics: int | None = None
    gradient_norm: Tensor | None = None

    def scalings(self) -> list[Node]:
        """The multiplications at the end of the branch, last first; copies, dropout and biases between."""
        found, node = [], self.branch
        while node.kind in (Kind.SCALE, Kind.PASS) and len(node.parents) == 1:
            if node.kind is Kind.SCALE:
                found.append(node)
            node = node.parents[0]
        return found


@dataclass(frozen=True, slots=True)
class ResidualAdd:
    """One residual add of a model, as `find_residual_adds` returns it.

    Adds are listed in the order in which the data meets them. Modules and parameters are qualified names.
    """

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
    """The modules that only the skip went through, in order, without modules that only contain others."""
    branch_modules: tuple[str, ...]
    """The modules that only the branch went through."""
    skip_norms: tuple[str, ...]
    branch_norms: tuple[str, ...]
    shared_norms: tuple[str, ...]
    """Norms right before a projection skip and its branch split."""
    parameters: tuple[str, ...]
    """The parameters that the block uses on its own paths."""
    scale: str | None
    """The learned parameter that multiplies the branch at its end."""
    activation: str | None
    """The module that runs the activation directly after the add, if nothing else uses the sum."""
    nested: bool
    """Whether the branch holds other residual adds: a long skip."""


def describe_adds(adds: Sequence[TracedAdd], model: str) -> list[ResidualAdd]:
    """The residual adds of a pass of the model of that class, without the graph."""
    uses: Counter[str] = Counter()
    names: dict[Node, str] = {}
    for add in adds:
        label = add.node.module or model
        uses[label] += 1
        names[add.node] = label if uses[label] == 1 else f"{label}#{uses[label]}"
    return [_describe(add, depth, names) for depth, add in enumerate(adds, start=1)]


def _describe(add: TracedAdd, depth: int, names: dict[Node, str]) -> ResidualAdd:
    node, paths = add.node, add.paths
    learned = [parameter for scaling in add.scalings() for parameter in scaling.parameters]
    stream, constant = _stream(add.skip)
    (after, after_module), *others = node.consumers or [(Kind.OTHER, "")]
    used = (name for n in (*paths.shared, *paths.skip, *paths.branch) for name in n.parameters)
    return ResidualAdd(
        name=names[node],
        depth=depth,
        module=node.module,
        operation=add.operation,
        shape=add.shape,
        skip_operand=paths.skip_operand,
        skip_is_identity=not paths.skip,
        continues=names.get(stream),
        skip_constant=constant,
        skip_from=_origin(add.skip, node),
        branch_from=_origin(add.branch, node),
        skip_modules=_modules(paths.skip, node),
        branch_modules=_modules(paths.branch, node),
        skip_norms=_modules(_norms(paths.skip), node),
        branch_norms=_modules(_norms(paths.branch), node),
        shared_norms=_modules(_norms(paths.shared), node),
        parameters=tuple(dict.fromkeys(used)),
        scale=learned[0] if learned else None,
        activation=after_module if after is Kind.ACTIVATION and not others else None,
        nested=any(n.kind is Kind.RESIDUAL for n in paths.branch),
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
