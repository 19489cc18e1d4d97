"""Wide-ResNets n-k: three groups of (n - 4) / 6 pre-activation blocks of two 3x3 convolutions."""

from __future__ import annotations

from torch import nn

from .architectures import Architecture
from .blocks import PreActivationBlock, transition_kind
from .layers import Layers, Named

_STEM_CHANNELS = 16
_GROUPS = ((16, 1), (32, 2), (64, 2))


def wide_resnet(
    architecture: Architecture, layers: Layers, in_channels: int, classes: int
) -> tuple[Named, list[nn.Module], Named]:
    """Stem, blocks and head."""
    blocks: list[nn.Module] = []
    channels = _STEM_CHANNELS
    for count, (width, first_stride) in zip(architecture.groups, _GROUPS, strict=True):
        for index in range(count):
            out = width * architecture.widen
            blocks.append(_block(layers, channels, out, stride=first_stride if index == 0 else 1))
            channels = out
    final_norm = {"norm": layers.norm(channels)} if layers.design.final_norm else {}
    head = final_norm | layers.activate(0) | layers.classify(channels, classes)
    return layers.convolve(0, in_channels, _STEM_CHANNELS, 3), blocks, head


def _block(layers: Layers, channels: int, out: int, stride: int) -> nn.Module:
    preactivation = layers.normalize(1, channels) | layers.activate(1)
    branch = (
        layers.convolve(1, channels, out, 3, stride)
        | layers.normalize(2, out)
        | layers.activate(2)
        | layers.convolve(2, out, out, 3)
    )
    merge = layers.merge(out)
    if channels == out and stride == 1:
        return PreActivationBlock(preactivation, branch, merge)
    transition = transition_kind(layers.design.raw_projection)
    return transition(preactivation, layers.project(channels, out, stride), branch, merge)
