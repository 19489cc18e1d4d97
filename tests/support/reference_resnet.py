"""The paper's networks in plain float64 NumPy, written from its appendix code and equations.

Weights come as the arrays of a state dict. Every function asks for exactly the tensors its variant has
and `Weights.unused` tells which were never asked for, so a layer too many shows as surely as one too few.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Variant:
    """What a scheme puts where, in the reader's own words."""

    norms: bool = False
    """Batch norm before every ReLU of the branch (V1: after every convolution)."""
    last_norm: bool = False
    """Batch norm before the last ReLU of a pre-activation network."""
    conv_biases: bool = False
    scalar_biases: bool = False
    """Fixup's: before every convolution, ReLU and dense layer."""
    merged_bias: bool = False
    """V1: a scalar between merge and ReLU."""
    merge: str = "add"


class Weights:
    """The arrays of a network by name; remembers which were read."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = dict(arrays)
        self._read: set[str] = set()

    def __call__(self, name: str) -> Array:
        self._read.add(name)
        return self._arrays[name]

    @property
    def unused(self) -> set[str]:
        return set(self._arrays) - self._read


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def fixed_padding(x: Array, kernel: int) -> Array:
    """kernel - 1 zeros in all along each image axis, whatever the size of the image."""
    total = kernel - 1
    begin = total // 2
    return np.pad(x, ((0, 0), (0, 0), (begin, total - begin), (begin, total - begin)))


def windows(x: Array, kernel: int, stride: int) -> Array:
    """(batch, channels, rows, columns, kernel, kernel)"""
    view = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), axis=(2, 3))
    return view[:, :, ::stride, ::stride]


def convolve(x: Array, weight: Array, stride: int) -> Array:
    out_channels, _, kernel, _ = weight.shape
    patches = windows(fixed_padding(x, kernel), kernel, stride)
    batch, _, rows, columns = patches.shape[:4]
    columns_of_patches = patches.transpose(0, 2, 3, 1, 4, 5).reshape(batch * rows * columns, -1)
    out = columns_of_patches @ weight.reshape(out_channels, -1).T
    return out.reshape(batch, rows, columns, out_channels).transpose(0, 3, 1, 2)


def max_pool(x: Array, kernel: int, stride: int) -> Array:
    """Over zero padding, as the appendix pads."""
    return windows(fixed_padding(x, kernel), kernel, stride).max(axis=(4, 5))


class Network:
    """The pieces that all three architectures are made of."""

    def __init__(self, weights: Weights, variant: Variant, batch_statistics: bool) -> None:
        self.weights = weights
        self.variant = variant
        self.batch_statistics = batch_statistics

    def scalar(self, x: Array, name: str) -> Array:
        return x + self.weights(f"{name}.bias") if self.variant.scalar_biases else x

    def conv(self, x: Array, where: str, name: str, shift: str, stride: int = 1) -> Array:
        out = convolve(self.scalar(x, f"{where}.{shift}"), self.weights(f"{where}.{name}.weight"), stride)
        if self.variant.conv_biases:
            out = out + self.weights(f"{where}.{name}.bias")[:, None, None]
        return out

    def norm(self, x: Array, name: str) -> Array:
        """Appendix A."""
        mean, variance = self.weights(f"{name}.running_mean"), self.weights(f"{name}.running_var")
        if self.batch_statistics:
            mean = x.mean(axis=(0, 2, 3))
            variance = (x**2).mean(axis=(0, 2, 3)) - mean**2
        gamma, beta = self.weights(f"{name}.weight"), self.weights(f"{name}.bias")
        scale = gamma / np.sqrt(variance + 1e-5)
        return scale[:, None, None] * (x - mean[:, None, None]) + beta[:, None, None]

    def activation(self, x: Array, where: str, number: int) -> Array:
        """[norm] [+ b] ReLU"""
        if self.variant.norms:
            x = self.norm(x, f"{where}.norm{number}")
        return relu(self.scalar(x, f"{where}.bias{number}a"))

    def merge(self, skip: Array, branch: Array, block: str) -> Array:
        match self.variant.merge:
            case "add":
                return skip + branch
            case "scale":
                return skip + self.weights(f"{block}.merge.alpha") * branch
            case "divide":
                return (skip + branch) / math.sqrt(2)
            case "norm of the sum":
                return self.norm(skip + branch, f"{block}.merge.norm")
            case "norm of the skip":
                return self.norm(skip, f"{block}.merge.norm") + branch
        raise AssertionError(self.variant.merge)

    def classify(self, x: Array) -> Array:
        features = self.scalar(x.mean(axis=(2, 3)), "head.bias")
        return features @ self.weights("head.dense.weight").T + self.weights("head.dense.bias")

    def last_activation(self, x: Array) -> Array:
        if self.variant.last_norm:
            x = self.norm(x, "head.norm")
        return relu(self.scalar(x, "head.bias0a"))


class WideResNet(Network):
    """3x3 to 16 channels, three groups of blocks of two 3x3, [norm] ReLU, mean, dense."""

    def __call__(self, x: Array, blocks_per_group: int, widen: int) -> Array:
        x = self.conv(x, "stem", "conv0", "bias0b")
        number, channels = 0, 16
        for width, group_stride in ((16 * widen, 1), (32 * widen, 2), (64 * widen, 2)):
            for index in range(blocks_per_group):
                stride = group_stride if index == 0 else 1
                x = self.block(x, f"blocks.{number}", stride, changes=stride != 1 or channels != width)
                number, channels = number + 1, width
        return self.classify(self.last_activation(x))

    def block(self, x: Array, name: str, stride: int, changes: bool) -> Array:
        h = self.activation(x, f"{name}.preactivation", 1)
        skip = self.conv(h, f"{name}.skip", "conv", "bias", stride) if changes else x
        branch = self.conv(h, f"{name}.branch", "conv1", "bias1b", stride)
        branch = self.activation(branch, f"{name}.branch", 2)
        branch = self.conv(branch, f"{name}.branch", "conv2", "bias2b")
        return self.merge(skip, branch, name)


BLOCKS_50 = (
    ((256, 64, 1),) * 2 + ((256, 64, 2),),
    ((512, 128, 1),) * 3 + ((512, 128, 2),),
    ((1024, 256, 1),) * 5 + ((1024, 256, 2),),
    ((2048, 512, 1),) * 3,
)
"""(output channels, bottleneck channels, stride) of each block, as the appendix lists them."""


class ResNetV2(Network):
    """The appendix code, with the places of norms and Fixup's scalars added."""

    def __call__(self, x: Array) -> Array:
        x = self.conv(x, "stem", "conv0", "bias0b", stride=2)
        x = max_pool(x, 3, stride=2)
        number = 0
        for subblocks in BLOCKS_50:
            for output_channels, _, stride in subblocks:
                x = self.block(x, f"blocks.{number}", output_channels, stride)
                number += 1
        return self.classify(self.last_activation(x))

    def block(self, inputs: Array, name: str, output_channels: int, stride: int) -> Array:
        preact = self.activation(inputs, f"{name}.preactivation", 1)
        if output_channels == inputs.shape[1]:
            shortcut = inputs if stride == 1 else max_pool(inputs, 1, stride)
        else:
            shortcut = self.conv(preact, f"{name}.skip", "conv", "bias", stride)
        residual = self.conv(preact, f"{name}.branch", "conv1", "bias1b")
        residual = self.activation(residual, f"{name}.branch", 2)
        residual = self.conv(residual, f"{name}.branch", "conv2", "bias2b", stride)
        residual = self.activation(residual, f"{name}.branch", 3)
        residual = self.conv(residual, f"{name}.branch", "conv3", "bias3b")
        return self.merge(shortcut, residual, name)


class ResNetV1(Network):
    """He et al. 2016a: conv, norm, ReLU in that order; the stride on the first 1x1 of groups 2 to 4."""

    def __call__(self, x: Array) -> Array:
        x = self.conv(x, "stem", "conv0", "bias0b", stride=2)
        x = max_pool(self.activation(x, "stem", 0), 3, stride=2)
        number = 0
        for group, (count, bottleneck) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
            for index in range(count):
                stride = 2 if group > 0 and index == 0 else 1
                x = self.block(x, f"blocks.{number}", 4 * bottleneck, stride)
                number += 1
        return self.classify(x)

    def block(self, x: Array, name: str, output_channels: int, stride: int) -> Array:
        branch = x
        for layer in (1, 2, 3):
            shift = f"bias{layer}b"
            branch = self.conv(branch, f"{name}.branch", f"conv{layer}", shift, stride if layer == 1 else 1)
            if layer < 3:
                branch = self.activation(branch, f"{name}.branch", layer)
            elif self.variant.norms:
                branch = self.norm(branch, f"{name}.branch.norm3")
        skip = x
        if output_channels != x.shape[1]:
            skip = self.conv(x, f"{name}.skip", "conv", "bias", stride)
            if self.variant.norms:
                skip = self.norm(skip, f"{name}.skip.norm0")
        out = self.merge(skip, branch, name)
        if self.variant.merged_bias or self.variant.scalar_biases:
            out = out + self.weights(f"{name}.activation.bias.bias")
        return relu(out)
