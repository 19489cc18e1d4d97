"""Finds the residual adds of any module by watching one forward pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from .lineage import Node, scalings
from .operators import Kind
from .run import Batch, watched
from .watch import Sighting, Watcher


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


def find_residual_adds(model: nn.Module, batch: Batch) -> list[ResidualAdd]:
    """The residual adds of one forward pass of `model` on `batch`; an empty list if it has none.

    The model runs in training mode without gradients and is left as it was. `batch` is a tensor, a tuple of
    arguments, or a dictionary of keyword arguments.
    """
    with watched(model, batch, measure=False) as (watcher, _):
        return describe(model, watcher)


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
