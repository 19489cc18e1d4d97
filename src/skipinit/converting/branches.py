"""What the graph of a forward pass says about each residual block: where its branch ends, which weights it
has, where in the source its add is, and which tables its stream starts from.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn

from ..probing.adds import TracedAdd
from ..probing.graph import Kind, Node, origins
from ..probing.residual import ResidualAdd
from .sites import Path, Site

Users = Mapping[Node, list[Node]]
"""For each operation, those that use its result."""


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
    def sites(self) -> list[Site]:
        """All sites that are known."""
        return [site for site in (self.site, *self.other_sites) if site is not None]

    @property
    def paths(self) -> set[tuple[str, Path]]:
        """The module that adds, with the path of each site in it."""
        return {(self.add.module, site.path) for site in self.sites}

    @property
    def is_recomputed(self) -> bool:
        """Whether its own module checkpoints the add."""
        return any(site.is_recomputed for site in self.sites)


def find_blocks(
    model: nn.Module,
    adds: Sequence[ResidualAdd],
    traced: Sequence[TracedAdd],
    sites: Mapping[TracedAdd, Site],
    users: Users,
    outputs: set[Node],
    calls: Mapping[str, int],
) -> Iterator[Block]:
    """The blocks of one pass; `adds` describes what was `traced`."""

    def weights(nodes: Iterable[Node]) -> tuple[str, ...]:
        used = [name for node in nodes if node.kind is Kind.LINEAR for name in node.parameters]
        return tuple(dict.fromkeys(name for name in used if model.get_parameter(name).dim() > 1))

    tails = _tails(traced, users, outputs, calls)
    for add, traced_add, tail in zip(adds, traced, tails, strict=True):
        yield Block(
            add=add,
            tail=tail,
            site=sites.get(traced_add),
            weights=weights(traced_add.paths.branch),
            ends=weights(_last_maps(traced_add)),
            returns_sum=_returns_sum(traced_add.node, users),
        )


def _tails(
    adds: Sequence[TracedAdd], users: Users, outputs: set[Node], calls: Mapping[str, int]
) -> list[str | None]:
    """For each add, the last module on its branch that runs for this branch alone, in every call."""
    ends = [(_maps(add), _ends(add, users, outputs)) for add in adds]
    uses = Counter((name, maps) for maps, names in ends for name in names)
    return [next((name for name in names if calls[name] <= uses[name, maps]), None) for maps, names in ends]


def _maps(add: TracedAdd) -> frozenset[str]:
    """The parameters of the branch's linear maps: those of a block that runs again, even with other norms."""
    maps = (name for node in add.paths.branch if node.kind is Kind.LINEAR for name in node.parameters)
    return frozenset(maps) or add.layers[1]


def _ends(add: TracedAdd, users: Users, outputs: set[Node]) -> list[str]:
    """Modules whose output only the add uses, after scales, copies and dropout at most; the last first."""
    found, node, branch = list[str](), add.branch, set(add.paths.branch)
    while node in branch and len(users[node]) == 1 and node not in outputs:
        if node.call != add.node.call and node.module not in found:
            found.append(node.module)
        if node.kind not in (Kind.SCALE, Kind.PASS) or len(node.parents) != 1:
            break
        node = node.parents[0]
    return found


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


def _returns_sum(add: Node, users: Users) -> bool:
    def inside(node: Node) -> list[Node]:
        home = f"{add.module}." if add.module else ""
        return [user for user in users.get(node, ()) if user.call == add.call or user.module.startswith(home)]

    direct = inside(add)
    if not add.module or not direct:
        return not direct
    activated = len(direct) == len(users[add]) == 1 and direct[0].kind is Kind.ACTIVATION
    return activated and direct[0].call != add.call and not inside(direct[0])


def with_other_sites(blocks: Sequence[Block], others: Sequence[set[Site]]) -> list[Block]:
    """The blocks, each with its sites in other passes, and whether one of its sites is shared."""
    blocks = [
        replace(block, other_sites=tuple(sites - {block.site}))
        for block, sites in zip(blocks, others, strict=True)
    ]
    layers: defaultdict[tuple[str, Path, int], set[tuple[str, ...]]] = defaultdict(set)
    for block in blocks:
        for site in block.sites:
            layers[block.add.module, site.path, site.hit].add(block.add.parameters)
    # The paths at which one hit belongs to different blocks.
    shared = {(module, path) for (module, path, _), found in layers.items() if len(found) > 1}
    return [replace(block, site_is_shared=bool(shared & block.paths)) for block in blocks]


def has_loop(blocks: Sequence[Block]) -> bool:
    """Whether blocks with different layers, and without a tail, are added by one line of a loop."""
    layers = {(path, block.add.parameters) for block in blocks if not block.tail for path in block.paths}
    return len(layers) > len({path for path, _ in layers})


def match_blocks(blocks: Sequence[Block], adds: Sequence[ResidualAdd]) -> list[Block | None]:
    """Which block each add of the converted model is: the next one of its module with the same layers.

    Names do not tell: without norms a model may have further adds, and in training layers may be dropped.
    """
    shared = {name for block in blocks for name in block.add.parameters}
    shared &= {name for add in adds for name in add.parameters}

    def layers(add: ResidualAdd) -> tuple[str, frozenset[str]]:
        return add.module, frozenset(shared.intersection(add.parameters))

    waiting: defaultdict[tuple[str, frozenset[str]], list[Block]] = defaultdict(list)
    for block in reversed(blocks):
        waiting[layers(block.add)].append(block)
    return [waiting[layers(add)].pop() if waiting[layers(add)] else None for add in adds]


_HOLDS_ENTRIES = (Kind.INPUT, Kind.SHIFT, Kind.OTHER)


def find_tables(
    model: nn.Module, adds: Sequence[ResidualAdd], traced: Sequence[TracedAdd]
) -> dict[str, tuple[str, ...]]:
    """For blocks whose skip comes from tables alone: embeddings, and parameters that are used directly."""
    embeddings = {name for name, module in model.named_modules() if isinstance(module, nn.Embedding)}
    found = {
        add.name: _tables_before(traced_add.skip, embeddings)
        for add, traced_add in zip(adds, traced, strict=True)
    }
    return {name: tables for name, tables in found.items() if tables}


def _tables_before(skip: Node, embeddings: set[str]) -> tuple[str, ...]:
    """The tables that lead to the skip operand; none if data or another block does, too.

    The entries that a quantizer chose stand for its data.
    """
    looked_up, entries, used = list[str](), set[str](), list[str]()
    waiting, seen = [skip], {skip}
    while waiting:
        node = waiting.pop()
        quantized = any(parent.kind is Kind.INDEX for parent in node.parents)
        if quantized or node.kind is Kind.RESIDUAL or (node.kind is Kind.INPUT and node.from_data):
            return ()
        if node.kind is Kind.LINEAR and node.module in embeddings:
            looked_up.append(node.module)
            entries.update(node.parameters)
            continue  # What follows are the numbers of the entries.
        if node.kind in _HOLDS_ENTRIES:
            used += node.parameters
        before = origins(node, learned=True)
        waiting += [parent for parent in before if parent not in seen]
        seen.update(before)
    return tuple(dict.fromkeys([*looked_up, *(name for name in used if name not in entries)]))
