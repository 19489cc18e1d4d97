"""Residual adds as they are shown to users: names of modules and parameters in place of the graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .adds import CARRIED, TracedAdd, run_again
from .graph import Kind, Node, back_from


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
    """"add", "sub", "addcmul", "lerp", "index_add", or "sum" of two stacked tensors."""
    shape: tuple[int, ...]
    skip_operand: int
    """0 if the skip is the left operand, 1 if it is the right one."""
    skip_is_identity: bool
    """Whether no operation lies on the skip path alone."""
    skip_is_multiple: bool
    """Whether it went through copies, shifts and constant factors at most: no gate, pooling or norm."""
    skip_is_projection: bool
    """Whether it went through learned linear maps."""
    continues: str | None
    """The earlier add whose sum the skip operand is, as it was or times `skip_constant`."""
    skip_constant: float
    follows: str | None
    """The same, or the earlier add from whose sum norms, activations and copies alone lead to the skip."""
    projects: str | None
    """The earlier add whose sum, or a multiple, a projection on the skip maps after an activation."""
    skip_from: str | None
    """The module whose forward computed the skip operand; None if it is the input or from `module` itself."""
    branch_from: str | None
    """The same for the branch operand."""
    skip_modules: tuple[str, ...]
    """The modules that only the skip went through, in order, without modules that only contain others."""
    branch_modules: tuple[str, ...]
    """The modules on the branch, without those of blocks inside it."""
    skip_norms: tuple[str, ...]
    branch_norms: tuple[str, ...]
    shared_norms: tuple[str, ...]
    """Norms right before a projection skip and its branch split."""
    normalized: bool
    """Whether a norm is on the branch or right before it, including one that the adding forward calls."""
    parameters: tuple[str, ...]
    """The parameters that the block uses on its own paths."""
    scale: str | None
    """The learned parameter that multiplies the branch at its end."""
    activation: str | None
    """The module that runs the activation directly after the add, if nothing else uses the sum."""
    nested: bool
    """Whether the branch holds other residual adds: a block around blocks, or a long skip."""
    doubt: str | None = None
    """Where the structure allows two readings: both of them."""


def describe_adds(adds: Sequence[TracedAdd], model: str) -> list[ResidualAdd]:
    """The residual adds of a pass of the model of that class, without the graph."""
    uses: Counter[str] = Counter()
    names: dict[Node, str] = {}
    for add in adds:
        label = add.node.module or model
        uses[label] += 1
        names[add.node] = label if uses[label] == 1 else f"{label}#{uses[label]}"
    doubts = _doubts(adds)
    return [_describe(add, depth, names, doubts.get(add.node)) for depth, add in enumerate(adds, start=1)]


def _doubts(adds: Sequence[TracedAdd]) -> dict[Node, str]:
    """Where the graph of a pass allows two readings."""
    again = run_again(adds)
    inside = {node for add in adds for node in add.paths.branch}
    doubts: dict[Node, str] = {}
    for add in adds:
        scales = [node for node in add.paths.skip if node.kind is Kind.SCALE and node.parameters]
        # The scale of a norm that is written by hand belongs to the norm.
        learned = any(parent.kind is not Kind.NORM for node in scales for parent in node.parents)
        if add.layers in again:
            doubts[add.node] = "blocks that share their weights, or the steps of a recurrence"
        elif learned and add.node in inside:
            doubts[add.node] = "a block inside a block, or one layer, such as a state space with its D"
    return doubts


def _describe(add: TracedAdd, depth: int, names: dict[Node, str], doubt: str | None) -> ResidualAdd:
    node, paths, scaling = add.node, add.paths, add.learned_scaling()
    stream, constant = _stream(add.skip)
    carried = all(n.kind in CARRIED and n.constant is not None for n in paths.skip)
    multiple = stream in names or carried  # In x + f(x) + g(x) the layers of f lie on the second skip.
    (after, after_module), *others = node.consumers or [(Kind.OTHER, "")]
    activated = any(n.kind is Kind.ACTIVATION for n in paths.shared)
    used = (name for n in (*paths.shared, *paths.skip, *paths.branch) for name in n.parameters)
    return ResidualAdd(
        name=names[node],
        depth=depth,
        module=node.module,
        operation=add.operation,
        shape=add.shape,
        skip_operand=paths.skip_operand,
        skip_is_identity=not paths.skip,
        skip_is_multiple=multiple,
        skip_is_projection=not multiple and any(n.kind is Kind.LINEAR for n in paths.skip),
        continues=names.get(stream),
        skip_constant=constant,
        follows=names.get(back_from(stream)[-1]),
        projects=names.get(_stream(paths.shared[0].parents[0])[0]) if activated else None,
        skip_from=_origin(add.skip, node),
        branch_from=_origin(add.branch, node),
        skip_modules=_modules(paths.skip, node),
        branch_modules=_modules(paths.branch, node),
        skip_norms=_modules(paths.skip, node, Kind.NORM),
        branch_norms=_modules(paths.branch, node, Kind.NORM),
        shared_norms=_modules(paths.shared, node, Kind.NORM),
        normalized=any(n.kind is Kind.NORM for n in (*paths.shared, *paths.branch)),
        parameters=tuple(dict.fromkeys(used)),
        scale=scaling.parameters[0] if scaling is not None else None,
        activation=after_module if after is Kind.ACTIVATION and not others else None,
        nested=any(n in names for n in paths.branch),
        doubt=doubt,
    )


def _stream(skip: Node) -> tuple[Node, float]:
    """The node of which the skip operand is a constant multiple, and the constant."""
    constant = 1.0
    while skip.kind is Kind.SCALE and skip.constant is not None:
        constant, skip = constant * skip.constant, skip.parents[0]
    return skip, constant


def _modules(path: Iterable[Node], add: Node, *kinds: Kind) -> tuple[str, ...]:
    """Where the operations of the path ran, outside of the forward that adds; with `kinds`, only such."""
    return tuple(dict.fromkeys(n.module for n in path if n.call != add.call and n.kind in (kinds or Kind)))


def _origin(operand: Node, add: Node) -> str | None:
    while operand.call == add.call and operand.kind is Kind.SCALE and len(operand.parents) == 1:
        operand = operand.parents[0]
    return None if operand.call == add.call or operand.kind is Kind.INPUT else operand.module
