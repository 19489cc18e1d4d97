"""What one forward pass tells about a model: where branches end, what feeds each norm, what classifies."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..probing.adds import ResidualAdd, describe
from ..probing.forward import Batch, watched
from ..probing.operations import Kind, Node
from ..probing.trace import Sighting, Watcher


@dataclass(frozen=True)
class Block:
    """A residual add and what there is to change about it."""

    add: ResidualAdd
    tail: str | None
    """The module whose output, times a number, is the branch's output times that number."""
    weights: tuple[str, ...]
    """The weights of the branch's linear maps, in order."""
    hands_on_sum: bool
    """Whether the module that adds returns the sum, or the sum after one activation module."""


@dataclass(frozen=True)
class Flow:
    """One forward pass, by the names of modules."""

    blocks: tuple[Block, ...]
    norms: tuple[str, ...]
    """Every module that normalizes, in order."""
    feeders: Mapping[str, str]
    """Of a norm: the module whose linear map it is given, where nothing else uses that map's output."""
    overwritten: frozenset[str]
    """Norms whose output is written into, by an in-place function."""
    norms_on_skip: tuple[str, ...]
    """Norms that the skip path itself goes through, as in post-norm blocks."""
    calls: Mapping[str, int]
    """How often each module computed something."""
    classifier: str | None
    """The dense layer that makes the model's output."""


def trace(model: nn.Module, batch: Batch) -> Flow:
    """Run the model once, in training mode; it is left as it was."""
    with _versions(model) as versions, watched(model, batch, measure=False) as (watcher, output):
        outputs = _lineage(watcher, output)
        nodes = _ancestors([*outputs, *(sighting.node for sighting in watcher.sightings)])
        users = _users(nodes)
        adds = describe(model, watcher)
        norms = [node for node in nodes if node.kind is Kind.NORM]
        return Flow(
            blocks=tuple(
                _block(model, add, sighting, users)
                for add, sighting in zip(adds, watcher.sightings, strict=True)
            ),
            norms=tuple(dict.fromkeys(node.module for node in norms)),
            feeders=_feeders(norms, nodes, users, set(outputs)),
            overwritten=frozenset(
                name for name, (out, version) in versions.items() if out._version > version
            ),
            norms_on_skip=_on_skip(watcher.sightings, {node.module for node in norms}),
            calls=_count_calls(nodes),
            classifier=_classifier(model, outputs),
        )


@contextmanager
def _versions(model: nn.Module) -> Iterator[dict[str, tuple[Tensor, int]]]:
    """What each norm returned in a pass, with its version then: torch counts the writes into a tensor."""
    seen: dict[str, tuple[Tensor, int]] = {}

    def note(name: str, output: Any) -> None:
        if isinstance(output, Tensor):
            seen[name] = output, output._version

    hooks = [
        module.register_forward_hook(lambda _, __, output, name=name: note(name, output))
        for name, module in model.named_modules()
        if "norm" in type(module).__name__.lower()
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors of a model's output, however it is nested."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_in(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part)


def _lineage(watcher: Watcher, output: Any) -> list[Node]:
    found = (watcher.lineage_of(tensor) for tensor in tensors_in(output))
    return list(dict.fromkeys(node for node in found if node is not None))


def _ancestors(roots: Iterable[Node]) -> list[Node]:
    seen = set(roots)
    waiting = list(seen)
    while waiting:
        for parent in waiting.pop().parents:
            if parent not in seen:
                seen.add(parent)
                waiting.append(parent)
    return sorted(seen, key=lambda node: node.order)


def _count_calls(nodes: Iterable[Node]) -> Counter[str]:
    calls = {(node.module, node.call) for node in nodes if node.kind is not Kind.INPUT}
    return Counter(module for module, _ in calls)


def _users(nodes: Iterable[Node]) -> Mapping[Node, list[Node]]:
    users: defaultdict[Node, list[Node]] = defaultdict(list)
    for node in nodes:
        for parent in node.parents:
            users[parent].append(node)
    return users


def _block(model: nn.Module, add: ResidualAdd, sighting: Sighting, users: Mapping[Node, list[Node]]) -> Block:
    used = [name for n in sighting.split.branch_path if n.kind is Kind.LINEAR for name in n.parameters]
    weights = tuple(name for name in used if model.get_parameter(name).dim() > 1)
    return Block(add, _tail(sighting), weights, _hands_on_sum(sighting.node, users))


def _tail(sighting: Sighting) -> str | None:
    """Back over what a scalar commutes with: scales, copies, dropout."""
    node, add = sighting.operands[1 - sighting.split.skip], sighting.node
    while node.call == add.call and node.kind in (Kind.SCALE, Kind.CARRY) and len(node.parents) == 1:
        node = node.parents[0]
    return None if node.call == add.call or node.kind is Kind.INPUT else node.module


def _hands_on_sum(add: Node, users: Mapping[Node, list[Node]]) -> bool:
    def inside(node: Node) -> list[Node]:
        home = f"{add.module}." if add.module else ""
        return [user for user in users.get(node, ()) if user.call == add.call or user.module.startswith(home)]

    direct = inside(add)
    if not add.module or not direct:
        return not direct
    activated = len(direct) == len(users[add]) == 1 and direct[0].kind is Kind.ACTIVATION
    return activated and direct[0].call != add.call and not inside(direct[0])


def _feeders(
    norms: Iterable[Node], nodes: Iterable[Node], users: Mapping[Node, list[Node]], outputs: set[Node]
) -> dict[str, str]:
    entries: defaultdict[tuple[str, int], set[Node]] = defaultdict(set)
    for node in nodes:
        for parent in node.parents:
            if parent.call != node.call:
                entries[node.module, node.call].add(parent)
    feeders: dict[str, str] = {}
    for norm in norms:
        given = entries[norm.module, norm.call]
        if len(given) != 1:
            continue
        (feeder,) = given
        alone = all(user.call == norm.call for user in users[feeder]) and feeder not in outputs
        if feeder.kind is Kind.LINEAR and alone:
            feeders[norm.module] = feeder.module
    return feeders


def _on_skip(sightings: Iterable[Sighting], norms: set[str]) -> tuple[str, ...]:
    """A norm of an earlier sum that makes a skip operand, or a norm on a skip that has no weights."""
    found: list[str] = []
    for sighting in sightings:
        path, operand = sighting.split.skip_path, sighting.operands[sighting.split.skip]
        if operand.module in norms and _normalizes_sum(operand):
            found.append(operand.module)
        if not any(node.kind is Kind.LINEAR for node in path):
            found.extend(node.module for node in path if node.module in norms)
    return tuple(dict.fromkeys(found))


def _normalizes_sum(norm: Node) -> bool:
    given, waiting = set[Kind](), [norm]
    while waiting:
        node = waiting.pop()
        waiting.extend(parent for parent in node.parents if parent.call == norm.call)
        given.update(parent.kind for parent in node.parents if parent.call != norm.call)
    return Kind.RESIDUAL in given


def _classifier(model: nn.Module, outputs: list[Node]) -> str | None:
    if len(outputs) != 1:
        return None
    node = outputs[0]
    while node.kind not in (Kind.LINEAR, Kind.RESIDUAL) and len(node.parents) == 1:
        node = node.parents[0]
    dense = node.kind is Kind.LINEAR and isinstance(model.get_submodule(node.module), nn.Linear)
    return node.module if dense else None
