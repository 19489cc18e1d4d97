"""What forward passes tell about a model: its residual blocks, how it uses its norms, and which layer
classifies.

One pass in which no layer is dropped gives the flow. Further passes, in evaluation and in training, only add
where the forward then takes other lines of its source.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ..errors import ConfigError
from ..nets.layers import is_dense, is_linear_map
from ..probing.balance import ProbeReport
from ..probing.forward import Mode, preserve_state, seeded, traced
from ..probing.graph import Kind, Node, ancestors
from ..probing.inputs import Inputs
from ..probing.measure import StatisticsBuffer, report_of
from ..probing.residual import describe_adds
from ..probing.tensors import tensors_in
from ..probing.trace import Tracer
from .branches import Block, Users, find_blocks, find_tables, has_loop, with_other_sites
from .norms import (
    channel_strides,
    find_feeders,
    find_more_than_norms,
    find_norms,
    find_raw_norms,
    is_batch_norm,
    norm_calls,
    norms_on_skip,
    norms_with,
)
from .sites import Site, SiteFinder

_DRAWS = 8
"""Most passes in training. Layers may be dropped at random; several passes let each of them run."""


@dataclass(frozen=True)
class Pass:
    """A forward pass in that mode."""

    mode: Mode
    seed: int | None = None
    """Seed of the random generators; None: they are not seeded."""

    @contextmanager
    def prepared(self, model: nn.Module) -> Iterator[None]:
        """Run the body with seeded generators; afterwards the generators and the model are as before.

        Warnings of the model are ignored, because the first pass has shown them.
        """
        if self.seed is None:
            yield
            return
        with preserve_state(model), seeded(self.seed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield


WHOLE = Pass("whole")
_FURTHER = (Pass("evaluation", 0), *(Pass("training", seed) for seed in range(_DRAWS)))


@dataclass(frozen=True)
class Flow:
    """A forward pass in which no layer is dropped, by the names of modules."""

    blocks: tuple[Block, ...]
    norms: tuple[str, ...]
    """Every module that normalizes, in order, with frozen batch norms and the user's own types; last those
    of torch that run in training alone, as in a second head."""
    more_than_norms: frozenset[str]
    """Modules that are named after a norm, and also have a linear map or an activation."""
    feeders: Mapping[str, str]
    """For a norm: the module whose linear map is its input, where nothing else uses that map's output."""
    along_channels: frozenset[str]
    """Those of the norms with a feeder whose channels are the channels that it computes."""
    foldable: frozenset[str]
    """Those of the norms that are layers of batch norm."""
    over_batch: frozenset[str]
    """Those of the norms whose statistics the examples of a batch share."""
    overwritten: frozenset[str]
    """Norms whose output an in-place function writes into."""
    several_tensors: frozenset[str]
    """Norms that take more than one tensor, such as a gate or a condition, or return more, as in a tuple."""
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
    differentiates: bool
    """Whether the forward differentiates what it computes, as where forces are gradients of an energy."""
    passes: tuple[Pass, ...] = (WHOLE,)
    """Those that the model can do with these inputs; together they run every block in training."""
    read: frozenset[str] = frozenset()
    """The parameters that take part."""
    untrained: frozenset[str] = frozenset()
    """Those of them that take no part in training, as where a detector decodes its boxes."""


def find_flow(model: nn.Module, inputs: Inputs, own_norms: tuple[type[nn.Module], ...]) -> Flow:
    """Run the model with no layer dropped, then in evaluation and in training; it is left as it was."""
    flow = _whole_flow(model, inputs, own_norms)
    others, passes = [set[Site]() for _ in flow.blocks], [WHOLE]
    unseen, trained = set(range(len(flow.blocks))), set[str]()
    looped = has_loop(flow.blocks)
    for further in _FURTHER:
        if further.mode == "training" and not (unseen or looped):
            break
        with suppress(ConfigError), further.prepared(model):  # In training some models need targets.
            found, read = _sites_elsewhere(flow, model, inputs, further)
            for number, site in found:
                others[number].add(site)
            if further.mode == "training":
                unseen.difference_update(number for number, _ in found)
                trained |= read
            passes.append(further)
    further_norms = [name for name in norms_with(model, trained - flow.read) if name not in flow.norms]
    return replace(
        flow,
        blocks=tuple(with_other_sites(flow.blocks, others)),
        norms=(*flow.norms, *further_norms),
        foldable=flow.foldable.union(n for n in further_norms if is_batch_norm(model.get_submodule(n))),
        passes=tuple(passes),
        untrained=frozenset() if unseen or not trained else flow.read - trained,
    )


def _sites_elsewhere(
    flow: Flow, model: nn.Module, inputs: Inputs, further: Pass
) -> tuple[list[tuple[int, Site]], set[str]]:
    """The number and the site of each block in another pass, and the parameters that take part in it.

    Its layers tell which block it is.
    """
    found: list[tuple[int, Site]] = []
    numbers: defaultdict[tuple[str, frozenset[str]], list[int]] = defaultdict(list)
    for number, block in enumerate(flow.blocks):
        numbers[block.add.module, frozenset(block.add.parameters)].append(number)
    met: Counter[tuple[str, frozenset[str]]] = Counter()
    with _sites(model, inputs, further.mode) as (tracer, finder, _):
        for add, traced_add in zip(describe_adds(tracer.adds, ""), tracer.adds, strict=True):
            layers = add.module, frozenset(add.parameters)
            same, site = numbers.get(layers), finder.sites.get(traced_add)
            if same and site is not None:
                found.append((same[min(met[layers], len(same) - 1)], site))
            met[layers] += 1
    return found, tracer.read


@contextmanager
def _sites(
    model: nn.Module, inputs: Inputs, mode: Mode, statistics: StatisticsBuffer | None = None
) -> Iterator[tuple[Tracer, SiteFinder, Any]]:
    """A traced pass, with the sites of its adds and the model's output."""
    finders: list[SiteFinder] = []

    def watch(tracer: Tracer) -> SiteFinder:
        finders.append(SiteFinder(tracer))
        return finders[-1]

    # A forward may take other lines where gradients are on, as they are in training.
    with traced(model, inputs, mode, statistics, mode == "training", watch) as (tracer, output):
        yield tracer, finders[-1], output


def _whole_flow(model: nn.Module, inputs: Inputs, own_norms: tuple[type[nn.Module], ...]) -> Flow:
    with (
        norm_calls(model) as norm_uses,
        channel_strides(model) as strides,
        _sites(model, inputs, WHOLE.mode, StatisticsBuffer()) as (tracer, finder, output),
    ):
        outputs = _output_nodes(tracer, output)
        nodes = ancestors([*outputs, *(add.node for add in tracer.adds)])
        users, calls = _users(nodes), _count_calls(nodes)
        adds = describe_adds(tracer.adds, type(model).__name__)
        norms = find_norms(model, nodes, own_norms, users)
        feeders = find_feeders(norms, nodes, users, set(outputs))
        last = dict.fromkeys(_last_layers(model, outputs))
        dense = tuple(name for name in last if is_dense(model.get_submodule(name)))
        classifiers = dense or tuple(last)
        return Flow(
            blocks=tuple(find_blocks(model, adds, tracer.adds, finder.sites, users, set(outputs), calls)),
            norms=tuple(dict.fromkeys(norms.values())),
            more_than_norms=find_more_than_norms(model, nodes),
            feeders=feeders,
            along_channels=frozenset(
                norm for norm, feeder in feeders.items() if strides.get(norm, -1) == strides.get(feeder)
            ),
            foldable=frozenset(name for name in norms.values() if is_batch_norm(model.get_submodule(name))),
            over_batch=frozenset(name for node, name in norms.items() if node.over_batch),
            overwritten=frozenset(
                name for name, call in norm_uses.items() if call.output._version > call.version
            ),
            several_tensors=frozenset(name for name, call in norm_uses.items() if not call.alone),
            norms_on_skip=norms_on_skip(tracer.adds, {node.module for node in norms}),
            fan_ins=_fan_ins(model, nodes),
            calls=calls,
            classifier=classifiers[0] if len(classifiers) == 1 else None,
            dense_outputs=dense,
            raw_norms=find_raw_norms(model, norms, nodes, tracer.adds),
            tables=find_tables(model, adds, tracer.adds),
            report=report_of(tracer, model),
            differentiates=torch.is_grad_enabled(),  # The pass went without gradients first.
            read=frozenset(tracer.read),
        )


def _output_nodes(tracer: Tracer, output: Any) -> list[Node]:
    found = (tracer.storages.node_of(tensor) for tensor in tensors_in(output))
    return list(dict.fromkeys(node for node in found if node is not None))


def _count_calls(nodes: Iterable[Node]) -> Counter[str]:
    calls = {(node.module, node.call) for node in nodes if node.kind is not Kind.INPUT}
    return Counter(module for module, _ in calls)


def _users(nodes: Iterable[Node]) -> Users:
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
