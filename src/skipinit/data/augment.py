"""Preprocessing of a batch of images: standardize, then crop and flip.

Both functions are batched and have no random draws, host synchronization or data-dependent control flow, so
that they can be compiled and captured in a CUDA graph. The random choices of an epoch are drawn at once on
the CPU, so that they are the same in every process and on every device.
"""

from __future__ import annotations

import hashlib
import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..errors import ConfigError


def mix(*parts: int | str) -> int:
    """A 63-bit seed that depends on every part and on their order, the same on every machine."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


class EpochPlan(NamedTuple):
    """`order[k]` is the k-th image of the epoch; `top[k]`, `left[k]`, `flip[k]` are its crop and flip."""

    order: Tensor
    top: Tensor
    left: Tensor
    flip: Tensor


def epoch_plan(seed: int, epoch: int, n: int, padding: int = 0, flip: bool = False) -> EpochPlan:
    """The plan of epoch `epoch` of the run `seed` over `n` images.

    It only depends on its arguments, so a resumed run has the same plan. Offsets are uniform over
    0 … 2·padding. The order does not depend on `padding` and `flip`.
    """
    generator = torch.Generator().manual_seed(mix("epoch", seed, epoch))
    order = torch.randperm(n, generator=generator)
    top, left = torch.randint(0, 2 * padding + 1, (2, n), generator=generator)
    mirrored = torch.randint(0, 2 if flip else 1, (n,), generator=generator).bool()
    return EpochPlan(order, top, left, mirrored)


def standardize(images: Tensor) -> Tensor:
    """(x - mean(x)) / max(σ(x), 1/√N) over the N values of each image (..., C, H, W), as float32.

    σ is the biased standard deviation. Its lower bound makes a constant image zero instead of NaN.
    """
    values = images.float()
    axes = (-3, -2, -1)
    centred = values - values.mean(axes, keepdim=True)
    deviation = centred.square().mean(axes, keepdim=True).sqrt()
    return centred / deviation.clamp(min=1 / math.sqrt(math.prod(images.shape[-3:])))


def crop_flip(
    images: Tensor,
    top: Tensor,
    left: Tensor,
    flip: Tensor,
    padding: int = 4,
    mode: Literal["zero", "reflect", "symmetric"] = "zero",
) -> Tensor:
    """Pad (B, C, H, W) by `padding`, cut out H×W at row `top`, column `left`, and mirror where `flip`.

    `top`, `left` (integers in 0 … 2·padding) and `flip` (bool) have one entry per image. The padded images
    are never built: each output pixel is gathered from its pixel of the input.
    """
    batch, channels, height, width = images.shape
    down = torch.arange(height, device=images.device)
    across = torch.arange(width, device=images.device)
    rows = top[:, None] + down - padding
    columns = left[:, None] + torch.where(flip[:, None], width - 1 - across, across) - padding
    if mode in _MIRRORS:
        if padding >= min(height, width):
            raise ConfigError(f"padding {padding} cannot mirror {height}×{width} images; it must be smaller")
        mirror = _MIRRORS[mode]
        rows, columns = mirror(rows, height), mirror(columns, width)
    elif mode != "zero":
        raise ConfigError(f"padding mode {mode!r} is not known; it is zero, {' or '.join(_MIRRORS)}")
    pixels = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
    pixels = pixels.view(batch, 1, height * width).expand(batch, channels, height * width)
    cropped = images.flatten(2).gather(2, pixels).view(batch, channels, height, width)
    if mode in _MIRRORS:
        return cropped
    beside = _outside(rows, height)[:, :, None] | _outside(columns, width)[:, None, :]
    return cropped.masked_fill(beside[:, None], 0)


def _reflect(positions: Tensor, size: int) -> Tensor:
    """Mirror positions beyond an edge; the edge itself is not repeated."""
    return (size - 1) - ((size - 1) - positions.abs()).abs()


def _repeat_edge(positions: Tensor, size: int) -> Tensor:
    """Mirror positions beyond an edge; the edge itself is repeated."""
    folded = torch.where(positions < 0, -1 - positions, positions)
    return torch.where(folded >= size, 2 * size - 1 - folded, folded)


_MIRRORS = {"reflect": _reflect, "symmetric": _repeat_edge}


def _outside(positions: Tensor, size: int) -> Tensor:
    return (positions < 0) | (positions >= size)
