"""Norms: which modules are norms, and how a forward pass uses them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from ..nets.layers import CONVOLUTIONS_AND_DENSE
from ..probing.adds import TracedAdd
from ..probing.graph import Kind, Node, origins
from ..probing.tensors import tensors_in
from .plan import outwards

_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def is_norm(module: nn.Module) -> bool:
    """Whether the module is one of torch's norms, or a layer that has "norm" in its class name."""
    custom = not list(module.children()) and "norm" in type(module).__name__.lower()
    return isinstance(module, _NORMS) or custom or is_frozen_batch_norm(module)


def is_batch_norm(module: nn.Module) -> bool:
    """Whether the module is a batch norm, frozen or not."""
    return isinstance(module, _BatchNorm) or is_frozen_batch_norm(module)


def is_frozen_batch_norm(module: nn.Module) -> bool:
    """Whether the module is a batch norm whose statistics and affine parameters are buffers.

    torchvision, timm and Hugging Face each have a class of their own for it.
    """
    named = "norm" in type(module).__name__.lower() and not isinstance(module, _BatchNorm)
    statistics = (getattr(module, name, None) for name in ("running_mean", "running_var"))
    return named and all(isinstance(values, Tensor) and values.dim() == 1 for values in statistics)


def unreached_norms(
    model: nn.Module, reached: Sequence[str], own_types: tuple[type[nn.Module], ...]
) -> list[str]:
    """Norms of torch that took no part in the forward pass; one inside a norm of the user's stands for it."""
    own = {name for name in reached if isinstance(model.get_submodule(name), own_types)}
    norms = [n for n, module in model.named_modules() if isinstance(module, _NORMS) and n not in reached]
    return [name for name in norms if own.isdisjoint(outwards(name))]


def norms_with(model: nn.Module, parameters: Collection[str]) -> list[str]:
    """The norms of torch to which some of these parameters belong."""
    owners = {name.rpartition(".")[0] for name in parameters}
    return [n for n, module in model.named_modules() if isinstance(module, _NORMS) and n in owners]


def find_norms(
    model: nn.Module,
    nodes: Iterable[Node],
    own_types: tuple[type[nn.Module], ...],
    users: Mapping[Node, list[Node]],
) -> dict[Node, str]:
    """The operations that are part of a normalization, with the name of the module that stands for it."""
    modules = dict(model.named_modules(remove_duplicate=False))
    own = {name for name, module in modules.items() if name and isinstance(module, own_types)}
    frozen = {name for name, module in modules.items() if is_frozen_batch_norm(module)}
    homes: dict[Node, str] = {}
    for node in nodes:
        around = next((name for name in outwards(node.module) if name in own), None)
        normalizes = node.kind is Kind.NORM or node.module in frozen
        if around is not None:
            homes[node] = around
        elif normalizes and node.kind is not Kind.INPUT and not _only_compares(modules, node, users):
            homes[node] = node.module
    return homes


def _only_compares(modules: Mapping[str, nn.Module], norm: Node, users: Mapping[Node, list[Node]]) -> bool:
    """Whether a forward normalizes vectors to compare them: queries and keys, or what it returns.

    What it returns counts where it divides by their size, as for a cosine similarity.
    """
    layers = (Kind.LINEAR, Kind.NORM, Kind.ATTENTION, Kind.RESIDUAL)
    waiting, seen, used = [norm], {norm}, set[Kind]()
    while waiting:
        for user in users.get(waiting.pop(), ()):
            if user.kind in layers:
                used.add(user.kind)
            elif user not in seen:
                seen.add(user)
                waiting.append(user)
    returned = not used and len(norm.parents) == 2 and not norm.over_batch
    return (returned or used == {Kind.ATTENTION}) and not is_norm(modules[norm.module])


def find_more_than_norms(model: nn.Module, nodes: Sequence[Node]) -> frozenset[str]:
    """Modules that are named after a norm, and whose forward also has a linear map or an activation.

    An activation before the division only keeps its denominator above zero.
    """
    found, normalized = set[str](), set[int]()
    for node in nodes:
        if node.kind is Kind.NORM:
            normalized.add(node.call)
        mapped = node.kind is Kind.LINEAR and node.parameters
        if mapped or (node.kind is Kind.ACTIVATION and node.call in normalized):
            found.add(node.module)
    return frozenset(name for name in found if is_norm(model.get_submodule(name)))


class NormCall(NamedTuple):
    """The last call of a norm."""

    output: Tensor
    """An empty tensor that shares the output's version, which counts the writes into it."""
    version: int
    """The version at the end of the call."""
    alone: bool
    """Whether the norm took one tensor and returned one, in no tuple or mapping."""


@contextmanager
def norm_calls(model: nn.Module) -> Iterator[dict[str, NormCall]]:
    """The last call of each module with "norm" in the name of its class or of a base, while the body runs."""
    calls: dict[str, NormCall] = {}

    def keep(name: str, given: tuple[Any, ...], output: Any) -> None:
        if (tensor := next(tensors_in(output), None)) is not None:
            counter = tensor.detach()
            with suppress(RuntimeError):  # Values stay in memory if nested or in vmap; others need not.
                counter.data = tensor.new_empty(0)
            alone = isinstance(output, Tensor) and sum(1 for _ in tensors_in(given)) == 1
            calls[name] = NormCall(counter, tensor._version, alone)

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if any("norm" in kind.__name__.lower() for kind in type(module).__mro__):
                hook = module.register_forward_hook(
                    lambda _, args, kwargs, output, name=name: keep(name, (*args, *kwargs.values()), output),
                    with_kwargs=True,
                )
                hooks.enter_context(hook)
        yield calls


@contextmanager
def channel_strides(model: nn.Module) -> Iterator[dict[str, int]]:
    """The stride of the channels in what layers return and batch norms are given, while the body runs.

    After a dense layer channels are the last axis, for batch norm the second. Strides tell whether these are
    the same, since views keep them: in a mixer, where they are not, both axes may have the same size.
    """
    strides: dict[str, int] = {}

    def keep(name: str, values: Any, axis: int) -> None:
        tensor = next(tensors_in(values), None)
        if tensor is not None and tensor.dim() > 1:
            strides[name] = tensor.stride(axis)

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if is_batch_norm(module):
                hook = module.register_forward_pre_hook(
                    lambda _, args, kwargs, name=name: keep(name, (args, kwargs), 1), with_kwargs=True
                )
            elif isinstance(module, CONVOLUTIONS_AND_DENSE):
                axis = -1 if isinstance(module, nn.Linear) else 1
                hook = module.register_forward_hook(
                    lambda _, __, output, name=name, axis=axis: keep(name, output, axis)
                )
            else:
                continue
            hooks.enter_context(hook)
        yield strides


def find_feeders(
    norms: Iterable[Node], nodes: Iterable[Node], users: Mapping[Node, list[Node]], outputs: set[Node]
) -> dict[str, str]:
    """For a norm: the module whose linear map is its input, where nothing else uses that map's output."""
    entries = _entries(nodes)
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


def _entries(nodes: Iterable[Node]) -> Mapping[tuple[str, int], set[Node]]:
    """For each call of a module: the operations outside of it whose results it used."""
    entries: defaultdict[tuple[str, int], set[Node]] = defaultdict(set)
    for node in nodes:
        for parent in node.parents:
            if parent.call != node.call:
                entries[node.module, node.call].add(parent)
    return entries


def norms_on_skip(adds: Sequence[TracedAdd], norms: set[str]) -> tuple[str, ...]:
    """Norms of an earlier sum that make a skip operand or a multiple, and norms on a skip without weights."""
    found: list[str] = []
    for add in adds:
        skip = add.skip
        while skip.module not in norms and skip.kind in (Kind.SCALE, Kind.PASS) and len(skip.parents) == 1:
            skip = skip.parents[0]
        if skip.module in norms and _normalizes_sum(skip):
            found.append(skip.module)
        if not any(node.kind is Kind.LINEAR for node in add.paths.skip):
            found.extend(node.module for node in add.paths.skip if node.module in norms)
    within = {node.module for add in adds for node in add.paths.branch}  # Branches of blocks around the add.
    return tuple(dict.fromkeys(name for name in found if name not in within))


def _normalizes_sum(norm: Node) -> bool:
    waiting, seen = [norm], {norm}
    while waiting:
        node = waiting.pop()
        inside = {parent for parent in node.parents if parent.call == norm.call}
        if any(parent.kind is Kind.RESIDUAL for parent in node.parents if parent not in inside):
            return True
        waiting += inside - seen
        seen |= inside
    return False


def find_raw_norms(
    model: nn.Module, norms: Mapping[Node, str], nodes: Iterable[Node], adds: Sequence[TracedAdd]
) -> tuple[str, ...]:
    """The norms whose input no linear map or block computed, and which is not a stream itself.

    A branch of such a stream starts with the stream's own scale.
    """
    embeddings = {name for name, module in model.named_modules() if isinstance(module, nn.Embedding)}
    streams = {add.skip for add in adds}
    entries = _entries(nodes)
    raw = {
        name: all(_is_raw(given, embeddings, streams) for given in entries[node.module, node.call])
        for node, name in norms.items()
    }
    return tuple(name for name, found in raw.items() if found)


def _is_raw(end: Node, embeddings: set[str], streams: set[Node]) -> bool:
    waiting, seen = [end], {end}
    while waiting:
        node = waiting.pop()
        computed = node.kind is Kind.LINEAR and node.module not in embeddings
        if computed or node in streams or node.kind in (Kind.RESIDUAL, Kind.ATTENTION):
            return False
        before = origins(node, learned=True)
        waiting += [parent for parent in before if parent not in seen]
        seen.update(before)
    return True
