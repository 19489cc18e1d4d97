"""Trace one forward pass, operation by operation, and find its residual adds.

A dispatch mode sees every tensor operation, whoever wrote it. What is known about a tensor is keyed by its
storage and is dropped together with it, so no activation is kept alive. What stays of each operation is one
small node of the graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from .adds import TracedAdd, classify
from .moments import StatisticsBuffer, channel_statistics
from .operations import (
    ADDITIONS,
    BATCH_NORMS,
    Kind,
    Node,
    TensorInfo,
    channel_axis,
    channels_of,
    is_factory,
    kind_of,
    storage_of,
    tensors_in,
    written_by,
)


class ModuleNames:
    """The names of `named_modules`, built on demand: only the parent of each module is stored."""

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
            keys.append(next(found, type(module).__name__))  # A forward may have replaced it.
            module = parent
        return ".".join(reversed(keys))


class ModuleCall(NamedTuple):
    """A module that is running."""

    module: nn.Module
    name: str
    number: int


@dataclass(frozen=True, eq=False)
class Operand:
    """One side of an addition: `tensor`, or `tensor * factor`."""

    info: TensorInfo
    tensor: Tensor
    factor: Tensor | float | None = None

    def value(self) -> Tensor:
        """The tensor that is added."""
        return self.tensor if self.factor is None else self.tensor * self.factor


class Tracer(TorchDispatchMode):
    """Finds the residual adds of `model` while it runs on `inputs`.

    With `measure`, the statistics of both operands and of the sum are appended to `statistics`.
    """

    def __init__(self, model: nn.Module, inputs: Sequence[Tensor], measure: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.measure = measure
        self.statistics = StatisticsBuffer()
        self.adds: list[TracedAdd] = []
        self.operations = 0
        """How many operations on data there were."""
        self.rejected: Counter[str] = Counter()
        """How many additions are not residual, by reason."""
        self._order = 0
        self._names = ModuleNames(model)
        self._calls = [ModuleCall(model, "", 0)]
        self._infos: WeakKeyDictionary[Any, TensorInfo] = WeakKeyDictionary()
        self._owners: dict[Any, nn.Module] = {}
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                self._owners.setdefault(storage_of(parameter), module)
        self._derived: WeakKeyDictionary[Any, tuple[str, ...]] = WeakKeyDictionary()
        for tensor in inputs:
            self._infos[storage_of(tensor)] = TensorInfo(self._node(Kind.INPUT))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not here: to skip it torch would import it, which takes longer than most probes.

        A mode is active, so what `torch.compile` has wrapped runs eagerly and nothing is compiled.
        """
        return False

    def __enter__(self) -> Tracer:
        # Two global hooks instead of two on each of thousands of modules.
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
            self._calls.append(ModuleCall(module, self._names.of(module), self._order))

    def _leave_module(self, module: nn.Module, *_: Any) -> None:
        if module in self._names:
            self._calls.pop()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operation and add it to the graph."""
        kwargs = kwargs or {}
        operation = _name(function)
        if is_factory(operation):
            return function(*args, **kwargs)
        tensors = list(tensors_in((*args, *kwargs.values())))
        storages = [storage_of(tensor) for tensor in tensors]
        infos = [self._infos.get(storage) for storage in storages]
        parents = tuple(dict.fromkeys(info.node for info in infos if info is not None))
        learned = tuple(
            name
            for storage, info in zip(storages, infos, strict=True)
            if info is None
            for name in self._parameters_in(storage)
        )
        if not parents:
            result = function(*args, **kwargs)
            if learned:
                results = (storage_of(out) for out in tensors_in(result))
                self._derived.update((storage, learned) for storage in results if storage not in self._owners)
            return result

        self.operations += 1
        kind = kind_of(operation, sum(info is not None for info in infos), bool(learned))
        node = self._node(kind, parents, learned)
        node.constant = _constant(operation, args) if kind is Kind.SCALE else 1.0
        self._measure_input(node, operation, tensors, infos)
        add = self._find_add(node, operation, args, kwargs) if operation in ADDITIONS else None
        result = function(*args, **kwargs)
        info = TensorInfo(node)
        if written := written_by(function, args, result, storages):  # Otherwise the result is a view.
            info.channels = channels_of(operation, written[0], tensors, infos)
            self._record(info, written)
        if add is not None:
            if self.measure:
                add.output_statistics = self._measure(info, result, channel_axis(result, info))
            self.adds.append(add)
        return result

    def node_of(self, tensor: Tensor) -> Node | None:
        """The operation that computed a tensor of the pass; None if it was not computed from data."""
        info = self._infos.get(storage_of(tensor))
        return None if info is None else info.node

    def _node(self, kind: Kind, parents: tuple[Node, ...] = (), parameters: tuple[str, ...] = ()) -> Node:
        self._order += 1
        call = self._calls[-1]
        return Node(self._order, kind, parents, call.name, call.number, parameters)

    def _record(self, info: TensorInfo, written: Sequence[Tensor]) -> None:
        node = info.node
        for parent in node.parents:
            if parent.kind is Kind.RESIDUAL:
                parent.consumers += ((node.kind, node.module),)
        for tensor in written:
            self._infos[storage_of(tensor)] = info

    def _parameters_in(self, storage: Any) -> tuple[str, ...]:
        """The parameters that a storage without data holds, or that its contents were computed from."""
        owner = self._owners.get(storage)
        if owner is None:
            return self._derived.get(storage, ())
        named = owner.named_parameters(self._names.of(owner), recurse=False)
        return tuple(name for name, parameter in named if storage_of(parameter) is storage)

    def _find_add(
        self, node: Node, operation: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> TracedAdd | None:
        """Classify an addition. If it is a residual add, measure its operands before they can change."""
        if isinstance(self._calls[-1].module, (nn.RNNBase, nn.RNNCellBase)):
            # They slice one product over all steps, so each step looks like the identity of the last.
            self.rejected["it joins the gates of a recurrent layer"] += 1
            return None
        operands = self._operands(operation, args, kwargs)
        if isinstance(operands, str):
            self.rejected[operands] += 1
            return None
        paths = classify(operands[0].info.node, operands[1].info.node, node.call)
        if isinstance(paths, str):
            self.rejected[paths] += 1
            return None
        skip, branch = operands[paths.skip_operand], operands[1 - paths.skip_operand]
        node.kind, node.stream = Kind.RESIDUAL, skip.info.node
        shape = tuple(skip.tensor.shape)
        add = TracedAdd(node, operation, shape, paths, skip.info.node, branch.info.node)
        if self.measure:
            self._measure_operands(add, skip, branch)
        return add

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
        left, right = (self._infos.get(storage_of(tensor)) for tensor in (first, second))
        if left is None or right is None:
            return "one operand does not come from the inputs"
        if not isinstance(factor, Tensor) and factor == 1:
            return Operand(left, first), Operand(right, second)
        scaled = self._node(Kind.SCALE, (right.node,))
        if isinstance(factor, Tensor):
            self._describe_factor(scaled, args[1] if second is args[2] else args[2])
        else:
            scaled.constant = float(factor)
        return Operand(left, first), Operand(TensorInfo(scaled, right.channels), second, factor)

    def _describe_factor(self, scaled: Node, factor: Tensor) -> None:
        node = self.node_of(factor)
        if node is not None:
            scaled.kind, scaled.parents = Kind.OTHER, (*scaled.parents, node)
        scaled.parameters = self._parameters_in(storage_of(factor))

    def _measure_input(
        self, node: Node, operation: str, tensors: Sequence[Tensor], infos: Sequence[TensorInfo | None]
    ) -> None:
        """Measure the input of a batch norm or a learned scale: when its block is found, it is gone."""
        scaled = node.kind is Kind.SCALE and node.parameters
        if not self.measure or not (scaled or operation in BATCH_NORMS):
            return
        tensor, info = next((t, i) for t, i in zip(tensors, infos, strict=True) if i is not None)
        if tensor.dim() < 2:  # One number per example: no channel axis, and not the end of a branch.
            return
        axis = 1 if operation in BATCH_NORMS else channel_axis(tensor, info)
        node.input_statistics = self._measure(info, tensor, axis)

    def _measure_operands(self, add: TracedAdd, skip: Operand, branch: Operand) -> None:
        axis = channel_axis(skip.tensor, skip.info, branch.info)
        add.skip_statistics = self._measure(skip.info, skip.value(), axis)
        add.branch_statistics = self._measure(branch.info, branch.value(), axis)
        if branch.factor is not None:
            unscaled = channel_statistics(branch.tensor, axis)
            add.branch.input_statistics = self.statistics.append(unscaled)

    def _measure(self, info: TensorInfo, values: Tensor, axis: int) -> int:
        """The index of the statistics. A block's output is the next block's skip: it is measured once."""
        view = (values.storage_offset(), values.shape, values.stride(), axis)
        if info.measured is None or info.measured[0] != view:
            info.measured = (view, self.statistics.append(channel_statistics(values, axis)))
        return info.measured[1]


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
