"""Watches one forward pass, operation by operation, and tells which additions are residual adds.

A dispatch mode sees every tensor operation, whoever wrote it. What is remembered of a tensor is its lineage
(`lineage.Node`), kept by the memory it lives in: views share it, in-place operations renew it, and it goes
when the memory goes. No activation outlives its own use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.jit import ScriptModule
from torch.utils._python_dispatch import TorchDispatchMode

from .channels import channel_axis, channels_of
from .lineage import Node, Split, judge
from .operators import ADDITIONS, BATCH_NORMS, Kind, is_factory, kind_of
from .statistics import channel_statistics


@dataclass(eq=False)
class Sighting:
    """A residual add as it was seen, with the statistics of both operands and of the result."""

    node: Node
    split: Split
    operands: tuple[Node, Node]
    operation: str
    shape: tuple[int, ...]
    skip: Tensor | None = None
    branch: Tensor | None = None
    output: Tensor | None = None
    gradient_norm: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Operand:
    """One side of an addition: `tensor`, or `tensor * factor`."""

    node: Node
    tensor: Tensor
    factor: Tensor | float | None = None

    def value(self) -> Tensor:
        """The tensor that is added."""
        return self.tensor if self.factor is None else self.tensor * self.factor


class Watcher(TorchDispatchMode):
    """Collects `sightings` of residual adds while `model` runs on `inputs`."""

    def __init__(self, model: nn.Module, inputs: list[Tensor], measure: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.measure = measure
        self.sightings: list[Sighting] = []
        self.operations = 0
        self.rejected: Counter[str] = Counter()
        self._order = 0
        self._names = {module: name for name, module in model.named_modules()}
        self._calls: list[tuple[nn.Module, int]] = [(model, 0)]
        self._lineage: WeakKeyDictionary[Any, Node] = WeakKeyDictionary()
        self._learned: WeakKeyDictionary[Any, tuple[str, ...]] = WeakKeyDictionary()
        for name, parameter in model.named_parameters():
            memory = _memory(parameter)
            self._learned[memory] = (*self._learned.get(memory, ()), name)
        for tensor in inputs:
            self._lineage[_memory(tensor)] = self._node(Kind.INPUT)

    def __enter__(self) -> Watcher:
        self._hooks = [
            hook
            for module in self._names
            if not isinstance(module, ScriptModule)  # They take none; their operations are seen all the same.
            for hook in (
                module.register_forward_pre_hook(self._enter_module, prepend=True),
                module.register_forward_hook(self._leave_module, always_call=True),
            )
        ]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()

    def _enter_module(self, module: nn.Module, _: Any) -> None:
        self._order += 1
        self._calls.append((module, self._order))

    def _leave_module(self, *_: Any) -> None:
        self._calls.pop()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operation and remember where its results come from."""
        kwargs = kwargs or {}
        operation = _name(function)
        if is_factory(operation):
            return function(*args, **kwargs)
        tensors = list(_tensors((*args, *kwargs.values())))
        memories = [_memory(tensor) for tensor in tensors]
        lineages = [self._lineage.get(memory) for memory in memories]
        parents = tuple(dict.fromkeys(node for node in lineages if node is not None))
        learned = tuple(
            name
            for memory, node in zip(memories, lineages, strict=True)
            if node is None
            for name in self._learned.get(memory, ())
        )
        if not parents:
            result = function(*args, **kwargs)
            if learned:
                self._learned.update((_memory(out), learned) for out in _tensors((result,)))
            return result

        self.operations += 1
        kind = kind_of(operation, sum(node is not None for node in lineages), bool(learned))
        node = self._node(kind, parents, learned)
        node.constant = _constant(operation, args) if kind is Kind.SCALE else 1.0
        self._measure_input(node, operation, tensors, lineages)
        sighting = self._consider(node, operation, args, kwargs) if operation in ADDITIONS else None
        result = function(*args, **kwargs)
        if written := _written(function, args, result, memories):  # Else a view: its memory has a lineage.
            node.channels = channels_of(operation, written[0], tensors, lineages)
            self._remember(node, written)
        if sighting is not None:
            if self.measure:
                sighting.output = self._statistics(node, result, channel_axis(result, node))
            self.sightings.append(sighting)
        return result

    def lineage_of(self, tensor: Tensor) -> Node | None:
        """Where a tensor of the pass comes from; None if from no data."""
        return self._lineage.get(_memory(tensor))

    def _node(self, kind: Kind, parents: tuple[Node, ...] = (), parameters: tuple[str, ...] = ()) -> Node:
        self._order += 1
        module, call = self._calls[-1]
        return Node(self._order, kind, parents, self._names[module], call, parameters)

    def _consider(
        self, node: Node, operation: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Sighting | None:
        """Judge one addition and, if it is a residual add, measure its operands before they can change."""
        if isinstance(self._calls[-1][0], (nn.RNNBase, nn.RNNCellBase)):
            # They slice one product over all steps, so that each step looks like the identity of the last.
            self.rejected["it joins the gates of a recurrent layer"] += 1
            return None
        operands = self._operands(operation, args, kwargs)
        if isinstance(operands, str):
            self.rejected[operands] += 1
            return None
        split = judge(operands[0].node, operands[1].node, node.call)
        if isinstance(split, str):
            self.rejected[split] += 1
            return None
        skip, branch = operands[split.skip], operands[1 - split.skip]
        node.kind, node.stream = Kind.RESIDUAL, skip.node
        sighting = Sighting(
            node, split, (operands[0].node, operands[1].node), operation, tuple(skip.tensor.shape)
        )
        if self.measure:
            self._measure_operands(sighting, skip, branch)
        return sighting

    def _operands(
        self, operation: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Operand, Operand] | str:
        """Both sides of an addition, or why it cannot be a residual add."""
        first, second = args[0], args[1] if len(args) > 1 else kwargs["other"]
        factor: Tensor | float = kwargs.get("alpha", 1)
        if operation == "addcmul":
            second, factor = args[2], args[1] * kwargs.get("value", 1)
            if second.shape != first.shape:
                second, factor = args[1], args[2] * kwargs.get("value", 1)
        if not isinstance(second, Tensor) or first.shape != second.shape or first.dim() < 2:
            return "the operands differ in shape"
        if not (first.is_floating_point() and second.is_floating_point()):
            return "the operands are not floating point"
        lineages = [self._lineage.get(_memory(tensor)) for tensor in (first, second)]
        if lineages[0] is None or lineages[1] is None:
            return "one operand does not come from the batch"
        if not isinstance(factor, Tensor) and factor == 1:
            return Operand(lineages[0], first), Operand(lineages[1], second)
        scaled = self._node(Kind.SCALE, (lineages[1],))
        if isinstance(factor, Tensor):
            self._describe_factor(scaled, args[1] if second is args[2] else args[2])
        else:
            scaled.constant = float(factor)
        return Operand(lineages[0], first), Operand(scaled, second, factor)

    def _describe_factor(self, scaled: Node, factor: Tensor) -> None:
        lineage = self._lineage.get(_memory(factor))
        if lineage is not None:
            scaled.kind, scaled.parents = Kind.OTHER, (*scaled.parents, lineage)
        scaled.parameters = self._learned.get(_memory(factor), ())

    def _measure_input(
        self, node: Node, operation: str, tensors: list[Tensor], lineages: list[Node | None]
    ) -> None:
        """What a batch norm or a learned scale is given is gone when its block is recognized: measure now."""
        scaled = node.kind is Kind.SCALE and node.parameters
        if not self.measure or not (scaled or operation in BATCH_NORMS):
            return
        tensor, lineage = next((t, n) for t, n in zip(tensors, lineages, strict=True) if n is not None)
        axis = 1 if operation in BATCH_NORMS else channel_axis(tensor, lineage)
        node.input_statistics = self._statistics(lineage, tensor, axis)

    def _measure_operands(self, sighting: Sighting, skip: Operand, branch: Operand) -> None:
        axis = channel_axis(skip.tensor, skip.node, branch.node)
        sighting.skip = self._statistics(skip.node, skip.value(), axis)
        sighting.branch = self._statistics(branch.node, branch.value(), axis)
        if branch.factor is not None:
            unscaled = branch.node.parents[0]
            branch.node.input_statistics = self._statistics(unscaled, branch.tensor, axis)

    def _statistics(self, node: Node | None, values: Tensor, axis: int) -> Tensor:
        """Measured once per tensor: a block's output is the next block's skip."""
        view = (values.storage_offset(), values.shape, values.stride(), axis)
        if node is None:
            return channel_statistics(values, axis)
        if node.statistics is None or node.statistics[0] != view:
            node.statistics = (view, channel_statistics(values, axis))
        return node.statistics[1]

    def _remember(self, node: Node, written: list[Tensor]) -> None:
        for parent in node.parents:
            if parent.kind is Kind.RESIDUAL:
                parent.consumers.append((node.kind, node.module))
        for tensor in written:
            self._lineage[_memory(tensor)] = node


class _Nowhere:
    """The memory of a tensor that has no single one, as sparse tensors have not: never remembered."""


def _memory(tensor: Tensor) -> Any:
    try:
        return tensor.untyped_storage()
    except NotImplementedError:
        return _Nowhere()


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _written(function: Any, args: tuple[Any, ...], result: Any, memories: list[Any]) -> list[Tensor]:
    """The tensors whose memory the operation wrote: new results and mutated inputs."""
    fresh = [out for out in _tensors((result,)) if _memory(out) not in memories]
    mutated = _tensors(args[i] for i in _mutated(function) if i < len(args))
    return [tensor for tensor in (*fresh, *mutated) if not isinstance(_memory(tensor), _Nowhere)]


@cache
def _name(function: Any) -> str:
    """`aten.add_.Tensor` is `add`: in place or not is the same mathematics."""
    name: str = function.overloadpacket.__name__
    return name.removesuffix("_") if not name.endswith("__") else name


@cache
def _mutated(function: Any) -> tuple[int, ...]:
    """Positions of the arguments that an in-place operation writes into."""
    arguments = function._schema.arguments
    return tuple(i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write)


def _constant(operation: str, args: tuple[Any, ...]) -> float:
    numbers = [float(value) for value in args if isinstance(value, (int, float))]
    if not numbers:
        return 1.0
    return 1 / numbers[0] if operation == "div" and numbers[0] else numbers[0]
