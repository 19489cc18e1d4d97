"""3x3 convolutions of few channels as Triton kernels: forward, backward to input, backward to weights.

CIFAR networks convolve 16 to 128 channels. That is too little work to fill a large GPU the way cuDNN's
kernels expect, so they wait more than they compute: on an H200, at 32 channels and 64 images of 32 x 32, the
weight gradient takes cuDNN three kernels and 22 us where reading its operands once takes 2 us. These
kernels use fewer and larger tiles, and apply the scale, the sum and the ReLU of a residual block before they
write the output. Pixels are numbered through the whole batch, channels last.

    forward     Y[p, k] = sum over taps t and channels c of X[p + t, c] W[k, t, c]
    to input    the same with the taps reversed and W transposed
    to weights  dW[k, t, c] = sum over pixels p of G[p, k] X[p + t, c]

The sum over pixels is split into partial sums, one per program, which are added up in a fixed order.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_PIXEL_TILES = {16: (256, 8, 3), 32: (256, 8, 3), 64: (128, 8, 3), 128: (64, 4, 4)}
"""By channels: the pixels of a program, its warps, and its pipeline stages."""


FEW_CHANNELS = frozenset(_PIXEL_TILES)
"""The numbers of channels that the kernels support."""


_CHANNEL_TILE = 64
"""The most channels of a program."""


_SUM_PIXELS = 64


_SUM_STAGES = 2


_SUM_PROGRAMS = 528
"""Four for each multiprocessor of an H200; half as many from 64 channels on. To add up more partial sums
would take longer than they save."""


@triton.jit
def _convolve(
    x, w, y, activated, gate, added, scale, keep, pixels,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr, K: tl.constexpr, REVERSED: tl.constexpr,
    TAP: tl.constexpr, STRIDE_C: tl.constexpr, STRIDE_K: tl.constexpr,
    GATED: tl.constexpr, SCALED: tl.constexpr, ADDED: tl.constexpr, RAW: tl.constexpr, RELU: tl.constexpr,
    P: tl.constexpr, TILE_C: tl.constexpr, TILE_K: tl.constexpr, STAGES: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """P pixels, TILE_K channels; TAP, STRIDE_C and STRIDE_K say where in `w` a weight lies."""
    p = tl.program_id(0) * P + tl.arange(0, P)
    if WIDE:
        p = p.to(tl.int64)
    c = tl.arange(0, TILE_C)
    k = tl.program_id(1) * TILE_K + tl.arange(0, TILE_K)
    across = p % WIDTH
    down = (p // WIDTH) % HEIGHT
    image = x + p[:, None] * C + c[None, :]
    weights = w + c[:, None] * STRIDE_C + k[None, :] * STRIDE_K
    total = tl.zeros((P, TILE_K), tl.float32)
    tiles: tl.constexpr = C // TILE_C
    for i in tl.range(0, 9 * tiles, num_stages=STAGES):
        tap, first = i // tiles, (i % tiles) * TILE_C
        r, s = tap // 3 - 1, tap % 3 - 1
        row, column = down + r, across + s
        inside = (p < pixels) & (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
        seen = tl.load(image + (r * WIDTH + s) * C + first, inside[:, None], 0.0)
        weight = tl.load(weights + (8 - tap if REVERSED else tap) * TAP + first * STRIDE_C)
        total = tl.dot(seen, weight, total)
    place = p[:, None] * K + k[None, :]
    there = (p < pixels)[:, None]
    if SCALED:
        total *= tl.load(scale)
    if GATED:
        total = tl.where(tl.load(gate + place, there, 0.0) <= 0, 0.0, total)
    if ADDED:
        total += keep * tl.load(added + place, there, 0.0).to(tl.float32)
    if RAW:
        tl.store(y + place, total.to(y.dtype.element_ty), there)
    if RELU:  # keeps NaN: a run that diverged must show it
        total = tl.where(total <= 0, 0.0, total)
        tl.store(activated + place, total.to(activated.dtype.element_ty), there)


@triton.jit
def _sum_part(
    x, g, sums, count, pixels, pixels_per_part,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr, K: tl.constexpr,
    TILE_C: tl.constexpr, TILE_K: tl.constexpr, P: tl.constexpr, STAGES: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """A partial sum of dW: one layer, one part of the pixels, one row of three taps, one tile of channels."""
    place, row, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    layer, part = (place // count).to(tl.int64), place % count
    x += layer * pixels * C
    g += layer * pixels * K
    tiles_k: tl.constexpr = K // TILE_K
    c = (tile // tiles_k) * TILE_C + tl.arange(0, TILE_C)
    k = (tile % tiles_k) * TILE_K + tl.arange(0, TILE_K)
    left = tl.zeros((TILE_C, TILE_K), tl.float32)
    middle = tl.zeros((TILE_C, TILE_K), tl.float32)
    right = tl.zeros((TILE_C, TILE_K), tl.float32)
    first = part * pixels_per_part
    last = tl.minimum(first + pixels_per_part, pixels)
    for start in tl.range(first, last, P, num_stages=STAGES):
        p = start + tl.arange(0, P)
        if WIDE:
            p = p.to(tl.int64)
        across = p % WIDTH
        down = (p // WIDTH) % HEIGHT + row - 1
        gradient = tl.load(g + p[:, None] * K + k[None, :], (p < last)[:, None], 0.0)
        inside = (p < last) & (down >= 0) & (down < HEIGHT)
        pixel = x + (p + (row - 1) * WIDTH)[:, None] * C + c[None, :]
        seen = tl.load(pixel - C, (inside & (across > 0))[:, None], 0.0)
        left = tl.dot(tl.trans(seen), gradient, left)
        seen = tl.load(pixel, inside[:, None], 0.0)
        middle = tl.dot(tl.trans(seen), gradient, middle)
        seen = tl.load(pixel + C, (inside & (across < WIDTH - 1))[:, None], 0.0)
        right = tl.dot(tl.trans(seen), gradient, right)
    mine = sums + place.to(tl.int64) * (K * 9 * C)
    taps = mine + k[None, :] * (9 * C) + row * (3 * C) + c[:, None]
    tl.store(taps, left)
    tl.store(taps + C, middle)
    tl.store(taps + 2 * C, right)


@triton.jit
def _add_parts(
    sums, total, count, size, scales, weights, products,
    SCALED: tl.constexpr, MOST: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """E elements of a layer: the sum of its partial sums; if SCALED, also its product with the weights."""
    layer = tl.program_id(1).to(tl.int64)
    e = tl.program_id(0) * E + tl.arange(0, E)
    s = tl.arange(0, MOST)
    place = sums + layer * count * size + s[:, None] * size + e[None, :]
    value = tl.sum(tl.load(place, (s < count)[:, None] & (e < size)[None, :], 0.0), 0)
    if SCALED:
        weight = tl.load(weights + layer * size + e, e < size, 0.0).to(tl.float32)
        tl.store(products + layer * tl.num_programs(0) + tl.program_id(0), tl.sum(weight * value))
        value *= tl.load(scales + layer)
    tl.store(total + layer * size + e, value, e < size)


def _is_wide(pixels: int, *channels: int) -> bool:
    """Whether an index into a tensor needs 64 bits; 32 are faster."""
    return pixels * max(channels) >= 2**31


def convolve_into(
    y: Tensor | None,
    x: Tensor,
    weight: Tensor,
    to_input: bool,
    *,
    activated: Tensor | None = None,
    scale: Tensor | None = None,
    gate: Tensor | None = None,
    added: Tensor | None = None,
    keep: float = 1.0,
) -> None:
    """y <- [keep added +] [where gate > 0] [scale] x * weight;  activated <- relu(y)

    `to_input` convolves by the transpose. Either result may be left out. Images are (images, channels,
    height, width), `weight` is (K, C, 3, 3); all are channels last and of one type. `scale` is one float32.
    C and K are among FEW_CHANNELS.
    """
    images, _, height, width = x.shape
    K, C = weight.shape[:2]
    channels, out = (K, C) if to_input else (C, K)
    strides = (9 * C, 1) if to_input else (1, 9 * C)
    pixels = images * height * width
    at_once, warps, stages = _PIXEL_TILES[max(channels, out)]
    tile = min(out, _CHANNEL_TILE)
    some = x  # a placeholder for absent tensors, which the kernel does not read
    _convolve[(triton.cdiv(pixels, at_once), out // tile)](
        x, weight, some if y is None else y, some if activated is None else activated,
        some if gate is None else gate, some if added is None else added, some if scale is None else scale,
        keep, pixels,
        HEIGHT=height, WIDTH=width, C=channels, K=out, REVERSED=to_input,
        TAP=C, STRIDE_C=strides[0], STRIDE_K=strides[1],
        GATED=gate is not None, SCALED=scale is not None, ADDED=added is not None,
        RAW=y is not None, RELU=activated is not None,
        P=at_once, TILE_C=min(channels, _CHANNEL_TILE), TILE_K=tile, STAGES=stages,
        WIDE=_is_wide(pixels, channels, out), num_warps=warps,
    )  # fmt: skip


def weight_gradients(
    x: Tensor, grad: Tensor, scales: Tensor | None = None, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """dW of layers of one shape, float32 (layers, K, C, 3, 3), from inputs and gradients of outputs.

    `x` is (layers, images, C, height, width), `grad` the same with K channels, each layer channels last.
    `scales` are the factors of the layers' outputs, by which dW is multiplied. The second result then holds
    partial sums of `weights` times the unscaled dW; their sum is the gradient of a layer's scale.
    """
    layers, images, C, height, width = x.shape
    K = grad.shape[2]
    pixels, size, elements = images * height * width, K * 9 * C, 64
    tile_c, tile_k = min(C, _CHANNEL_TILE), min(K, _CHANNEL_TILE)
    tiles = (C // tile_c) * (K // tile_k)
    programs = _SUM_PROGRAMS if max(C, K) <= 32 else _SUM_PROGRAMS // 2
    count = triton.cdiv(programs, 3 * tiles * max(layers, 2))
    part = triton.cdiv(triton.cdiv(pixels, count), _SUM_PIXELS) * _SUM_PIXELS
    sums = torch.empty((layers * count, size), device=x.device)
    total = torch.empty((layers * K, C, 3, 3), device=x.device, memory_format=torch.channels_last)
    products = torch.empty((layers, triton.cdiv(size, elements)), device=x.device)
    _sum_part[(layers * count, 3, tiles)](
        x, grad, sums, count, pixels, part,
        HEIGHT=height, WIDTH=width, C=C, K=K,
        TILE_C=tile_c, TILE_K=tile_k, P=_SUM_PIXELS, STAGES=_SUM_STAGES, WIDE=_is_wide(pixels, C, K),
    )  # fmt: skip
    _add_parts[(triton.cdiv(size, elements), layers)](
        sums, total, count, size,
        total if scales is None else scales, total if weights is None else weights, products,
        SCALED=scales is not None, MOST=triton.next_power_of_2(count), E=elements,
    )  # fmt: skip
    return total.view(layers, K, C, 3, 3), products


@torch.library.custom_op("skipinit::convolve_3x3", mutates_args=())
def convolve_3x3(x: Tensor, weight: Tensor, to_input: bool) -> Tensor:
    """The convolution of `x` by `weight`, or its transpose, as an operator for compiled code."""
    y: Tensor = _like_output(x, weight, to_input)
    convolve_into(y, x, weight, to_input)
    return y


@torch.library.custom_op("skipinit::weight_gradient_3x3", mutates_args=())
def weight_gradient_3x3(x: Tensor, grad: Tensor) -> Tensor:
    """dW, float32 (K, C, 3, 3), of one layer, as an operator for compiled code."""
    total, _ = weight_gradients(x[None], grad[None])
    return total[0]


@convolve_3x3.register_fake
def _like_output(x: Tensor, weight: Tensor, to_input: bool) -> Tensor:
    images, _, height, width = x.shape
    shape = (images, weight.shape[1 if to_input else 0], height, width)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


@weight_gradient_3x3.register_fake
def _like_weight(x: Tensor, grad: Tensor) -> Tensor:
    shape = (grad.shape[1], x.shape[1], 3, 3)
    return torch.empty(shape, device=x.device, memory_format=torch.channels_last)
