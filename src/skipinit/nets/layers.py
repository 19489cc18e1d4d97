"""The layers between the merges, built from a `Design`; their initialization; which of them have L2."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from ..errors import SkipinitError
from ..notation import bytes_text
from .merges import Add, DivideSqrt2, GhostBatchNorm2d, NormalizeOutput, NormalizeSkip, SkipInit
from .schemes import Design

Weighted = nn.Conv2d | nn.Linear
Transposed = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
Layer = TypeVar("Layer", nn.Conv2d, nn.Linear)


def weighted_layers(module: nn.Module) -> list[Weighted]:
    """The convolutions and dense layers of a module, in order."""
    return [m for m in module.modules() if isinstance(m, nn.Conv2d | nn.Linear)]


def require_memory(net: nn.Module) -> None:
    """Raise if the weights do not fit into memory, before they are drawn.

    The system grants more memory than it has. When that is written to, it kills this process or another.
    """
    needed = sum(weight.nbytes for weight in net.parameters() if weight.device.type == "cpu")
    free = _free_memory()
    if needed > free:
        raise SkipinitError(
            f"out of memory: the weights take {bytes_text(needed)}, and {bytes_text(round(free))} are free; "
            "use a smaller network"
        )


def _free_memory() -> float:
    """Bytes of memory that are available; infinite if the system does not say."""
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * float(line.split()[1])
    return math.inf


@torch.no_grad()
def scale_normal(layer: Weighted | Transposed, gain: float, generator: torch.Generator | None) -> None:
    """w ~ N(0, gain / fan-in), b = 0."""
    with _weight_to_write(layer) as weight:
        weight.normal_(0, math.sqrt(gain / _fan_in(layer)), generator=generator)
    if layer.bias is not None:
        layer.bias.zero_()


def _fan_in(layer: Weighted | Transposed) -> float:
    """The number of products that an output sums; for a transposed convolution, on average."""
    if not isinstance(layer, LINEAR_MAPS):  # Its weight may be (in, out); the bias tells which axis is out.
        return layer.weight.numel() / layer.bias.numel()
    if isinstance(layer, TRANSPOSED_CONVOLUTIONS):
        products = layer.in_channels // layer.groups * math.prod(layer.kernel_size)
        return products / math.prod(layer.stride)
    return layer.weight[0].numel()


@torch.no_grad()
def scale_weight(layer: nn.Module, factor: float) -> None:
    """w becomes factor * w."""
    with _weight_to_write(layer) as weight:
        weight.mul_(factor)


@contextmanager
def _weight_to_write(layer: Any) -> Iterator[Tensor]:
    """The weight, to write into. A parametrized one is computed on each access, so it is assigned after."""
    weight = layer.weight
    yield weight
    if is_parametrized(layer, "weight"):
        layer.weight = weight


def he(module: nn.Module, generator: torch.Generator | None = None) -> None:
    """Weights of variance 2 / fan-in: a ReLU and the layer after it together keep the variance."""
    for layer in weighted_layers(module):
        scale_normal(layer, 2.0, generator)


def lecun(module: nn.Module, generator: torch.Generator | None = None) -> None:
    """Weights of variance 1 / fan-in: a linear layer keeps the variance."""
    for layer in weighted_layers(module):
        scale_normal(layer, 1.0, generator)


@torch.no_grad()
def zero_last(parts: Iterable[nn.Module]) -> None:
    """The last convolution or dense layer of each part starts at zero: Fixup 1, for branches and head."""
    for part in parts:
        weighted_layers(part)[-1].weight.zero_()


@torch.no_grad()
def scale_by_depth(branches: list[nn.Module]) -> None:
    """Fixup 2: the other convolutions of each branch are scaled by d^(-1/(2m - 2)), m convolutions each."""
    for branch in branches:
        convolutions = weighted_layers(branch)
        factor = len(branches) ** (-1 / (2 * len(convolutions) - 2))
        for conv in convolutions[:-1]:
            conv.weight.mul_(factor)


CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
CONVOLUTIONS_AND_DENSE = (*CONVOLUTIONS, nn.Linear)
TRANSPOSED_CONVOLUTIONS = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
LINEAR_MAPS = (*CONVOLUTIONS_AND_DENSE, *TRANSPOSED_CONVOLUTIONS)
"""Layers of torch that compute one linear map and have `weight` and `bias`."""
_SEVERAL_MAPS = (nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase)


def is_linear_map(module: nn.Module) -> bool:
    """Whether the module computes one linear map: a layer of torch, or a dense one of another class."""
    return isinstance(module, LINEAR_MAPS) or is_dense(module)


def is_dense(module: nn.Module) -> bool:
    """Whether this is a dense layer: `nn.Linear`, or one of another class, such as transformers' `Conv1D`.

    Those have a matrix `weight`, a vector `bias` along one of its axes, and no other parameters but scalars.
    Tables, such as embeddings, have no bias.
    """
    if isinstance(module, nn.Linear):
        return True
    others = dict(module.named_parameters())
    weight, bias = others.pop("weight", None), others.pop("bias", None)
    if weight is None or bias is None or any(parameter.dim() for parameter in others.values()):
        return False
    return weight.dim() == 2 and bias.dim() == 1 and len(bias) in weight.shape


def l2_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that get L2 regularization (weight decay), by name.

    These are the weights of convolutions, dense, attention and recurrent layers. Biases, scale and shift of
    norms, branch scalars and embeddings are left out.

    Args:
        model: any module.

    >>> list(l2_parameters(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.LayerNorm(3))))
    ['0.weight']
    """
    weights = {
        f"{owner}.{name}".lstrip(".")
        for owner, module in model.named_modules()
        for name in module._parameters
        if (is_linear_map(module) and name == "weight")
        or (isinstance(module, _SEVERAL_MAPS) and "weight" in name)
    }
    return {name: parameter for name, parameter in model.named_parameters() if name in weights}


Named = dict[str, nn.Module]


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
