"""Which axis of a tensor runs over channels: (N, C, H, W), (N, H, W, C), (N, L, C) and (N, C) alike.

Layers tell: a convolution or batch norm puts channels second, a matrix product or layer norm last. From there
the axis is followed by its stride and size in memory, which views keep, and by its place where an operation
keeps the number of axes.
"""

from __future__ import annotations

from torch import Tensor

from .living import Living
from .operators import CHANNELS_LAST, CHANNELS_SECOND


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
