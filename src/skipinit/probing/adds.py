"""Which additions of a forward pass are residual adds.

For an addition `a + b`, take the operations that only `a` went through and those that only `b` went through
since their paths split. In a residual add one, the skip, went through almost nothing; the other, the branch,
went through layers. The criterion is depth: the largest number of linear maps on any path from the split.

- The skip is the identity, or a multiple of it: the branch has a layer, i.e. a linear map or a norm.
- The skip has depth 0 (pooling, padding, a norm or gate, no attention): the branch has a learned linear map.
- The skip is a projection, one linear map or several without an activation: the branch is deeper, has a norm
  or an activation, and neither path has another residual add. So a projection skips one block, as in ResNets.
  Feature pyramids, low-rank adapters, recurrences and sums of parallel towers are not residual.
- The branch sees what the skip carries, or all that it does not carry: two halves of a tensor are coupled
  streams, `a + f(b)` and then `b + g(a)`, as in reversible networks. In Res2Net's `b + f(a)`, a and b are two
  of several parts.

Through a residual add the stream continues along its skip. Operands whose streams have no common origin, such
as a position embedding that is added in every layer, are not residual. Whole numbers are no origin: one token
may choose from several tables. Nor do they carry a signal if a comparison found them: a quantizer has no
layer. In `x + f(x) + g(x)`, written in one forward, both additions count: the partial sum stands for x.

The branch is the operations between the origin of the skip and the add. What enters from outside, such as an
encoder's output, is not part of it, and the branch of an inner block belongs to the inner block.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from torch import Tensor

from .graph import (
    Kind,
    Node,
    back_from,
    depth_of,
    descending_labels,
    has_layer,
    leads_past,
    origins,
    split_paths,
)

BRANCH_SCALAR = "branch_alpha"
"""The name of the learned scalar that a conversion puts at the end of a branch."""
CARRIED = (Kind.SCALE, Kind.PASS, Kind.SHIFT)


@dataclass(frozen=True, slots=True)
class Paths:
    """The two paths of a residual add."""

    skip_operand: int
    """0 if the skip is the left operand, 1 if it is the right one."""
    skip: tuple[Node, ...]
    """The operations that only the skip went through."""
    branch: tuple[Node, ...]
    """The operations between the skip's origin and the add; none if they have no layer: it is no block."""
    shared: tuple[Node, ...] = ()
    """Norms and activations right before the paths split, where the skip is a projection."""


def classify(a: Node, b: Node, call: int) -> Paths | str:
    """The paths of `a + b` in that call of a module, or the reason why it is not a residual add."""
    if a is b:
        return "both operands are one tensor"
    only_a, only_b, fork = split_paths(a, b)
    if fork is None or split_paths(a, b, along_skips=True)[2] is None:
        return "the operands have no common origin"
    if not only_a or not only_b:
        return _classify_identity(0 if not only_a else 1, [], only_b or only_a, (a, b))
    for operand, (total, other) in enumerate(((a, b), (b, a))):
        if total.stream is not None and total.call == call:
            found = classify(total.stream, other, call)
            if isinstance(found, Paths) and found.branch and found.skip_operand == 0:
                return replace(found, skip_operand=operand, skip=tuple((only_a, only_b)[operand]))
    depth_a, depth_b = depth_of(only_a, a), depth_of(only_b, b)
    for operand, (skip, branch) in enumerate(((only_a, only_b), (only_b, only_a))):
        if depth_a == depth_b == 0 and all(node.kind in CARRIED for node in skip):
            return _classify_identity(operand, skip, branch, (a, b))
    if depth_a == depth_b:
        return "both operands went through as many layers: neither is a skip"
    operand, skip, branch = (0, only_a, only_b) if depth_a < depth_b else (1, only_b, only_a)
    return _classify_projection(operand, skip, branch, (a, b), fork)


def _classify_identity(
    operand: int, skip: list[Node], branch: list[Node], operands: tuple[Node, Node]
) -> Paths | str:
    origin, end = operands[operand], operands[1 - operand]
    path = _descending(skip, branch, origin, end)
    scaled = any(name.endswith(BRANCH_SCALAR) for node in path for name in node.parameters)
    # Layers may also compute the weights of the branch from the side, as from a style.
    computed = _count(path, Kind.ATTENTION) and has_layer(branch)
    layered = scaled or has_layer(path) or computed
    return Paths(operand, tuple(skip), _between(skip, branch, origin, end) if layered else ())


def _classify_projection(
    operand: int, skip: list[Node], branch: list[Node], operands: tuple[Node, Node], fork: Node
) -> Paths | str:
    start, end = operands[operand], operands[1 - operand]
    if weights := _count(skip, Kind.LINEAR):
        if weights > 1 and _count(skip, Kind.ACTIVATION):
            return "both operands went through several layers"
        if _count([*skip, *branch], Kind.RESIDUAL):
            return "features of different depths, each with its own weights"
        if not _count(branch, Kind.NORM, Kind.ACTIVATION, Kind.ATTENTION):
            return "two linear maps of one tensor"
        if _parameters(skip) & _parameters(branch):
            return "one layer applied to both operands, as in a recurrence"
        if leads_past((Kind.LINEAR,), skip, start) and leads_past((Kind.LINEAR,), branch, end):
            return "two gates of one tensor"
    if _count(skip, Kind.ATTENTION):
        return "both operands went through several layers"
    if not leads_past((Kind.SQUARE, Kind.SIZE), skip, start):
        return "one operand is a sum of squares, as in a distance"
    between = _between(skip, branch, start, end)
    if depth_of(between, end) <= depth_of(skip, start):
        return "what one operand went through entered the other from the side"
    return Paths(operand, tuple(skip), between, tuple(back_from(fork)[-2::-1]))


def _descending(skip: list[Node], branch: list[Node], origin: Node, end: Node) -> list[Node]:
    """The operations of `branch` that depend on where the skip comes from. Others enter from the side."""
    learned = not (origin.from_data and end.from_data)
    own = set(skip)
    found = {p for node in skip for p in origins(node, learned) if p not in own} or {origin}
    for node in branch:
        if any(parent in found for parent in origins(node, learned)):
            found.add(node)
    return [node for node in branch if node in found]


def _between(skip: list[Node], branch: list[Node], origin: Node, end: Node) -> tuple[Node, ...]:
    """The operations of `branch` that lead from where the skip comes from to `end`, not through blocks."""
    learned = not (origin.from_data and end.from_data)
    candidates, on_path, waiting = set(_descending(skip, branch, origin, end)), set[Node](), [end]
    while waiting:
        node = waiting.pop()
        if node in candidates and node not in on_path:
            on_path.add(node)
            waiting += origins(node, learned, along_skips=True)
    return tuple(node for node in branch if node in on_path)


def _parameters(path: Iterable[Node]) -> set[str]:
    return {name for node in path for name in node.parameters}


def _count(path: Iterable[Node], *kinds: Kind) -> int:
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

    @property
    def layers(self) -> tuple[str, frozenset[str]]:
        """The module that adds and the parameters on the branch: the same for a block that runs again."""
        return self.node.module, frozenset(_parameters(self.paths.branch))

    def scalings(self) -> list[Node]:
        """The multiplications at the end of the branch, last first; copies, dropout and biases between."""
        found, node = [], self.branch
        while node.kind in CARRIED and len(node.parents) == 1:
            if node.kind is Kind.SCALE:
                found.append(node)
            node = node.parents[0]
        return found

    def learned_scaling(self) -> Node | None:
        """The last of them by something learned."""
        return next((scaling for scaling in self.scalings() if scaling.parameters), None)


def recurrent_adds(adds: Sequence[TracedAdd]) -> set[TracedAdd]:
    """Those that join the gates of a recurrent cell: the skip is gated, and the cell runs again."""
    again = run_again(adds) if any(_count(add.paths.skip, Kind.OTHER) for add in adds) else ()
    return {add for add in adds if add.layers in again and _count(add.paths.skip, Kind.OTHER)}


def gating_add(factors: Sequence[Node], adds: Sequence[TracedAdd]) -> TracedAdd | None:
    """The add whose sum only gates what its skip projects, x * sigmoid(U x + W f(x)), in such a product.

    GTrXL has two of them in each block, and an attention gate is one. The sum does not carry the stream on.
    """
    for value, gate in permutations(factors, 2):
        while gate.order > value.order and gate.kind is not Kind.RESIDUAL and len(gate.parents) == 1:
            gate = gate.parents[0]
        if gate.kind is Kind.RESIDUAL and len(gate.consumers) == 1:
            for add in reversed(adds):
                if add.node is gate and any(
                    node.kind is Kind.LINEAR and value in node.parents for node in add.paths.skip
                ):
                    return add
    return None


def run_again(adds: Sequence[TracedAdd]) -> set[Hashable]:
    """The layers that run again on what they computed, unlike those of a network that gets two inputs."""
    return descending_labels({add.node: add.layers for add in adds if add.layers[1]})
