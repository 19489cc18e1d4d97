"""What a tensor operation is to a residual network, and what is known of a tensor while its memory lives.

Operations are known by the names PyTorch's dispatcher gives them, so the same few names cover modules,
functions, operators and scripted code. Views share their memory, so they share what is known of it; an
operation that writes into it renews that. When the memory goes, all goes but the lineage, the `Node`s.

Which axis runs over channels, of (N, C, H, W), (N, H, W, C), (N, L, C) and (N, C) alike, layers tell: a
convolution or batch norm puts channels second, a matrix product or layer norm last. From there the axis is
followed by its stride and size in memory, which views keep, and by its place where an operation keeps the
number of axes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

from torch import Tensor


class Kind(Enum):
    """The part an operation plays."""

    INPUT = "input"
    LINEAR = "linear map with learned weights"
    NORM = "normalization"
    ACTIVATION = "activation"
    SCALE = "multiplication by something that is not data"
    CARRY = "copy, dropout or bias: the tensor goes on as it was"
    RESIDUAL = "residual add"
    OTHER = "anything else"


CONVOLUTIONS = {"convolution", "_convolution", "convolution_overrideable", "cudnn_convolution"}


_PRODUCTS = {
    "mm", "addmm", "_addmm_activation", "bmm", "baddbmm", "addbmm", "mv", "addmv", "linear", "mkldnn_linear",
    "matmul", "_scaled_mm", "_trilinear", "embedding",
}  # fmt: skip


LINEAR = CONVOLUTIONS | _PRODUCTS


BATCH_NORMS = {
    "batch_norm", "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
    "_batch_norm_with_update", "_batch_norm_no_update", "cudnn_batch_norm", "miopen_batch_norm",
    "batch_norm_elemt",
}  # fmt: skip


_GROUP_NORMS = {"native_group_norm", "group_norm"}


_LAYER_NORMS = {"native_layer_norm", "layer_norm", "_fused_rms_norm", "rms_norm", "rsqrt"}


NORMS = BATCH_NORMS | _GROUP_NORMS | _LAYER_NORMS
"""`rsqrt` stands for norms written by hand: little else divides by a root."""


_ACTIVATIONS = {
    "relu", "gelu", "silu", "sigmoid", "tanh", "leaky_relu", "elu", "hardtanh", "hardswish", "hardsigmoid",
    "mish", "softplus", "clamp", "clamp_min", "threshold", "_prelu_kernel", "celu", "glu", "softshrink",
    "log_sigmoid_forward", "rrelu_with_noise", "_softmax",
}  # fmt: skip


_CARRIERS = {"clone", "_to_copy", "copy", "native_dropout", "contiguous", "constant_pad_nd"}


ADDITIONS = {"add", "sub", "addcmul"}


_SCALINGS = {"mul", "div"}


CHANNELS_SECOND = CONVOLUTIONS | BATCH_NORMS | _GROUP_NORMS


CHANNELS_LAST = _PRODUCTS | _LAYER_NORMS - {"rsqrt"}


def is_factory(operation: str) -> bool:
    """Whether the operation takes a tensor for its shape alone: `x.new_zeros(...)`, `torch.empty_like(x)`."""
    return operation.startswith("new_") or operation.endswith("_like")


@dataclass(eq=False, slots=True)
class Node:
    """One operation on data; `order` grows with time, so parents come before children.

    A pass keeps all of them: what a tensor went through, nothing of the tensor itself.
    """

    order: int
    kind: Kind
    parents: tuple[Node, ...] = ()
    module: str = ""
    """Qualified name of the innermost module that was running."""
    call: int = 0
    """Which call of that module it was."""
    parameters: tuple[str, ...] = ()
    """Names of the parameters it used."""
    constant: float = 1.0
    """The number it multiplied by, if it did."""
    input_statistics: int | None = None
    """Where the ledger has the statistics of what a norm or a learned scale was given."""
    stream: Node | None = None
    """Of a residual add: its skip operand."""
    consumers: tuple[tuple[Kind, str], ...] = ()
    """Of a residual add: kind and module of the operations on its result. No nodes: lineage has no cycles."""


def kind_of(operation: str, operands_from_data: int, learned_operand: bool) -> Kind:
    """The part that `operation` plays, given what its tensors are made from."""
    if operation in LINEAR and learned_operand:
        return Kind.LINEAR
    if operation in NORMS:
        return Kind.NORM
    if operation in _ACTIVATIONS:
        return Kind.ACTIVATION
    if operands_from_data == 1 and operation in _SCALINGS:
        return Kind.SCALE
    if operation in _CARRIERS or (operands_from_data == 1 and operation in ADDITIONS):
        return Kind.CARRY
    return Kind.OTHER


@dataclass(eq=False, slots=True)
class Living:
    """The operation that wrote the memory last, and what was found out about the result."""

    node: Node
    channels: tuple[int, int] | None = None
    """Stride and size of the channel axis, where known."""
    measured: tuple[Any, int] | None = None
    """A view of the memory, and where the ledger has its statistics."""


class _Nowhere:
    """The memory of a tensor that has no single one, as sparse tensors have not: never remembered."""


def memory_of(tensor: Tensor) -> Any:
    """What all views of one tensor have in common."""
    try:
        return tensor.untyped_storage()
    except NotImplementedError:
        return _Nowhere()


def tensors_in(values: Any) -> Iterator[Tensor]:
    """The tensors among an operation's arguments or results, also in lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def written_by(function: Any, args: tuple[Any, ...], result: Any, memories: list[Any]) -> list[Tensor]:
    """The tensors whose memory the operation wrote: new results and mutated inputs."""
    fresh = [out for out in tensors_in((result,)) if memory_of(out) not in memories]
    mutated = tensors_in(args[i] for i in _mutated(function) if i < len(args))
    return [tensor for tensor in (*fresh, *mutated) if not isinstance(memory_of(tensor), _Nowhere)]


@cache
def _mutated(function: Any) -> tuple[int, ...]:
    """Positions of the arguments that an in-place operation writes into."""
    arguments = function._schema.arguments
    return tuple(i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write)


def channels_of(
    operation: str, out: Tensor, tensors: list[Tensor], known: list[Living | None]
) -> tuple[int, int] | None:
    """Stride and size of the channel axis of a result: told by the layer that made it, else inherited."""
    axis: int | None = None
    if out.dim() < 2:
        return None
    if operation in CHANNELS_SECOND:
        axis = 1
    elif operation in CHANNELS_LAST:
        axis = out.dim() - 1
    else:
        for tensor, living in zip(tensors, known, strict=True):
            if living is not None and tensor.dim() == out.dim():
                axis = _find_axis(tensor, living)
                break
    return None if axis is None else (out.stride(axis), out.shape[axis])


def _find_axis(tensor: Tensor, living: Living) -> int | None:
    """The axis of this view that runs along the channels: views keep an axis's stride and size."""
    if living.channels is None:
        return None
    stride, size = living.channels
    axes = (i for i in range(tensor.dim()) if tensor.shape[i] == size and tensor.stride(i) == stride)
    return next(axes, None)


def channel_axis(tensor: Tensor, *evidence: Living | None) -> int:
    """By the first evidence there is; else the second axis of images, the last of anything else."""
    for living in evidence:
        axis = None if living is None else _find_axis(tensor, living)
        if axis is not None:
            return axis
    return 1 if tensor.dim() > 3 else tensor.dim() - 1
