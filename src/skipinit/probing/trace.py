"""Traces one forward pass, operation by operation, and tells which additions are residual adds.

A dispatch mode sees every tensor operation, whoever wrote it. What is known of a tensor is kept by the memory
it lives in and goes when that goes: no activation outlives its own use. What stays of each operation is one
small node of the lineage.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from .adds import Split, judge
from .moments import Ledger, channel_statistics
from .operations import (
    ADDITIONS,
    BATCH_NORMS,
    Kind,
    Living,
    Node,
    channel_axis,
    channels_of,
    is_factory,
    kind_of,
    memory_of,
    tensors_in,
    written_by,
)


class ModuleNames:
    """The names that `named_modules` gives, as a tree: of each module only the one that holds it is kept."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._parents = {
            module: model.get_submodule(name.rpartition(".")[0])
            for name, module in model.named_modules()
            if module is not model
        }

    def __contains__(self, module: nn.Module) -> bool:
        return module is self._model or module in self._parents

    def of(self, module: nn.Module) -> str:
        """The path from the model to the module; empty for the model itself."""
        keys: list[str] = []
        while module is not self._model:
            parent = self._parents[module]
            found = (key for key, child in parent._modules.items() if child is module)
            keys.append(next(found, type(module).__name__))  # A forward may have put another in its place.
            module = parent
        return ".".join(reversed(keys))


@dataclass(eq=False, slots=True)
class Sighting:
    """A residual add as it was seen, and where the ledger has the statistics of operands and result."""

    node: Node
    split: Split
    operands: tuple[Node, Node]
    operation: str
    shape: tuple[int, ...]
    skip: int | None = None
    branch: int | None = None
    output: int | None = None
    gradient_norm: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Operand:
    """One side of an addition: `tensor`, or `tensor * factor`."""

    living: Living
    tensor: Tensor
    factor: Tensor | float | None = None

    @property
    def node(self) -> Node:
        """Where it comes from."""
        return self.living.node

    def value(self) -> Tensor:
        """The tensor that is added."""
        return self.tensor if self.factor is None else self.tensor * self.factor


class Call(NamedTuple):
    """A module that is running."""

    module: nn.Module
    name: str
    number: int


class Watcher(TorchDispatchMode):
    """Collects `sightings` of residual adds while `model` runs on `inputs`."""

    def __init__(self, model: nn.Module, inputs: list[Tensor], measure: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.measure = measure
        self.ledger = Ledger()
        self.sightings: list[Sighting] = []
        self.operations = 0
        self.rejected: Counter[str] = Counter()
        self._order = 0
        self._names = ModuleNames(model)
        self._calls = [Call(model, "", 0)]
        self._living: WeakKeyDictionary[Any, Living] = WeakKeyDictionary()
        self._owners: dict[Any, nn.Module] = {}
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                self._owners.setdefault(memory_of(parameter), module)
        self._derived: WeakKeyDictionary[Any, tuple[str, ...]] = WeakKeyDictionary()
        for tensor in inputs:
            self._living[memory_of(tensor)] = Living(self._node(Kind.INPUT))

    def __enter__(self) -> Watcher:
        # Two hooks on all modules there are, instead of two on each of thousands.
        self._hooks = (
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
        )
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()

    def _enter_module(self, module: nn.Module, _: Any) -> None:
        if module in self._names:
            self._order += 1
            self._calls.append(Call(module, self._names.of(module), self._order))

    def _leave_module(self, module: nn.Module, *_: Any) -> None:
        if module in self._names:
            self._calls.pop()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operation and remember where its results come from."""
        kwargs = kwargs or {}
        operation = _name(function)
        if is_factory(operation):
            return function(*args, **kwargs)
        tensors = list(tensors_in((*args, *kwargs.values())))
        memories = [memory_of(tensor) for tensor in tensors]
        known = [self._living.get(memory) for memory in memories]
        parents = tuple(dict.fromkeys(living.node for living in known if living is not None))
        learned = tuple(
            name
            for memory, living in zip(memories, known, strict=True)
            if living is None
            for name in self._learned(memory)
        )
        if not parents:
            result = function(*args, **kwargs)
            if learned:
                made = (memory_of(out) for out in tensors_in((result,)))
                self._derived.update((memory, learned) for memory in made if memory not in self._owners)
            return result

        self.operations += 1
        kind = kind_of(operation, sum(living is not None for living in known), bool(learned))
        node = self._node(kind, parents, learned)
        node.constant = _constant(operation, args) if kind is Kind.SCALE else 1.0
        self._measure_input(node, operation, tensors, known)
        sighting = self._consider(node, operation, args, kwargs) if operation in ADDITIONS else None
        result = function(*args, **kwargs)
        living = Living(node)
        if written := written_by(function, args, result, memories):  # Else a view: its memory is known.
            living.channels = channels_of(operation, written[0], tensors, known)
            self._remember(living, written)
        if sighting is not None:
            if self.measure:
                sighting.output = self._statistics(living, result, channel_axis(result, living))
            self.sightings.append(sighting)
        return result

    def lineage_of(self, tensor: Tensor) -> Node | None:
        """Where a tensor of the pass comes from; None if from no data."""
        living = self._living.get(memory_of(tensor))
        return None if living is None else living.node

    def _learned(self, memory: Any) -> tuple[str, ...]:
        """The parameters that a memory without data holds, or was computed from."""
        owner = self._owners.get(memory)
        if owner is None:
            return self._derived.get(memory, ())
        named = owner.named_parameters(self._names.of(owner), recurse=False)
        return tuple(name for name, parameter in named if memory_of(parameter) is memory)

    def _node(self, kind: Kind, parents: tuple[Node, ...] = (), parameters: tuple[str, ...] = ()) -> Node:
        self._order += 1
        call = self._calls[-1]
        return Node(self._order, kind, parents, call.name, call.number, parameters)

    def _consider(
        self, node: Node, operation: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Sighting | None:
        """Judge one addition and, if it is a residual add, measure its operands before they can change."""
        if isinstance(self._calls[-1].module, (nn.RNNBase, nn.RNNCellBase)):
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
        left, right = (self._living.get(memory_of(tensor)) for tensor in (first, second))
        if left is None or right is None:
            return "one operand does not come from the batch"
        if not isinstance(factor, Tensor) and factor == 1:
            return Operand(left, first), Operand(right, second)
        scaled = self._node(Kind.SCALE, (right.node,))
        if isinstance(factor, Tensor):
            self._describe_factor(scaled, args[1] if second is args[2] else args[2])
        else:
            scaled.constant = float(factor)
        return Operand(left, first), Operand(Living(scaled, right.channels), second, factor)

    def _describe_factor(self, scaled: Node, factor: Tensor) -> None:
        lineage = self.lineage_of(factor)
        if lineage is not None:
            scaled.kind, scaled.parents = Kind.OTHER, (*scaled.parents, lineage)
        scaled.parameters = self._learned(memory_of(factor))

    def _measure_input(
        self, node: Node, operation: str, tensors: list[Tensor], known: list[Living | None]
    ) -> None:
        """What a batch norm or a learned scale is given is gone when its block is recognized: measure now."""
        scaled = node.kind is Kind.SCALE and node.parameters
        if not self.measure or not (scaled or operation in BATCH_NORMS):
            return
        tensor, living = next((t, k) for t, k in zip(tensors, known, strict=True) if k is not None)
        if tensor.dim() < 2:  # Numbers of examples: no axis for channels, no end of a branch.
            return
        axis = 1 if operation in BATCH_NORMS else channel_axis(tensor, living)
        node.input_statistics = self._statistics(living, tensor, axis)

    def _measure_operands(self, sighting: Sighting, skip: Operand, branch: Operand) -> None:
        axis = channel_axis(skip.tensor, skip.living, branch.living)
        sighting.skip = self._statistics(skip.living, skip.value(), axis)
        sighting.branch = self._statistics(branch.living, branch.value(), axis)
        if branch.factor is not None:
            branch.node.input_statistics = self._enter(branch.tensor, axis)

    def _statistics(self, living: Living, values: Tensor, axis: int) -> int:
        """Measured once per tensor: a block's output is the next block's skip."""
        view = (values.storage_offset(), values.shape, values.stride(), axis)
        if living.measured is None or living.measured[0] != view:
            living.measured = (view, self._enter(values, axis))
        return living.measured[1]

    def _enter(self, values: Tensor, axis: int) -> int:
        return self.ledger.enter(channel_statistics(values, axis))

    def _remember(self, living: Living, written: list[Tensor]) -> None:
        node = living.node
        for parent in node.parents:
            if parent.kind is Kind.RESIDUAL:
                parent.consumers += ((node.kind, node.module),)
        for tensor in written:
            self._living[memory_of(tensor)] = living


@cache
def _name(function: Any) -> str:
    """`aten.add_.Tensor` is `add`: in place or not is the same mathematics."""
    name: str = function.overloadpacket.__name__
    return name.removesuffix("_") if not name.endswith("__") else name


def _constant(operation: str, args: tuple[Any, ...]) -> float:
    numbers = [float(value) for value in args if isinstance(value, (int, float))]
    if not numbers:
        return 1.0
    return 1 / numbers[0] if operation == "div" and numbers[0] else numbers[0]
