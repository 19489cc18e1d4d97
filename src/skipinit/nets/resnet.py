"""Bottleneck ResNets for ImageNet: V2 as in the paper's appendix G, V1 as in He et al. 2016a."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from .architectures import Architecture
from .blocks import PostActivationBlock, PreActivationBlock, transition_kind
from .layers import Layers, Named

_STEM_CHANNELS = 64
_BOTTLENECKS = (64, 128, 256, 512)
_EXPANSION = 4

Parts = tuple[Named, list[nn.Module], Named]


class ZeroPaddedMaxPool(nn.Module):
    """3x3 max pool of stride 2 over zero padding; torch pads with -inf, which differs on negative values"""

    def forward(self, x: Tensor) -> Tensor:
        """Pad one pixel on each side, then pool."""
        return F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, stride=2)


def resnet_v2(architecture: Architecture, layers: Layers, in_channels: int, classes: int) -> Parts:
    """The stride sits on the last block of groups 1-3; a group's first block convolves its skip."""
    stem = layers.convolve(0, in_channels, _STEM_CHANNELS, 7, 2) | {"pool": ZeroPaddedMaxPool()}
    blocks: list[nn.Module] = []
    channels = _STEM_CHANNELS
    for group, (count, middle) in enumerate(zip(architecture.groups, _BOTTLENECKS, strict=True)):
        for index in range(count):
            last = index == count - 1 and group < len(_BOTTLENECKS) - 1
            blocks.append(_block_v2(layers, channels, middle, stride=2 if last else 1))
            channels = middle * _EXPANSION
    final_norm = {"norm": layers.norm(channels)} if layers.design.final_norm else {}
    return stem, blocks, final_norm | layers.activate(0) | layers.classify(channels, classes)


def _block_v2(layers: Layers, channels: int, middle: int, stride: int) -> nn.Module:
    out = middle * _EXPANSION
    preactivation = layers.normalize(1, channels) | layers.activate(1)
    branch = (
        layers.convolve(1, channels, middle, 1)
        | layers.normalize(2, middle)
        | layers.activate(2)
        | layers.convolve(2, middle, middle, 3, stride)
        | layers.normalize(3, middle)
        | layers.activate(3)
        | layers.convolve(3, middle, out, 1)
    )
    if channels == out:
        return PreActivationBlock(preactivation, branch, layers.merge(out), stride)
    transition = transition_kind(layers.design.raw_projection)
    return transition(preactivation, layers.project(channels, out, stride), branch, layers.merge(out))


def resnet_v1(architecture: Architecture, layers: Layers, in_channels: int, classes: int) -> Parts:
    """The stride sits on the first 1x1 convolution of groups 2-4, and on their first skip."""
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
