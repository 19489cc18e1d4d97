"""3x3 convolutions of few channels as Triton kernels: forward, backward to input, backward to weights.

CIFAR networks convolve 16 to 128 channels. That is too little work to fill a large GPU the way cuDNN's
kernels expect, so they wait more than they compute: on an H200, at 32 channels and 64 images of 32 x 32, the
weight gradient takes cuDNN three kernels and 22 us where reading its operands once takes 2 us. These
kernels take fewer and larger bites. Pixels are numbered through the whole batch, channels last.

    forward     Y[p, k] = sum over taps t and channels c of X[p + t, c] W[k, t, c]
    to input    the same with the taps reversed and W transposed
    to weights  dW[k, t, c] = sum over pixels p of G[p, k] X[p + t, c]

The sum over pixels is split into shares, one program each, which are then added up, always in the same order.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_PIXELS_AT_ONCE = 128
_SHARE_PIXELS_AT_ONCE = 64
_TILE = 64
_PROGRAMS = 264
"""Of the weight gradient: two for each multiprocessor of an H200."""


@triton.jit
def _convolve(
    x, w, y, pixels,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr, K: tl.constexpr, REVERSED: tl.constexpr,
    TAP: tl.constexpr, STRIDE_C: tl.constexpr, STRIDE_K: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """P pixels, all channels; TAP, STRIDE_C and STRIDE_K say where in `w` a weight lies."""
    p = tl.program_id(0) * P + tl.arange(0, P)
    c = tl.arange(0, C)
    k = tl.arange(0, K)
    across = p % WIDTH
    down = (p // WIDTH) % HEIGHT
    total = tl.zeros((P, K), tl.float32)
    for r in tl.static_range(3):
        for s in tl.static_range(3):
            row, column = down + (r - 1), across + (s - 1)
            inside = (p < pixels) & (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
            pixel = p + (r - 1) * WIDTH + (s - 1)
            seen = tl.load(x + pixel[:, None] * C + c[None, :], inside[:, None], 0.0)
            tap = (8 - 3 * r - s) if REVERSED else (3 * r + s)
            weight = tl.load(w + tap * TAP + c[:, None] * STRIDE_C + k[None, :] * STRIDE_K)
            total = tl.dot(seen, weight, total)
    tl.store(y + p[:, None] * K + k[None, :], total.to(y.dtype.element_ty), (p < pixels)[:, None])


@triton.jit
def _sum_share(
    x, g, shares, pixels, pixels_per_share,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr, K: tl.constexpr,
    TILE_C: tl.constexpr, TILE_K: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """One share of the pixels, one row of three taps, one tile of channels of dW."""
    share, row, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tiles_k: tl.constexpr = (K + TILE_K - 1) // TILE_K
    c = (tile // tiles_k) * TILE_C + tl.arange(0, TILE_C)
    k = (tile % tiles_k) * TILE_K + tl.arange(0, TILE_K)
    left = tl.zeros((TILE_C, TILE_K), tl.float32)
    middle = tl.zeros((TILE_C, TILE_K), tl.float32)
    right = tl.zeros((TILE_C, TILE_K), tl.float32)
    first = share * pixels_per_share
    last = tl.minimum(first + pixels_per_share, pixels)
    for start in range(first, last, P):
        p = start + tl.arange(0, P)
        across = p % WIDTH
        down = (p // WIDTH) % HEIGHT + row - 1
        gradient = tl.load(g + p[:, None] * K + k[None, :], (p < last)[:, None] & (k < K)[None, :], 0.0)
        inside = (p < last) & (down >= 0) & (down < HEIGHT)
        pixel = x + (p + (row - 1) * WIDTH)[:, None] * C + c[None, :]
        channel = (c < C)[None, :]
        seen = tl.load(pixel - C, (inside & (across > 0))[:, None] & channel, 0.0)
        left = tl.dot(tl.trans(seen), gradient, left)
        seen = tl.load(pixel, inside[:, None] & channel, 0.0)
        middle = tl.dot(tl.trans(seen), gradient, middle)
        seen = tl.load(pixel + C, (inside & (across < WIDTH - 1))[:, None] & channel, 0.0)
        right = tl.dot(tl.trans(seen), gradient, right)
    place = shares + share * (K * 9 * C) + k[None, :] * (9 * C) + row * (3 * C) + c[:, None]
    written = (c < C)[:, None] & (k < K)[None, :]
    tl.store(place, left, written)
    tl.store(place + C, middle, written)
    tl.store(place + 2 * C, right, written)


@triton.jit
def _add_shares(shares, total, count, size, MOST: tl.constexpr, E: tl.constexpr):
    """The sum over shares of E elements."""
    e = tl.program_id(0) * E + tl.arange(0, E)
    s = tl.arange(0, MOST)
    values = tl.load(shares + s[:, None] * size + e[None, :], (s < count)[:, None] & (e < size)[None, :], 0.0)
    tl.store(total + e, tl.sum(values, 0), e < size)


@torch.library.triton_op("skipinit::convolve_3x3", mutates_args={})
def convolve_3x3(x: Tensor, weight: Tensor, to_input: bool) -> Tensor:
    """The convolution of `x` by `weight` (K, C, 3, 3), stride 1, padding 1; or, `to_input`, its transpose.

    All is bfloat16 and channels last; C and K are powers of two from 16 to 64.
    """
    images, _, height, width = x.shape
    K, C = weight.shape[:2]
    channels = (K, C) if to_input else (C, K)
    strides = (9 * C, 1) if to_input else (1, 9 * C)
    shape = (images, channels[1], height, width)
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    pixels = images * height * width
    torch.library.wrap_triton(_convolve)[(triton.cdiv(pixels, _PIXELS_AT_ONCE),)](
        x, weight, y, pixels,
        HEIGHT=height, WIDTH=width, C=channels[0], K=channels[1], REVERSED=to_input,
        TAP=C, STRIDE_C=strides[0], STRIDE_K=strides[1], P=_PIXELS_AT_ONCE,
        num_warps=4 if max(channels) <= 32 else 8,
    )  # fmt: skip
    return y


@torch.library.triton_op("skipinit::weight_gradient_3x3", mutates_args={})
def weight_gradient_3x3(x: Tensor, grad: Tensor) -> Tensor:
    """dW, float32 (K, C, 3, 3), from a convolution's input and the gradient of its output, channels last."""
    images, C, height, width = x.shape
    K = grad.shape[1]
    pixels = images * height * width
    tile_c, tile_k = (min(_TILE, triton.next_power_of_2(channels)) for channels in (C, K))
    tiles = triton.cdiv(C, tile_c) * triton.cdiv(K, tile_k)
    programs = _PROGRAMS if tiles == 1 and max(C, K) <= 32 else _PROGRAMS // 2
    count = max(1, programs // (3 * tiles))
    share = triton.cdiv(triton.cdiv(pixels, count), _SHARE_PIXELS_AT_ONCE) * _SHARE_PIXELS_AT_ONCE
    shares = torch.empty((count, K * 9 * C), device=x.device)
    total = torch.empty((K, C, 3, 3), device=x.device, memory_format=torch.channels_last)
    torch.library.wrap_triton(_sum_share)[(count, 3, tiles)](
        x, grad, shares, pixels, share,
        HEIGHT=height, WIDTH=width, C=C, K=K, TILE_C=tile_c, TILE_K=tile_k, P=_SHARE_PIXELS_AT_ONCE,
    )  # fmt: skip
    size, elements = K * 9 * C, 64
    torch.library.wrap_triton(_add_shares)[(triton.cdiv(size, elements),)](
        shares, total, count, size, MOST=triton.next_power_of_2(count), E=elements
    )
    return total
