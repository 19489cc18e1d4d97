"""The operations of a forward pass: what kind each one is, and what it takes.

Operations are identified by the names that PyTorch's dispatcher gives them. Modules, functions and operators
share these names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from .graph import Kind, Node

if TYPE_CHECKING:
    pass


_CONVOLUTIONS = {"convolution", "_convolution", "convolution_overrideable", "cudnn_convolution"}
_PRODUCTS = {
    "mm", "addmm", "_addmm_activation", "bmm", "baddbmm", "addbmm", "mv", "addmv", "linear", "mkldnn_linear",
    "matmul", "_scaled_mm", "_grouped_mm", "_trilinear", "embedding",
}  # fmt: skip
# An LSTM, and on GPUs every recurrent layer, is one operation, whose weights are the only sign of a layer.
_RECURRENT_LAYERS = {"mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn", "_lstm_mps"}
_MATRIX_PRODUCTS = {"mm", "bmm", "matmul", "linear", "_grouped_mm"}
_LINEAR = _CONVOLUTIONS | _PRODUCTS | _RECURRENT_LAYERS
BATCH_NORMS = {
    "batch_norm", "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
    "_batch_norm_with_update", "_batch_norm_no_update", "cudnn_batch_norm", "miopen_batch_norm",
    "batch_norm_elemt",
}  # fmt: skip
_GROUP_NORMS = {"native_group_norm", "group_norm"}
_LAYER_NORMS = {"native_layer_norm", "layer_norm", "_fused_rms_norm", "rms_norm"}
_NORMS = BATCH_NORMS | _GROUP_NORMS | _LAYER_NORMS
_POWERS = {2.0: "square", 0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}
_ACTIVATIONS = {
    "relu", "gelu", "silu", "sigmoid", "tanh", "leaky_relu", "elu", "hardtanh", "hardswish", "hardsigmoid",
    "mish", "softplus", "clamp", "clamp_min", "threshold", "_prelu_kernel", "celu", "glu", "softshrink",
    "log_sigmoid_forward", "rrelu_with_noise", "_softmax", "maximum", "minimum",
}  # fmt: skip
_COPIES = {
    "clone", "_to_copy", "copy", "native_dropout", "contiguous", "constant_pad_nd",
    "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "wait_tensor", "_wrap_tensor_autograd",
}  # fmt: skip
ADDITIONS = {"add", "sub", "addcmul", "lerp", "index_add"}
_SCALINGS = {"mul", "div"}
COMPARISONS = {
    "argmax", "argmin", "argsort", "bucketize", "kthvalue", "max", "median", "min", "mode", "multinomial",
    "nonzero", "searchsorted", "sort", "topk",
}  # fmt: skip
"""Operations whose whole numbers tell where something was found. They carry no signal."""
CHANNELS_SECOND = _CONVOLUTIONS | BATCH_NORMS | _GROUP_NORMS
"""Operations whose result has its channels on the second axis."""
CHANNELS_LAST = _PRODUCTS | _LAYER_NORMS | _RECURRENT_LAYERS


@cache
def name_of(function: Any) -> str:
    """`aten.add_.Tensor` is `add`: in place or not is the same mathematics."""
    name: str = function.overloadpacket.__name__
    return name.removesuffix("_") if not name.endswith("__") else name


def operation_of(function: Any, args: tuple[Any, ...]) -> str:
    """The name of an operation; powers of 2, 1/2, -1/2 and -1 have those of `square`, `sqrt`, ..."""
    name = name_of(function)
    return _POWERS.get(args[1], name) if name == "pow" and isinstance(args[1], (int, float)) else name


@cache
def mutable_arguments(function: Any) -> frozenset[int | str]:
    """Positions and names of the arguments that an operation writes into."""
    arguments = enumerate(function._schema.arguments)
    written = [(i, a.name) for i, a in arguments if a.alias_info is not None and a.alias_info.is_write]
    return frozenset(place for places in written for place in places)


def kind_of(operation: str, data_operands: int, learned_operand: bool) -> Kind:
    """The kind of `operation`, given how many operands come from data and whether one is learned."""
    if operation in _LINEAR and learned_operand:
        return Kind.LINEAR
    if operation in _NORMS:
        return Kind.NORM
    if data_operands > 1 and (operation in _PRODUCTS or operation.startswith("_scaled_dot_product")):
        return Kind.ATTENTION
    if operation in _ACTIVATIONS:
        return Kind.ACTIVATION
    if data_operands == 1 and operation in _SCALINGS:
        return Kind.SCALE
    if operation in _COPIES:
        return Kind.PASS
    if data_operands == 1 and operation in ADDITIONS:
        return Kind.SHIFT
    return Kind.OTHER


def is_factory(operation: str) -> bool:
    """Whether the operation takes a tensor for its shape alone: `x.new_zeros(...)`, `torch.empty_like(x)`."""
    return operation.startswith("new_") or operation.endswith("_like")


def terms_of(operation: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """The two terms of an addition, and what the second is multiplied by.

    Whatever the caller wrote, the dispatcher gives by position all that may be given so.
    """
    first, second, scale = args[0], args[1], kwargs.get("alpha", 1)
    if operation == "addcmul":
        scale, second = args[1], args[2]
        if second.shape != first.shape:
            scale, second = second, scale
    elif operation == "index_add":
        second = args[3]
    elif operation == "lerp":
        scale = args[2]
    return first, second, scale


def constant_of(operation: str, args: tuple[Any, ...]) -> float | None:
    """The number that a scaling multiplies by; None if it is a tensor."""
    numbers = [float(value) for value in args if isinstance(value, (int, float))]
    if not numbers:
        return None
    return 1 / numbers[0] if operation == "div" and numbers[0] else numbers[0]


def fan_in_of(operation: str, args: tuple[Any, ...], operands: Sequence[Node]) -> int | None:
    """How many products a value of a matrix product sums; None if an operand was computed without data."""
    learned = [node for node in operands if not node.from_data]
    copies = [node for node in learned if node.kind is Kind.PASS]
    if copies != learned or any(source.kind is not Kind.INPUT for node in copies for source in node.sources):
        return None
    if operation == "addmm" and args[0].dim() == 1:  # A vector is the bias, a matrix could be anything.
        operation, args = "mm", args[1:]
    return int(args[0].shape[-1]) if operation in _MATRIX_PRODUCTS else None
