"""What forward passes tell about a model: where branches end, which layer feeds each norm, and which layer
classifies.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from ..errors import ConfigError
from ..nets.layers import is_dense, is_linear_map
from ..probing.adds import ResidualAdd, TracedAdd, describe_adds
from ..probing.balance import ProbeReport
from ..probing.forward import Inputs, Mode, traced
from ..probing.measure import StatisticsBuffer, report_of
from ..probing.operations import Kind, Node, origins
from ..probing.tensors import tensors_in
from ..probing.trace import Tracer
from .norm_uses import find_feeders, find_norms, norm_calls, norms_on_skip
from .passes import FURTHER, WHOLE, Pass
from .raw_inputs import find_raw_norms
from .sites import Path, Site, SiteFinder
from .streams import find_tables


@dataclass(frozen=True)
class Block:
    """A residual add, and what a conversion needs to know about it."""

    add: ResidualAdd
    tail: str | None
    """The module that ends this branch and nothing else: to scale its output is to scale the branch."""
    site: Site | None
    """Where in the source of its module the add is."""
    weights: tuple[str, ...]
    """The weights of the branch's linear maps, in order."""
    ends: tuple[str, ...]
    """Those that no other linear map follows: one, or one on each path that joins at the end."""
    returns_sum: bool
    """Whether the module that adds returns the sum, or the sum after one activation module."""
    other_sites: tuple[Site, ...] = ()
    """Where the add is in passes that run other lines of the source, as in training or evaluation."""
    site_is_shared: bool = False
    """Whether other blocks are at the same site: a loop drops layers, or blocks share the adding module."""

    @property
    def is_recomputed(self) -> bool:
        """Whether its own module checkpoints the add."""
        return any(site.is_recomputed for site in _sites_of(self))


@dataclass(frozen=True)
class Flow:
    """A forward pass in which no layer is dropped, by the names of modules."""

    blocks: tuple[Block, ...]
    norms: tuple[str, ...]
    """Every module that normalizes, in order, with frozen batch norms and the user's own types."""
    feeders: Mapping[str, str]
    """For a norm: the module whose linear map is its input, where nothing else uses that map's output."""
    over_batch: frozenset[str]
    """Those of the norms that run a batch norm of torch, as a module or in their own forward."""
    overwritten: frozenset[str]
    """Norms whose output an in-place function writes into."""
    several_inputs: frozenset[str]
    """Norms that take more than one tensor, such as a gate or a condition."""
    norms_on_skip: tuple[str, ...]
    """Norms on the skip path, as in post-norm blocks."""
    fan_ins: Mapping[str, int]
    """For parameters that only multiply data, as matrices: how many products a value sums."""
    calls: Mapping[str, int]
    """How many calls of each module computed something."""
    classifier: str | None
    """The only dense layer that computes an output of the model, or, if none does, the only convolution."""
    dense_outputs: tuple[str, ...]
    """All dense layers that do."""
    raw_norms: tuple[str, ...]
    """Norms on what no layer computed: raw data, or tables beside the stream."""
    tables: Mapping[str, tuple[str, ...]]
    """For blocks at the start of a stream that comes from tables alone: embeddings, and parameters."""
    report: ProbeReport
    """The balance in this pass."""
    passes: tuple[Pass, ...] = (WHOLE,)
    """Those that the model can do with these inputs; together they run every block in training."""


def find_flow(model: nn.Module, inputs: Inputs, norm_types: tuple[type[nn.Module], ...]) -> Flow:
    """Run the model with no layer dropped, then in evaluation and in training; it is left as it was."""
    flow = _whole_flow(model, inputs, norm_types)
    others, passes = [set[Site]() for _ in flow.blocks], [WHOLE]
    unseen = set(range(len(flow.blocks)))
    looped = _has_loop(flow.blocks)
    for further in FURTHER:
        if further.mode == "training" and not (unseen or looped):
            break
        with suppress(ConfigError), further.prepared(model):  # In training some models need targets.
            for number, site in _sites_elsewhere(flow, model, inputs, further):
                others[number].add(site)
                if further.mode == "training":
                    unseen.discard(number)
            passes.append(further)
    blocks = [
        replace(block, other_sites=tuple(sites - {block.site}))
        for block, sites in zip(flow.blocks, others, strict=True)
    ]
    shared = _shared_paths(blocks)
    blocks = [replace(block, site_is_shared=bool(shared & _paths(block))) for block in blocks]
    return replace(flow, blocks=tuple(blocks), passes=tuple(passes))


def _sites_of(block: Block) -> list[Site]:
    return [site for site in (block.site, *block.other_sites) if site is not None]


def _paths(block: Block) -> set[tuple[str, Path]]:
    return {(block.add.module, site.path) for site in _sites_of(block)}


def _has_loop(blocks: Sequence[Block]) -> bool:
    """Whether blocks with different layers, and without a tail, are added by one line of a loop."""
    layers = {(path, block.add.parameters) for block in blocks if not block.tail for path in _paths(block)}
    return len(layers) > len({path for path, _ in layers})


def _shared_paths(blocks: Sequence[Block]) -> set[tuple[str, Path]]:
    """The paths at which one hit belongs to different blocks."""
    layers: defaultdict[tuple[str, Path, int], set[tuple[str, ...]]] = defaultdict(set)
    for block in blocks:
        for site in _sites_of(block):
            layers[block.add.module, site.path, site.hit].add(block.add.parameters)
    return {(module, path) for (module, path, _), found in layers.items() if len(found) > 1}


def _sites_elsewhere(
    flow: Flow, model: nn.Module, inputs: Inputs, further: Pass
) -> Iterator[tuple[int, Site]]:
    """The number and the site of each block in another pass; its layers tell which block it is."""
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
def _sites(
    model: nn.Module, inputs: Inputs, mode: Mode, statistics: StatisticsBuffer | None = None
) -> Iterator[tuple[Tracer, SiteFinder, Any]]:
    """A traced pass, with the sites of its adds and the model's output."""
    finders: list[SiteFinder] = []

    def watch(tracer: Tracer) -> SiteFinder:
        finders.append(SiteFinder(tracer))
        return finders[-1]

    with traced(model, inputs, mode, statistics, around=watch) as (tracer, output):
        yield tracer, finders[0], output


def _whole_flow(model: nn.Module, inputs: Inputs, norm_types: tuple[type[nn.Module], ...]) -> Flow:
    with (
        norm_calls(model) as norm_uses,
        _sites(model, inputs, WHOLE.mode, StatisticsBuffer()) as (tracer, finder, output),
    ):
        outputs = _output_nodes(tracer, output)
        nodes = _ancestors([*outputs, *(add.node for add in tracer.adds)])
        users, calls = _users(nodes), _count_calls(nodes)
        tails = _tails(tracer.adds, users, set(outputs), calls)
        adds = describe_adds(tracer.adds, type(model).__name__)
        norms = find_norms(model, nodes, norm_types)
        last = dict.fromkeys(_last_layers(model, outputs))
        dense = tuple(name for name in last if is_dense(model.get_submodule(name)))
        classifiers = dense or tuple(last)
        return Flow(
            blocks=tuple(
                _block(model, add, traced_add, tail, finder.sites.get(traced_add), users)
                for add, traced_add, tail in zip(adds, tracer.adds, tails, strict=True)
            ),
            norms=tuple(dict.fromkeys(norms.values())),
            feeders=find_feeders(norms, nodes, users, set(outputs)),
            # A tracer with statistics measures the input of batch norms alone.
            over_batch=frozenset(name for n, name in norms.items() if n.input_statistics is not None),
            overwritten=frozenset(
                name for name, call in norm_uses.items() if call.output._version > call.version
            ),
            several_inputs=frozenset(name for name, call in norm_uses.items() if call.tensors > 1),
            norms_on_skip=norms_on_skip(tracer.adds, {node.module for node in norms}),
            fan_ins=_fan_ins(model, nodes),
            calls=calls,
            classifier=classifiers[0] if len(classifiers) == 1 else None,
            dense_outputs=dense,
            raw_norms=find_raw_norms(model, norms, nodes, tracer.adds),
            tables=find_tables(model, adds, tracer.adds),
            report=report_of(tracer, model),
        )


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


def _fan_ins(model: nn.Module, nodes: Iterable[Node]) -> dict[str, int]:
    found: defaultdict[str, set[int | None]] = defaultdict(set)
    for node in nodes:
        for name in node.parameters:
            found[name].add(node.fan_in)
    # A sum of one product is a scale of each channel.
    alike = {name: sizes.pop() or 1 for name, sizes in found.items() if len(sizes) == 1}
    return {name: size for name, size in alike.items() if size > 1 and model.get_parameter(name).dim() > 1}


def _block(
    model: nn.Module,
    add: ResidualAdd,
    traced_add: TracedAdd,
    tail: str | None,
    site: Site | None,
    users: Mapping[Node, list[Node]],
) -> Block:
    def weights(nodes: Iterable[Node]) -> tuple[str, ...]:
        used = [name for node in nodes if node.kind is Kind.LINEAR for name in node.parameters]
        return tuple(dict.fromkeys(name for name in used if model.get_parameter(name).dim() > 1))

    return Block(
        add,
        tail,
        site,
        weights(traced_add.paths.branch),
        weights(_last_maps(traced_add)),
        _returns_sum(traced_add.node, users),
    )


def _last_maps(add: TracedAdd) -> list[Node]:
    """The linear maps of the branch from which a path without another one leads to the add, in order."""
    branch, found, waiting = set(add.paths.branch), set[Node](), [add.branch]
    while waiting:
        node = waiting.pop()
        if node in branch and node not in found:
            found.add(node)
            if node.kind is not Kind.LINEAR:
                waiting += origins(node, learned=True, along_skips=True)
    return sorted((node for node in found if node.kind is Kind.LINEAR), key=lambda node: node.order)


def _tails(
    adds: Sequence[TracedAdd], users: Mapping[Node, list[Node]], outputs: set[Node], calls: Mapping[str, int]
) -> list[str | None]:
    """For each add, the last module on its branch that runs for this branch alone, in every call."""
    ends = [(_maps(add), _ends(add, users, outputs)) for add in adds]
    uses = Counter((name, maps) for maps, names in ends for name in names)
    return [next((name for name in names if calls[name] <= uses[name, maps]), None) for maps, names in ends]


def _maps(add: TracedAdd) -> frozenset[str]:
    """The parameters of the branch's linear maps: those of a block that runs again, even with other norms."""
    maps = (name for node in add.paths.branch if node.kind is Kind.LINEAR for name in node.parameters)
    return frozenset(maps) or add.layers[1]


def _ends(add: TracedAdd, users: Mapping[Node, list[Node]], outputs: set[Node]) -> list[str]:
    """Modules whose output only the add uses, after scales, copies and dropout at most; the last first."""
    found, node, branch = list[str](), add.branch, set(add.paths.branch)
    while node in branch and len(users[node]) == 1 and node not in outputs:
        if node.call != add.node.call and node.module not in found:
            found.append(node.module)
        if node.kind not in (Kind.SCALE, Kind.PASS) or len(node.parents) != 1:
            break
        node = node.parents[0]
    return found


def _returns_sum(add: Node, users: Mapping[Node, list[Node]]) -> bool:
    def inside(node: Node) -> list[Node]:
        home = f"{add.module}." if add.module else ""
        return [user for user in users.get(node, ()) if user.call == add.call or user.module.startswith(home)]

    direct = inside(add)
    if not add.module or not direct:
        return not direct
    activated = len(direct) == len(users[add]) == 1 and direct[0].kind is Kind.ACTIVATION
    return activated and direct[0].call != add.call and not inside(direct[0])


def _last_layers(model: nn.Module, outputs: list[Node]) -> Iterator[str]:
    """The dense layers and convolutions whose result is an output; a convolution that a norm follows made
    features.
    """
    for node in outputs:
        normalized = False
        while node.kind not in (Kind.LINEAR, Kind.RESIDUAL) and len(node.parents) == 1:
            normalized |= node.kind is Kind.NORM
            node = node.parents[0]
        layer = model.get_submodule(node.module)
        if node.kind is Kind.LINEAR and (is_dense(layer) or (is_linear_map(layer) and not normalized)):
            yield node.module
