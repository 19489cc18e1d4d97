"""The layers between the merges, built as a `Design` says."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .merge import Add, DivideSqrt2, NormalizeOutput, NormalizeSkip, SkipInit
from .norm import GhostBatchNorm2d
from .schemes import Design

Named = dict[str, nn.Module]


class ScalarBias(nn.Module):
    """x + b, b a learnable scalar that starts at 0"""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """The same shift everywhere."""
        return x + self.bias


class Dropout(nn.Dropout):
    """x * mask / (1 - p) in training

    Whoever owns the randomness may set `mask`, of the input's shape; otherwise torch's generator draws it.
    """

    mask: Tensor | None = None

    def __init__(self, p: float, features: int) -> None:
        super().__init__(p)
        self.features = features

    def forward(self, x: Tensor) -> Tensor:
        """The identity at test time."""
        if self.mask is None or not self.training:
            return super().forward(x)
        return x * self.mask / (1 - self.p)


class Layers:
    """Builds the pieces of a block or a stem, numbered as they follow one another."""

    def __init__(self, design: Design) -> None:
        self.design = design

    def normalize(self, number: int, channels: int) -> Named:
        """[BN]"""
        return {f"norm{number}": self.norm(channels)} if self.design.branch_norm else {}

    def activate(self, number: int) -> Named:
        """[+ b] ReLU"""
        return self._bias(f"bias{number}a") | {f"relu{number}": nn.ReLU()}

    def activate_merged(self) -> Named:
        """[+ b] ReLU after a merge: the scalar bias that SkipInit needs on ResNet-V1, or one of Fixup's"""
        biased = self.design.layer_biases or self.design.merge_bias
        return ({"bias": ScalarBias()} if biased else {}) | {"relu": nn.ReLU()}

    def convolve(self, number: int, channels: int, out: int, size: int, stride: int = 1) -> Named:
        """[+ b] convolution, padded so that stride 1 keeps the size"""
        return self._bias(f"bias{number}b") | {f"conv{number}": self.conv(channels, out, size, stride)}

    def classify(self, channels: int, classes: int) -> Named:
        """mean over space, [dropout], [+ b] dense"""
        drop = {"dropout": Dropout(self.design.dropout, channels)} if self.design.dropout else {}
        pool: Named = {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
        return pool | drop | self._bias("bias") | {"dense": empty_linear(channels, classes)}

    def project(self, channels: int, out: int, stride: int) -> Named:
        """[+ b] 1x1 convolution on the skip path"""
        return self._bias("bias") | {"conv": self.conv(channels, out, 1, stride)}

    def norm(self, channels: int) -> GhostBatchNorm2d:
        """Batch norm with the design's ghosts."""
        return GhostBatchNorm2d(
            channels,
            ghost_batch=self.design.ghost_batch,
            batch_statistics_at_test=self.design.batch_statistics_at_test,
        )

    def conv(self, channels: int, out: int, size: int, stride: int) -> nn.Conv2d:
        """A convolution with a bias where the design has one."""
        return empty_conv(channels, out, size, stride, bias=self.design.conv_bias)

    def merge(self, channels: int) -> nn.Module:
        """The design's way to join skip and branch."""
        match self.design.merge:
            case "add":
                return Add()
            case "scale":
                return SkipInit(self.design.alpha)
            case "divide-sqrt2":
                return DivideSqrt2()
            case "norm-output":
                return NormalizeOutput(self.norm(channels))
            case "norm-skip":
                return NormalizeSkip(self.norm(channels))

    def _bias(self, name: str) -> Named:
        return {name: ScalarBias()} if self.design.layer_biases else {}


def empty_conv(channels: int, out: int, size: int, stride: int = 1, bias: bool = False) -> nn.Conv2d:
    """A convolution without torch's own initialization, which would draw every weight twice."""
    device = torch.get_default_device()
    conv: nn.Conv2d = nn.utils.skip_init(
        nn.Conv2d, channels, out, size, stride=stride, padding=size // 2, bias=bias, device=device
    )
    return conv


def empty_linear(channels: int, out: int, bias: bool = True) -> nn.Linear:
    """A dense layer without torch's own initialization."""
    device = torch.get_default_device()
    linear: nn.Linear = nn.utils.skip_init(nn.Linear, channels, out, bias=bias, device=device)
    return linear
