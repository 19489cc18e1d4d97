"""The tensors of a forward pass: which storage they share, what is known about it, which part of it a view is
and which axis runs over channels.

All views of a storage share one node of the graph, so the graph alone does not tell two parts from the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..errors import ConfigError
from .graph import Kind, Node
from .operations import CHANNELS_LAST, CHANNELS_SECOND, mutable_arguments

if TYPE_CHECKING:
    from .adds import Paths


@dataclass(eq=False, slots=True)
class TensorInfo:
    """What is known about the contents of a storage. All views of the storage share it."""

    node: Node
    """The operation that wrote the storage last."""
    channels: tuple[int, int] | None = None
    """Stride and size of the channel axis, where known."""
    measured: tuple[Any, int] | None = None
    """The view that was measured last, and the index of its statistics."""


@dataclass(frozen=True, eq=False)
class Operand:
    """One side of an addition: `tensor`, or `tensor * factor`."""

    info: TensorInfo
    tensor: Tensor
    factor: Tensor | float | None = None

    def value(self) -> Tensor:
        """The tensor that is added."""
        return self.tensor if self.factor is None else self.tensor * self.factor


@dataclass(eq=False, slots=True)
class OperatorCall:
    """One call of an operation, and what is known about the tensors that it reads."""

    function: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    operation: str
    """The name."""
    tensors: Sequence[Tensor]
    storages: Sequence[Any]
    infos: Sequence[TensorInfo | None]
    data: Sequence[TensorInfo | None]
    """Those of `infos` that the batch has a part in; None in place of the others."""


class _NoStorage:
    """Stands for the storage of a tensor that has no single one, such as a sparse tensor."""


def storage_of(tensor: Tensor) -> Any:
    """The memory that all views of a tensor share."""
    if tensor.is_nested and tensor.layout is torch.strided:
        raise ConfigError("a nested tensor of layout torch.strided has no shape; use layout=torch.jagged")
    if type(tensor) not in (Tensor, nn.Parameter) and is_traceable_wrapper_subclass(tensor):
        parts = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
        inner = [part for part in parts if isinstance(part, Tensor)]
        if len(inner) == 1:  # A tensor that is spread over processes, or one that waits for them.
            return storage_of(inner[0])
    try:
        return tensor.untyped_storage()
    except NotImplementedError:
        return _NoStorage()


def local_part(tensor: Tensor) -> Tensor:
    """Of a tensor that is spread over processes (`DTensor`) what this process holds; any other as it is."""
    local: Tensor = getattr(tensor, "_local_tensor", tensor)
    return local


def is_spread(tensor: Tensor) -> bool:
    """Whether other processes hold parts or terms of the tensor."""
    return not all(placement.is_replicate() for placement in getattr(tensor, "placements", ()))


def is_term(tensor: Tensor) -> bool:
    """Whether the tensor is a sum, of which this process holds a term: no value of it is known here."""
    return any(placement.is_partial() for placement in getattr(tensor, "placements", ()))


def norm_of(tensor: Tensor) -> Tensor:
    """The Euclidean norm in float64: squares of float32 values overflow from 1e19 on, vanish below 1e-22."""
    values = local_part(tensor.detach())
    if values.is_sparse:
        values = values.coalesce().values()
    norm: Tensor = torch.linalg.vector_norm(values, dtype=torch.promote_types(values.dtype, torch.float64))
    return norm


def whole_norm(tensor: Tensor) -> Tensor | None:
    """`norm_of`; None if other processes hold parts of the tensor, since they may not be watched."""
    return None if is_spread(tensor) else norm_of(tensor)


def is_signal(tensor: Tensor) -> bool:
    """Whether it holds real or complex numbers. Whole numbers, such as token ids, only choose."""
    return tensor.is_floating_point() or tensor.is_complex()


def values_of(tensor: Tensor) -> Tensor:
    """Of a nested tensor the values, its examples one after the other; of others what this process holds."""
    return tensor.values() if tensor.is_nested else local_part(tensor)


def cast_of(tensor: Tensor) -> Tensor | None:
    """The parameter that was cast to this tensor, as autocast does once for all passes in its region."""
    history = tensor.grad_fn
    if history is None or type(history).__name__ != "ToCopyBackward0":
        return None
    return getattr(history.next_functions[0][0], "variable", None)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in a value, also inside lists, tuples, mappings and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    else:
        for item in contents(value):
            yield from tensors_in(item)


def contents(value: Any) -> Sequence[Any]:
    """What a list, tuple, mapping or dataclass holds; nothing for any other value."""
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, Mapping):
        return list(value.values())
    if is_dataclass(type(value)):
        return [getattr(value, field.name, None) for field in fields(value)]
    return ()


def overwritten_by(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """The tensors among its arguments that an operation writes into."""
    if places := mutable_arguments(function):
        given = (*enumerate(args), *kwargs.items())
        yield from tensors_in([value for place, value in given if place in places])


def written_by(call: OperatorCall, result: Any) -> list[Tensor]:
    """The tensors whose storage the operation wrote: new results, mutated inputs, those given as `out=`."""
    new = [out for out in tensors_in(result) if storage_of(out) not in call.storages]
    mutated = overwritten_by(call.function, call.args, call.kwargs)
    return [tensor for tensor in (*new, *mutated) if not isinstance(storage_of(tensor), _NoStorage)]


class Part(NamedTuple):
    """A view of some of a storage."""

    offset: int
    shape: torch.Size
    stride: tuple[int, ...]
    whole: int
    """How many elements the storage has."""

    def overlaps(self, other: Part) -> bool:
        """Whether both have an element in common; assumed of a real and a complex view."""
        if self.whole != other.whole:
            return True
        memory = torch.zeros(self.whole, dtype=torch.bool)
        memory.as_strided(self.shape, self.stride, self.offset).fill_(True)
        return bool(memory.as_strided(other.shape, other.stride, other.offset).any())

    def completes(self, other: Part) -> bool:
        """Whether both, if they do not overlap, are all of each example: each is the rest of the other."""
        every_example = self.shape[0] * self.stride[0] == self.whole
        return every_example and self.shape.numel() + other.shape.numel() == self.whole


def part_of(tensor: Tensor, storage: Any) -> Part | None:
    """Which part of its storage the tensor is; None if it is all of it."""
    tensor = local_part(tensor)
    whole = storage.nbytes() // tensor.itemsize
    if tensor.numel() >= whole:
        return None
    return Part(int(tensor.storage_offset()), tensor.shape, tensor.stride(), whole)


def multiplies_alike(call: OperatorCall) -> bool:
    """Whether an operand without data has several values, the same for all examples, unlike dropout's."""
    axes = max(tensor.dim() for tensor in call.tensors)
    factors = (tensor for tensor, info in zip(call.tensors, call.data, strict=True) if info is None)
    return any(f.numel() > 1 and (f.dim() < axes or len(f) == 1 or f.stride(0) == 0) for f in factors)


def overlap(tensor: Tensor, other: Tensor) -> bool:
    """Whether a value of both is not zero in one place; assumed where there are no values.

    Without one, masks choose from which of them each value of the sum comes.
    """
    if tensor.is_meta or other.is_meta or not (tensor.any() and other.any()):
        return True
    return bool(((tensor != 0) & (other != 0)).any())


def sees_skip(paths: Paths, skip: Operand) -> bool:
    """Whether the branch uses what the skip carries, or all the rest of the tensor that it is a part of.

    The rest: two halves of a tensor are two coupled streams, as in reversible networks. A half that is only
    added to another stream is none: WaveNet adds one half to its stream and the other to its outputs.
    """
    carried = [(skip.info.node, part_of(skip.tensor, storage_of(skip.tensor)))]
    if paths.skip:
        read = [(node, parent) for node in paths.skip for parent in node.parents if parent not in paths.skip]
        carried = [(parent, part) for node, parent in read for part in _parts_of(parent, node)]
    seen = []
    for origin, part in carried:
        if part is None:
            return True
        for node in paths.branch:
            for reader in _readers(node, origin):
                parts, coupled = _parts_of(origin, reader), node.stream in (None, origin)
                seen += [p is None or part.overlaps(p) or (coupled and part.completes(p)) for p in parts]
    return not seen or any(seen)


def _readers(node: Node, origin: Node) -> Iterator[Node]:
    """What reads the result of `origin` for that operation: itself, or the scales and copies before it."""
    for parent in (*node.parents, *node.sources):
        reader = node
        while parent is not origin and parent.kind in (Kind.SCALE, Kind.PASS) and len(parent.parents) == 1:
            reader, parent = parent, parent.parents[0]
        if parent is origin:
            yield reader


def _parts_of(origin: Node, node: Node) -> list[Part | None]:
    """The parts of the result of `origin` that an operation used; None stands for all of it."""
    return [part for parent, part in node.parts if parent is origin] or [None]


def parts_read(call: OperatorCall, leaves: Mapping[Any, TensorInfo]) -> tuple[tuple[Node, Part], ...]:
    """Of which operands, constants too, it used only a part of the storage, and which part."""
    read = zip(call.tensors, call.storages, call.infos, strict=True)
    known = ((tensor, storage, info or leaves.get(storage)) for tensor, storage, info in read)
    parts = ((info.node, part_of(tensor, storage)) for tensor, storage, info in known if info is not None)
    return tuple((node, part) for node, part in parts if part is not None)


def scales_alike(factor: Tensor, tensor: Tensor) -> bool:
    """Whether all examples are multiplied alike: by one number, or by one for each channel.

    So it is a scale, not the mask of a drop path or the table of a rotary embedding.
    """
    axes = [axis - factor.dim() for axis, size in enumerate(factor.shape) if size > 1]
    return len(axes) < 2 and -tensor.dim() not in axes


class StackedPairs:
    """Pairs of tensors that `torch.stack` joined. A sum over the new axis adds the two."""

    def __init__(self) -> None:
        self._pairs: WeakKeyDictionary[Any, tuple[int, Sequence[TensorInfo | None]]] = WeakKeyDictionary()

    def add(self, call: OperatorCall, result: Tensor) -> None:
        """If that call stacks a pair, remember it."""
        if call.operation == "stack" and len(call.tensors) == 2:
            axis = call.args[1] if len(call.args) > 1 else 0
            self._pairs[storage_of(result)] = axis % result.dim(), call.infos

    def summed_by(
        self, operation: str, args: tuple[Any, ...]
    ) -> tuple[Tensor, Tensor, Sequence[TensorInfo | None]] | None:
        """Both tensors and what is known about them, if this is `torch.stack([a, b], axis).sum(axis)`."""
        if operation != "sum" or len(args) < 2 or (pair := self._pairs.get(storage_of(args[0]))) is None:
            return None
        (axis, infos), axes = pair, args[0].dim()
        if axes < 3 or args[1] not in ([axis], [axis - axes]):
            return None
        first, second = args[0].unbind(axis)
        return first, second, infos


# Which axis runs over channels depends on the layout: (N, C, H, W), (N, H, W, C), (N, L, C) or (N, C). Layers
# tell: the second axis after a convolution or batch norm, the last after a matrix product or layer norm. From
# there the axis is followed by its stride and size, which views keep, and by its position through operations
# that keep the number of axes.


def channels_of(call: OperatorCall, out: Tensor) -> tuple[int, int] | None:
    """Stride and size of the channel axis of a result: from the layer that computed it, or from its input."""
    axis: int | None = None
    if out.dim() < 2:
        return None
    if call.operation in CHANNELS_SECOND:
        axis = 1
    elif call.operation in CHANNELS_LAST:
        axis = out.dim() - 1
    else:
        for tensor, info in zip(call.tensors, call.data, strict=True):
            if info is not None and tensor.dim() == out.dim():
                axis = _find_axis(tensor, info)
                break
    return None if axis is None else (out.stride(axis), out.shape[axis])


def channel_axis(tensor: Tensor, *infos: TensorInfo | None) -> int:
    """The channel axis by the first info that knows it; else the second of images, the last of others."""
    for info in infos:
        axis = None if info is None else _find_axis(tensor, info)
        if axis is not None:
            return axis
    return 1 if tensor.dim() > 3 else tensor.dim() - 1


def _find_axis(tensor: Tensor, info: TensorInfo) -> int | None:
    """The axis of this view that has the stride and size of the channel axis."""
    if info.channels is None:
        return None
    stride, size = info.channels
    axes = (i for i in range(tensor.dim()) if tensor.shape[i] == size and tensor.stride(i) == stride)
    return next(axes, None)
