"""What forward passes tell about a model: where branches end, which layer feeds each norm, and which layer
classifies.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from ..errors import ConfigError
from ..probing.adds import ResidualAdd, TracedAdd, describe_adds
from ..probing.forward import Inputs, Mode, traced
from ..probing.operations import Kind, Node, origins, tensors_in
from ..probing.trace import Tracer
from .folding import is_frozen_batch_norm
from .passes import FURTHER, WHOLE, Pass
from .plan import outwards
from .sites import Site, SiteFinder


@dataclass(frozen=True)
class Block:
    """A residual add, and what a conversion needs to know about it."""

    add: ResidualAdd
    tail: str | None
    """The module whose output, times a number, is the branch's output times that number."""
    site: Site | None
    """Where in the source of its module the add is."""
    weights: tuple[str, ...]
    """The weights of the branch's linear maps, in order."""
    ends: tuple[str, ...]
    """Those of them that no other linear map follows: one, or one on each way that joins at the end."""
    returns_sum: bool
    """Whether the module that adds returns the sum, or the sum after one activation module."""
    other_sites: tuple[Site, ...] = ()
    """Where the add is when training or evaluation takes another way through the source."""

    @property
    def is_recomputed(self) -> bool:
        """Whether its own module checkpoints the add."""
        return any(site.is_recomputed for site in (self.site, *self.other_sites) if site is not None)


@dataclass(frozen=True)
class Flow:
    """A forward pass in which no layer is dropped, by the names of modules."""

    blocks: tuple[Block, ...]
    norms: tuple[str, ...]
    """Every module that normalizes, in order; frozen batch norms and the user's own types among them."""
    feeders: Mapping[str, str]
    """For a norm: the module whose linear map is its input, where nothing else uses that map's output."""
    overwritten: frozenset[str]
    """Norms whose output an in-place function writes into."""
    norms_on_skip: tuple[str, ...]
    """Norms that the skip path itself goes through, as in post-norm blocks."""
    calls: Mapping[str, int]
    """How many calls of each module computed something."""
    classifier: str | None
    """The dense layer that computes the model's output."""
    dense_outputs: tuple[str, ...]
    """The dense layers that compute one of its outputs each."""
    passes: tuple[Pass, ...] = (WHOLE,)
    """Those that the model can do with these inputs, and that together meet every block in training."""


def find_flow(model: nn.Module, inputs: Inputs, norm_types: tuple[type[nn.Module], ...]) -> Flow:
    """Run the model with no layer dropped, then in evaluation and in training; it is left as it was."""
    flow = _whole_flow(model, inputs, norm_types)
    others, passes = [set[Site]() for _ in flow.blocks], [WHOLE]
    unseen = set(range(len(flow.blocks)))
    for further in FURTHER:
        if further.mode == "training" and not unseen:
            break
        with suppress(ConfigError), further.prepared(model):  # In training some models want targets.
            for number, site in _sites_elsewhere(flow, model, inputs, further):
                others[number].add(site)
                if further.mode == "training":
                    unseen.discard(number)
            passes.append(further)
    blocks = (
        replace(block, other_sites=tuple(sites - {block.site}))
        for block, sites in zip(flow.blocks, others, strict=True)
    )
    return replace(flow, blocks=tuple(blocks), passes=tuple(passes))


def _sites_elsewhere(
    flow: Flow, model: nn.Module, inputs: Inputs, further: Pass
) -> Iterator[tuple[int, Site]]:
    """The number of each block that another pass meets, and where; blocks are known by their layers."""
    numbers: defaultdict[tuple[str, frozenset[str]], list[int]] = defaultdict(list)
    for number, block in enumerate(flow.blocks):
        numbers[block.add.module, frozenset(block.add.parameters)].append(number)
    met: Counter[tuple[str, frozenset[str]]] = Counter()
    with _sites(model, inputs, further.mode) as (tracer, finder, _):
        for add, traced_add in zip(describe_adds(tracer.adds, ""), tracer.adds, strict=True):
            layers = add.module, frozenset(add.parameters)
            same, site = numbers.get(layers), finder.sites.get(traced_add)
            if same and site is not None:
                yield same[min(met[layers], len(same) - 1)], site
            met[layers] += 1


@contextmanager
def _sites(model: nn.Module, inputs: Inputs, mode: Mode) -> Iterator[tuple[Tracer, SiteFinder, Any]]:
    """A traced pass, with the sites of its adds and the model's output."""
    finders: list[SiteFinder] = []

    def watch(tracer: Tracer) -> SiteFinder:
        finders.append(SiteFinder(tracer))
        return finders[-1]

    with traced(model, inputs, mode, around=watch) as (tracer, output):
        yield tracer, finders[0], output


def _whole_flow(model: nn.Module, inputs: Inputs, norm_types: tuple[type[nn.Module], ...]) -> Flow:
    with (
        _norm_outputs(model) as norm_outputs,
        _sites(model, inputs, WHOLE.mode) as (tracer, finder, output),
    ):
        outputs = _output_nodes(tracer, output)
        nodes = _ancestors([*outputs, *(add.node for add in tracer.adds)])
        users = _users(nodes)
        adds = describe_adds(tracer.adds, type(model).__name__)
        norms = _norms(model, nodes, norm_types)
        dense = tuple(_dense_outputs(model, outputs))
        return Flow(
            blocks=tuple(
                _block(model, add, traced_add, finder.sites.get(traced_add), users)
                for add, traced_add in zip(adds, tracer.adds, strict=True)
            ),
            norms=tuple(dict.fromkeys(norms.values())),
            feeders=_feeders(norms, nodes, users, set(outputs)),
            overwritten=frozenset(
                name for name, (out, version) in norm_outputs.items() if out._version > version
            ),
            norms_on_skip=_on_skip(tracer.adds, {node.module for node in norms}),
            calls=_count_calls(nodes),
            classifier=dense[0] if len(outputs) == len(dense) == 1 else None,
            dense_outputs=dense,
        )


def _norms(
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


@contextmanager
def _norm_outputs(model: nn.Module) -> Iterator[dict[str, tuple[Tensor, int]]]:
    """The output of each norm with its version at that time: torch counts the writes into a tensor."""
    outputs: dict[str, tuple[Tensor, int]] = {}

    def keep(name: str, output: Any) -> None:
        if isinstance(output, Tensor):
            outputs[name] = output, output._version

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if "norm" in type(module).__name__.lower():
                hook = module.register_forward_hook(lambda _, __, output, name=name: keep(name, output))
                hooks.enter_context(hook)
        yield outputs


def _output_nodes(tracer: Tracer, output: Any) -> list[Node]:
    found = (tracer.node_of(tensor) for tensor in tensors_in(output))
    return list(dict.fromkeys(node for node in found if node is not None))


def _ancestors(roots: Iterable[Node]) -> list[Node]:
    seen = set(roots)
    waiting = list(seen)
    while waiting:
        node = waiting.pop()
        for parent in (*node.parents, *node.sources):
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
        for parent in (*node.parents, *node.sources):
            users[parent].append(node)
    return users


def _block(
    model: nn.Module,
    add: ResidualAdd,
    traced_add: TracedAdd,
    site: Site | None,
    users: Mapping[Node, list[Node]],
) -> Block:
    def weights(nodes: Iterable[Node]) -> tuple[str, ...]:
        used = [name for node in nodes if node.kind is Kind.LINEAR for name in node.parameters]
        return tuple(dict.fromkeys(name for name in used if model.get_parameter(name).dim() > 1))

    return Block(
        add,
        _tail(traced_add),
        site,
        weights(traced_add.paths.branch),
        weights(_last_maps(traced_add)),
        _returns_sum(traced_add.node, users),
    )


def _last_maps(add: TracedAdd) -> list[Node]:
    """The linear maps on the branch from which a way without another one leads to the add, in order."""
    branch, found, waiting = set(add.paths.branch), set[Node](), [add.branch]
    while waiting:
        node = waiting.pop()
        if node in branch and node not in found:
            found.add(node)
            if node.kind is not Kind.LINEAR:
                waiting += origins(node, learned=True, along_skips=True)
    return sorted((node for node in found if node.kind is Kind.LINEAR), key=lambda node: node.order)


def _tail(add: TracedAdd) -> str | None:
    """Back over operations that commute with a scalar: scales, copies, dropout."""
    node, call = add.branch, add.node.call
    while node.call == call and node.kind in (Kind.SCALE, Kind.PASS) and len(node.parents) == 1:
        node = node.parents[0]
    return None if node.call == call or node.kind is Kind.INPUT else node.module


def _returns_sum(add: Node, users: Mapping[Node, list[Node]]) -> bool:
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


def _on_skip(adds: Sequence[TracedAdd], norms: set[str]) -> tuple[str, ...]:
    """Norms of an earlier sum that make a skip operand, and norms on a skip without weights."""
    found: list[str] = []
    for add in adds:
        if add.skip.module in norms and _normalizes_sum(add.skip):
            found.append(add.skip.module)
        if not any(node.kind is Kind.LINEAR for node in add.paths.skip):
            found.extend(node.module for node in add.paths.skip if node.module in norms)
    within = {node.module for add in adds for node in add.paths.branch}  # Of a block around the add.
    return tuple(dict.fromkeys(name for name in found if name not in within))


def _normalizes_sum(norm: Node) -> bool:
    given, waiting = set[Kind](), [norm]
    while waiting:
        node = waiting.pop()
        waiting.extend(parent for parent in node.parents if parent.call == norm.call)
        given.update(parent.kind for parent in node.parents if parent.call != norm.call)
    return Kind.RESIDUAL in given


def _dense_outputs(model: nn.Module, outputs: list[Node]) -> Iterator[str]:
    """The dense layers that make an output each."""
    for node in outputs:
        while node.kind not in (Kind.LINEAR, Kind.RESIDUAL) and len(node.parents) == 1:
            node = node.parents[0]
        if node.kind is Kind.LINEAR and isinstance(model.get_submodule(node.module), nn.Linear):
            yield node.module
