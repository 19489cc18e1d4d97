"""Residual blocks, which give skip and branch to a merge, and the layers that a `Design` puts into them."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

import torch
from torch import Tensor, nn

from .merges import Add, DivideSqrt2, GhostBatchNorm2d, NormalizeOutput, NormalizeSkip, SkipInit
from .schemes import Design

Named = dict[str, nn.Module]
"""Layers in order, with their names."""
Layer = TypeVar("Layer", nn.Conv2d, nn.Linear)


def chain(layers: Named) -> nn.Sequential:
    """A sequence of named layers."""
    return nn.Sequential(OrderedDict(layers))


class Subsample(nn.Module):
    """x at every second row and column: a 1x1 max pool of stride 2"""

    def forward(self, x: Tensor) -> Tensor:
        """Returns a view."""
        return x[..., ::2, ::2]


class PreActivationBlock(nn.Module):
    """merge(x, f(relu(x))): the skip is the identity, or subsampling where the stride is 2"""

    def __init__(self, preactivation: Named, branch: Named, merge: nn.Module, stride: int = 1) -> None:
        super().__init__()
        self.skip = nn.Identity() if stride == 1 else Subsample()
        self.preactivation = chain(preactivation)
        self.branch = chain(branch)
        self.merge = merge

    def forward(self, x: Tensor) -> Tensor:
        """The merge takes x without the activation."""
        out: Tensor = self.merge(self.skip(x), self.branch(self.preactivation(x)))
        return out


class TransitionBlock(nn.Module):
    """merge(W h, f(h)), h = relu(x): where the channels change, the skip is a 1x1 convolution of h"""

    def __init__(self, preactivation: Named, skip: Named, branch: Named, merge: nn.Module) -> None:
        super().__init__()
        self.preactivation = chain(preactivation)
        self.skip = chain(skip)
        self.branch = chain(branch)
        self.merge = merge

    def forward(self, x: Tensor) -> Tensor:
        """Skip and branch share the activation."""
        h = self.preactivation(x)
        out: Tensor = self.merge(self.skip(h), self.branch(h))
        return out


class RawTransitionBlock(TransitionBlock):
    """merge(W x, f(relu(x))): the 1x1 convolution of the skip sees x before the activation"""

    def forward(self, x: Tensor) -> Tensor:
        """Only the branch has the activation."""
        out: Tensor = self.merge(self.skip(x), self.branch(self.preactivation(x)))
        return out


class PostActivationBlock(nn.Module):
    """relu(merge(S x, f(x)) [+ b]): ResNet-V1, in which no skip is the identity (appendix F)"""

    def __init__(self, skip: Named, branch: Named, merge: nn.Module, activation: Named) -> None:
        super().__init__()
        self.skip = chain(skip) if skip else nn.Identity()
        self.branch = chain(branch)
        self.merge = merge
        self.activation = chain(activation)

    def forward(self, x: Tensor) -> Tensor:
        """The ReLU comes after the merge."""
        out: Tensor = self.activation(self.merge(self.skip(x), self.branch(x)))
        return out


class ScalarBias(nn.Module):
    """x + b, b a learnable scalar that starts at 0"""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """Add the scalar to every value."""
        return x + self.bias


class Dropout(nn.Dropout):
    """x * mask / (1 - p) in training

    A caller can set `mask`, of the shape of the input; otherwise torch's generator draws it.
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
    """Builds the layers of blocks, stems and heads; their names have numbers in order of use."""

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
        """Batch norm with the options of the design."""
        return GhostBatchNorm2d(
            channels,
            ghost_batch=self.design.ghost_batch,
            batch_statistics_at_test=self.design.batch_statistics_at_test,
        )

    def conv(self, channels: int, out: int, size: int, stride: int) -> nn.Conv2d:
        """A convolution, with a bias if the design says so."""
        return empty_conv(channels, out, size, stride, bias=self.design.conv_bias)

    def merge(self, channels: int) -> nn.Module:
        """The merge of the design."""
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
    """A convolution without torch's initialization, which would draw every weight twice."""
    conv = nn.Conv2d(channels, out, size, stride=stride, padding=size // 2, bias=bias, device="meta")
    return _with_memory(conv)


def empty_linear(channels: int, out: int, bias: bool = True) -> nn.Linear:
    """A dense layer without torch's initialization."""
    return _with_memory(nn.Linear(channels, out, bias=bias, device="meta"))


def _with_memory(layer: Layer) -> Layer:
    """Parameters on the default device, uninitialized. (`nn.utils.skip_init` imports sympy: a second.)"""
    for name, parameter in layer.named_parameters():
        layer.register_parameter(name, nn.Parameter(torch.empty(parameter.shape)))
    return layer
