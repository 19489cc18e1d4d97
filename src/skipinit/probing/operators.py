"""What each tensor operation is to a residual network: a layer, an activation, a scaling, a mere carrier.

Operations are known by the names PyTorch's dispatcher gives them, so the same few names cover modules,
functions, operators and scripted code.
"""

from __future__ import annotations

from enum import Enum


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
