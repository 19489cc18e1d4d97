"""How a forward pass uses norms: which it runs, which layer feeds each, and which are on a skip path."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from ..probing.adds import TracedAdd
from ..probing.operations import Kind, Node
from ..probing.tensors import tensors_in
from .folding import is_frozen_batch_norm
from .plan import outwards


def find_norms(
    model: nn.Module, nodes: Iterable[Node], norm_types: tuple[type[nn.Module], ...]
) -> dict[Node, str]:
    """The operations that are part of a normalization, with the name of the module that stands for it."""
    modules = dict(model.named_modules(remove_duplicate=False))
    own = {name for name, module in modules.items() if name and isinstance(module, norm_types)}
    frozen = {name for name, module in modules.items() if is_frozen_batch_norm(module)}
    homes: dict[Node, str] = {}
    for node in nodes:
        around = next((name for name in outwards(node.module) if name in own), None)
        normalizes = node.kind is Kind.NORM or node.module in frozen
        if around is not None:
            homes[node] = around
        elif normalizes and node.kind is not Kind.INPUT:
            homes[node] = node.module
    return homes


class NormCall(NamedTuple):
    """The last call of a norm."""

    output: Tensor
    """An empty tensor that shares the output's version, which counts the writes into it."""
    version: int
    """The version at the end of the call."""
    tensors: int
    """How many tensors the norm was given."""


@contextmanager
def norm_calls(model: nn.Module) -> Iterator[dict[str, NormCall]]:
    """The last call of each module with "norm" in the name of its class or of a base, while the body runs."""
    calls: dict[str, NormCall] = {}

    def keep(name: str, given: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, Tensor):
            counter = output.detach()
            counter.data = output.new_empty(0)  # The values need not stay in memory.
            calls[name] = NormCall(counter, output._version, sum(1 for _ in tensors_in(given)))

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if any("norm" in kind.__name__.lower() for kind in type(module).__mro__):
                hook = module.register_forward_hook(
                    lambda _, args, kwargs, output, name=name: keep(name, (*args, *kwargs.values()), output),
                    with_kwargs=True,
                )
                hooks.enter_context(hook)
        yield calls


def find_feeders(
    norms: Iterable[Node], nodes: Iterable[Node], users: Mapping[Node, list[Node]], outputs: set[Node]
) -> dict[str, str]:
    """For a norm: the module whose linear map is its input, where nothing else uses that map's output."""
    entries = entries_of(nodes)
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


def entries_of(nodes: Iterable[Node]) -> Mapping[tuple[str, int], set[Node]]:
    """For each call of a module: the operations outside of it whose results it used."""
    entries: defaultdict[tuple[str, int], set[Node]] = defaultdict(set)
    for node in nodes:
        for parent in node.parents:
            if parent.call != node.call:
                entries[node.module, node.call].add(parent)
    return entries


def norms_on_skip(adds: Sequence[TracedAdd], norms: set[str]) -> tuple[str, ...]:
    """Norms of an earlier sum that make a skip operand, and norms on a skip without weights."""
    found: list[str] = []
    for add in adds:
        if add.skip.module in norms and _normalizes_sum(add.skip):
            found.append(add.skip.module)
        if not any(node.kind is Kind.LINEAR for node in add.paths.skip):
            found.extend(node.module for node in add.paths.skip if node.module in norms)
    within = {node.module for add in adds for node in add.paths.branch}  # Branches of blocks around the add.
    return tuple(dict.fromkeys(name for name in found if name not in within))


def _normalizes_sum(norm: Node) -> bool:
    given, waiting = set[Kind](), [norm]
    while waiting:
        node = waiting.pop()
        waiting.extend(parent for parent in node.parents if parent.call == norm.call)
        given.update(parent.kind for parent in node.parents if parent.call != norm.call)
    return Kind.RESIDUAL in given
