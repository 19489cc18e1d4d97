"""Trace one forward pass, operation by operation, and find its residual adds.

A dispatch mode sees every tensor operation. The info about a tensor is keyed by its storage and is dropped
together with it, so no activation is kept alive. Each operation leaves one small node in the graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from .adds import Paths, TracedAdd, classify, gating_add, recurrent_adds
from .graph import Kind, Node, note_difference
from .modules import Modules, differentiates
from .operations import (
    ADDITIONS,
    BATCH_NORMS,
    constant_of,
    fan_in_of,
    is_factory,
    kind_of,
    mutable_arguments,
    operation_of,
    terms_of,
)
from .storages import Storages
from .tensors import (
    Operand,
    OperatorCall,
    TensorInfo,
    channel_axis,
    is_signal,
    is_term,
    multiplies_alike,
    overlap,
    scales_alike,
    sees_skip,
    storage_of,
    tensors_in,
)
from .written_norms import normalizes_over_batch, written_kind

if TYPE_CHECKING:
    from .measure import StatisticsBuffer

_RECURRENT = "it joins the gates of a recurrent layer"


class Tracer(TorchDispatchMode):
    """Finds the residual adds of `model` while it runs on `inputs`.

    With `statistics`, both operands and the sum of each add are measured into that buffer.
    """

    supports_higher_order_operators = True

    def __init__(
        self, model: nn.Module, inputs: Sequence[Tensor], statistics: StatisticsBuffer | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.statistics = statistics
        self.adds: list[TracedAdd] = []
        self.operations = 0
        """How many operations on data there were."""
        self.rejected: Counter[str] = Counter()
        """How many additions are not residual, by reason."""
        self.read = set[str]()
        """The parameters that took part."""
        self.modules = Modules(model)
        self.storages = Storages(self.modules, inputs)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not here: to skip it torch would import it, which takes longer than most probes.

        A mode is active, so what `torch.compile` has wrapped runs eagerly and nothing is compiled.
        """
        return False

    def __enter__(self) -> Tracer:
        self.modules.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self.modules.__exit__(*exception)
        # A recurrent cell in the user's code is recognized by its second step.
        if recurrent := recurrent_adds(self.adds):
            self.rejected[_RECURRENT] += len(recurrent)
            self.adds = [add for add in self.adds if add not in recurrent]

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operation and add it to the graph."""
        kwargs = kwargs or {}
        if isinstance(function, torch._ops.HigherOrderOperator):
            return self._trace_inside(function, args, kwargs)
        self.modules.keep_parameters(function, args, kwargs)
        call = self._read(function, args, kwargs)
        if call is None or (node := self._add_node(call)) is None:
            return function(*args, **kwargs)
        add = self._find_add(node, call) if node.layered and not differentiates() else None
        result = function(*args, **kwargs)
        info = TensorInfo(node)
        self.storages.record(info, call, result)
        if add is not None:
            if self.statistics is not None:
                add.output_statistics = self.statistics.measure(result, channel_axis(result, info), info)
            self.adds.append(add)
        return result

    def _trace_inside(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run what an operator such as flex attention consists of, operation by operation."""
        super().__enter__()  # type: ignore[no-untyped-call]
        try:
            return function.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd](*args, **kwargs)
        finally:
            super().__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def _read(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OperatorCall | None:
        """What the operation reads; None if it takes a tensor for its shape alone."""
        operation = operation_of(function, args)
        if is_factory(operation):
            return None
        # A keyword that is written, `out=`, is not read: what it held before is no operand.
        read = [value for name, value in kwargs.items() if name not in mutable_arguments(function)]
        tensors = list(tensors_in((*args, *read)))
        storages = [storage_of(tensor) for tensor in tensors]
        infos = [
            self.storages.info(tensor, storage) for tensor, storage in zip(tensors, storages, strict=True)
        ]
        data = [info if info is not None and info.node.from_data else None for info in infos]
        return OperatorCall(function, args, kwargs, operation, tensors, storages, infos, data)

    def _add_node(self, call: OperatorCall) -> Node | None:
        """Add the operation to the graph; None if neither data nor parameters have a part in it."""
        operation, data = call.operation, call.data
        parents = tuple(dict.fromkeys(info.node for info in data if info is not None))
        without_data = [storage for storage, info in zip(call.storages, data, strict=True) if info is None]
        learned = tuple(name for storage in without_data for name in self.storages.parameters_in(storage))
        if not (parents or learned):
            return None
        self.read.update(learned)
        operands = sum(info is not None for info in data) if parents else 1
        nodes = [None if info is None else info.node for info in data]
        kind = written_kind(operation, call.tensors, nodes) or kind_of(operation, operands, bool(learned))
        if differentiates():
            kind = Kind.OTHER
        sources = self.storages.sources(kind, parents, zip(call.tensors, call.infos, strict=True))
        node = self.storages.node(kind, parents, learned)
        node.sources = sources
        node.parts = self.storages.parts_read(call)
        node.constant = constant_of(operation, call.args) if kind is Kind.SCALE else 1.0
        node.masks = kind is Kind.SCALE and not learned and multiplies_alike(call)
        node.over_batch = kind is Kind.NORM and normalizes_over_batch(operation, call.tensors)
        if parents:
            self.operations += 1
            known = [info.node for info in call.infos if info is not None]
            node.fan_in = fan_in_of(operation, call.args, known) if kind is Kind.LINEAR else None
            if len(parents) == 2 and call.kwargs.get("alpha", 1) == 1:
                note_difference(node, operation)
            if operation in ("mul", "addcmul", "lerp") and (gate := gating_add(parents, self.adds)):
                self.adds.remove(gate)
                self.rejected["it only gates what its skip projects"] += 1
            self._measure_input(node, call)
        else:
            node.from_data = False
            node.layered = kind is Kind.LINEAR or any(source.layered for source in sources)
        return node

    def _find_add(self, node: Node, call: OperatorCall) -> TracedAdd | None:
        """If this is a residual add, measure its operands before they can change."""
        stacked = self.storages.stacks.summed_by(call.operation, call.args)
        if call.operation not in ADDITIONS and stacked is None:
            return None
        found = self._read_add(node, call)
        if isinstance(found, str):
            self.rejected[found] += 1
            return None
        paths, skip, branch = found
        node.kind, node.stream = Kind.RESIDUAL, skip.info.node
        shape = tuple(skip.tensor.shape)
        add = TracedAdd(node, call.operation, shape, paths, skip.info.node, branch.info.node)
        if self.statistics is not None:
            axis = channel_axis(skip.tensor, skip.info, branch.info)
            add.skip_statistics = self.statistics.measure(skip.value(), axis, skip.info)
            add.branch_statistics = self.statistics.measure(branch.value(), axis, branch.info)
            if branch.factor is not None:
                add.branch.input_statistics = self.statistics.measure(branch.tensor, axis)
        return add

    def _read_add(self, node: Node, call: OperatorCall) -> tuple[Paths, Operand, Operand] | str:
        """The paths of a residual add, its skip and its branch; or why the addition is none."""
        if isinstance(self.modules.running.module, (nn.RNNBase, nn.RNNCellBase)):
            # They slice one product over all steps, so each step looks like the identity of the last.
            return _RECURRENT
        if node.kind is Kind.PASS:
            return "it adds what was taken away before: x + (f(x) - x)"
        if isinstance(operands := self._operands(call), str):
            return operands
        if isinstance(paths := classify(operands[0].info.node, operands[1].info.node, node.call), str):
            return paths
        skip, branch = operands[paths.skip_operand], operands[1 - paths.skip_operand]
        if not paths.branch:
            node.stream = skip.info.node  # The stream goes on, also through what is no block.
            return "no layer lies on either operand's path"
        if call.operation == "sub" and paths.skip_operand == 1:
            return "it takes the identity away: f(x) - x"
        if call.operation != "sum" and not sees_skip(paths, skip):
            return "the operands come from different parts of one tensor"
        masked = skip.info.node.masks or branch.info.node.masks
        if masked and not overlap(skip.value(), branch.value()):
            return "each value comes from one operand alone, as in a coupling with masks"
        return paths, skip, branch

    def _operands(self, call: OperatorCall) -> tuple[Operand, Operand] | str:
        """Both sides of an addition, or why it cannot be a residual add."""
        if (pair := self.storages.stacks.summed_by(call.operation, call.args)) is not None:
            return self._pair(*pair)
        first, second, scale = terms_of(call.operation, call.args, call.kwargs)
        start = 1 if call.operation == "index_add" else 0  # It adds to some of the examples.
        if not isinstance(second, Tensor) or first.shape[start:] != second.shape[start:]:
            return "the operands differ in shape"
        if first.dim() < 2:
            return "the operands have fewer than two axes, examples and channels"
        operands = self._pair(first, second)
        if isinstance(operands, str) or (not isinstance(scale, Tensor) and scale == 1):
            return operands
        left, right = operands
        factor = scale * call.kwargs.get("value", 1)
        if call.operation == "lerp":  # x + w (y - x) = (1 - w) x + w y
            left = self._multiplied(left, 1 - factor, scale)
        return left, self._multiplied(right, factor, scale)

    def _multiplied(self, operand: Operand, factor: Tensor | float, scale: Tensor | float) -> Operand:
        """A term that the addition itself multiplies, by a factor that is computed from `scale`."""
        node = self.storages.node(Kind.SCALE, (operand.info.node,))
        node.from_data = operand.info.node.from_data
        if isinstance(scale, Tensor):
            node.constant, node.parameters = None, self.storages.parameters_in(storage_of(scale))
            node.factor = factor.detach() if isinstance(factor, Tensor) and node.parameters else None
            if (gate := self.storages.node_of(scale)) is not None and gate.from_data:
                node.kind, node.parents = Kind.OTHER, (operand.info.node, gate)
        else:
            node.constant = float(factor)
        return Operand(TensorInfo(node, operand.info.channels), operand.tensor, factor)

    def _pair(
        self, first: Tensor, second: Tensor, infos: Sequence[TensorInfo | None] = (None, None)
    ) -> tuple[Operand, Operand] | str:
        left, right = (
            info or self.storages.stream_info(tensor)
            for tensor, info in zip((first, second), infos, strict=True)
        )
        if left is None or right is None:
            return "one operand does not come from the inputs"
        if not (is_signal(first) and is_signal(second)):
            return "the operands are not floating point"
        return Operand(left, first), Operand(right, second)

    def _measure_input(self, node: Node, call: OperatorCall) -> None:
        """Measure the input of a batch norm, or of a scale by a tensor or by 0, which cannot be divided out.

        It must be now: when the block is found, the input no longer exists.
        """
        if self.statistics is None or node.kind not in (Kind.SCALE, Kind.NORM):
            return
        operation, operands = call.operation, list(zip(call.tensors, call.data, strict=True))
        tensor, info = next((tensor, info) for tensor, info in operands if info is not None)
        factor = next((tensor for tensor, info in operands if info is None), None)
        constant = node.constant == 0 or (factor is not None and scales_alike(factor, tensor))
        scaled = node.kind is Kind.SCALE and (node.parameters or constant)
        if node.kind is Kind.SCALE and node.parameters and factor is not None:
            node.factor = factor.reciprocal() if operation == "div" else factor.detach()
        if tensor.dim() < 2 or is_term(tensor) or not (scaled or operation in BATCH_NORMS):
            return  # One number per example has no channel axis, and is not the end of a branch.
        axis = 1 if operation in BATCH_NORMS else channel_axis(tensor, info)
        node.input_statistics = self.statistics.measure(tensor, axis, info)
