"""The paper's networks: Wide-ResNets, bottleneck ResNets for ImageNet, and the theory networks.

- Wide-ResNet n-k: three groups of (n - 4) / 6 pre-activation blocks of two 3x3 convolutions.
- ResNet-V2 as in appendix G, V1 as in He et al. 2016a.
- The networks of Figures 2 and 5 (appendices B and C): a stem, then blocks x + W g(x), no head. Momentum 1
  makes a norm's running averages the statistics of the last batch: the paper's "momentum 0, updated once".
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from .architectures import Architecture, TheoryNetwork
from .blocks import (
    Layers,
    Named,
    PostActivationBlock,
    PreActivationBlock,
    RawTransitionBlock,
    TransitionBlock,
    empty_conv,
    empty_linear,
)
from .merges import Add, GhostBatchNorm2d

_WIDE_STEM = 16
_WIDE_GROUPS = ((16, 1), (32, 2), (64, 2))
_STEM_CHANNELS = 64
_BOTTLENECKS = (64, 128, 256, 512)
_EXPANSION = 4

Parts = tuple[Named, list[nn.Module], Named]
"""Stem, blocks and head."""


def wide_resnet(architecture: Architecture, layers: Layers, in_channels: int, classes: int) -> Parts:
    """The first block of groups 2 and 3 has the stride."""
    blocks: list[nn.Module] = []
    channels = _WIDE_STEM
    for count, (width, first_stride) in zip(architecture.groups, _WIDE_GROUPS, strict=True):
        for index in range(count):
            out = width * architecture.widen
            blocks.append(_wide_block(layers, channels, out, stride=first_stride if index == 0 else 1))
            channels = out
    stem = layers.convolve(0, in_channels, _WIDE_STEM, 3)
    return stem, blocks, _activated_head(layers, channels, classes)


def _wide_block(layers: Layers, channels: int, out: int, stride: int) -> nn.Module:
    branch = (
        layers.convolve(1, channels, out, 3, stride)
        | layers.normalize(2, out)
        | layers.activate(2)
        | layers.convolve(2, out, out, 3)
    )
    return _preactivated_block(layers, branch, channels, out, stride)


def _preactivated_block(layers: Layers, branch: Named, channels: int, out: int, stride: int) -> nn.Module:
    """If the channels change, the skip is a convolution."""
    preactivation = layers.normalize(1, channels) | layers.activate(1)
    if channels == out:
        return PreActivationBlock(preactivation, branch, layers.merge(out), stride)
    transition = RawTransitionBlock if layers.design.raw_projection else TransitionBlock
    return transition(preactivation, layers.project(channels, out, stride), branch, layers.merge(out))


def _activated_head(layers: Layers, channels: int, classes: int) -> Named:
    """The last block of a pre-activation network has no activation after it."""
    final_norm = {"norm": layers.norm(channels)} if layers.design.final_norm else {}
    return final_norm | layers.activate(0) | layers.classify(channels, classes)


class ZeroPaddedMaxPool(nn.Module):
    """3x3 max pool of stride 2 over zero padding; torch pads with -inf, which differs on negative values"""

    def forward(self, x: Tensor) -> Tensor:
        """Pad one pixel on each side, then pool."""
        return F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, stride=2)


def resnet_v2(architecture: Architecture, layers: Layers, in_channels: int, classes: int) -> Parts:
    """The last block of groups 1-3 has the stride; the first skip of each group is a convolution."""
    stem = layers.convolve(0, in_channels, _STEM_CHANNELS, 7, 2) | {"pool": ZeroPaddedMaxPool()}
    blocks: list[nn.Module] = []
    channels = _STEM_CHANNELS
    for group, (count, middle) in enumerate(zip(architecture.groups, _BOTTLENECKS, strict=True)):
        for index in range(count):
            last = index == count - 1 and group < len(_BOTTLENECKS) - 1
            blocks.append(_block_v2(layers, channels, middle, stride=2 if last else 1))
            channels = middle * _EXPANSION
    return stem, blocks, _activated_head(layers, channels, classes)


def _block_v2(layers: Layers, channels: int, middle: int, stride: int) -> nn.Module:
    out = middle * _EXPANSION
    branch = (
        layers.convolve(1, channels, middle, 1)
        | layers.normalize(2, middle)
        | layers.activate(2)
        | layers.convolve(2, middle, middle, 3, stride)
        | layers.normalize(3, middle)
        | layers.activate(3)
        | layers.convolve(3, middle, out, 1)
    )
    return _preactivated_block(layers, branch, channels, out, stride)


def resnet_v1(architecture: Architecture, layers: Layers, in_channels: int, classes: int) -> Parts:
    """The first 1x1 convolution of groups 2-4 and the first skip there have the stride."""
    stem = (
        layers.convolve(0, in_channels, _STEM_CHANNELS, 7, 2)
        | layers.normalize(0, _STEM_CHANNELS)
        | layers.activate(0)
        | {"pool": nn.MaxPool2d(3, stride=2, padding=1)}
    )
    blocks: list[nn.Module] = []
    channels = _STEM_CHANNELS
    for group, (count, middle) in enumerate(zip(architecture.groups, _BOTTLENECKS, strict=True)):
        for index in range(count):
            blocks.append(_block_v1(layers, channels, middle, stride=2 if group and index == 0 else 1))
            channels = middle * _EXPANSION
    return stem, blocks, layers.classify(channels, classes)


def _block_v1(layers: Layers, channels: int, middle: int, stride: int) -> nn.Module:
    out = middle * _EXPANSION
    branch = (
        layers.convolve(1, channels, middle, 1, stride)
        | layers.normalize(1, middle)
        | layers.activate(1)
        | layers.convolve(2, middle, middle, 3)
        | layers.normalize(2, middle)
        | layers.activate(2)
        | layers.convolve(3, middle, out, 1)
        | layers.normalize(3, out)
    )
    skip = layers.project(channels, out, stride) | layers.normalize(0, out) if channels != out else {}
    return PostActivationBlock(skip, branch, layers.merge(out), layers.activate_merged())


def theory_net(kind: TheoryNetwork, count: int, channels: int, width: int) -> Parts:
    """A stem, then `count` blocks x + W g(x)."""

    def before(features: int) -> Named:
        layers: Named = {"norm": GhostBatchNorm2d(features, momentum=1.0)} if kind.normalized else {}
        return layers | ({"relu": nn.ReLU()} if kind.relu else {})

    def weights() -> Named:
        if kind.convolutional:
            return {"conv": empty_conv(width, width, 3)}
        return {"dense": empty_linear(width, width, bias=False)}

    if kind.convolutional:
        strided = {"conv1": empty_conv(channels, width, 3, 2)}, {"conv2": empty_conv(width, width, 3, 2)}
        stem = strided[0] | before(width) | strided[1]
    else:
        stem = before(channels) | {"dense": empty_linear(channels, width, bias=False)}
    blocks: list[nn.Module] = [PreActivationBlock(before(width), weights(), Add()) for _ in range(count)]
    return stem, blocks, {}
