"""Residual networks with batch norm wherever people put it, and trained statistics to go with it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def with_statistics(model: nn.Module, seed: int = 0) -> nn.Module:
    """As after training: running averages, scales and shifts that are not those of a fresh norm."""
    generator = torch.Generator().manual_seed(seed)
    for norm in model.modules():
        if isinstance(norm, _BatchNorm):
            norm.running_mean.normal_(0, 0.5, generator=generator)
            norm.running_var.uniform_(0.3, 3, generator=generator)
            if norm.affine:
                with torch.no_grad():
                    norm.weight.normal_(1, 0.5, generator=generator)
                    norm.bias.normal_(0, 0.5, generator=generator)
    return model


def scalars(model: nn.Module, kind: str = "branch_alpha") -> dict[str, nn.Parameter]:
    """The parameters that a conversion added under that name."""
    return {name: p for name, p in model.named_parameters() if name.endswith(kind)}


def relative_difference(output: Tensor, wanted: Tensor) -> float:
    """max |output - wanted| / max |wanted|"""
    return ((output - wanted).abs().max() / wanted.abs().max()).item()


class BasicBlock(nn.Module):
    """ResNet-18's block: the ReLU is one module, used twice, in place."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample = None
        if stride != 1 or channels != out:
            conv = nn.Conv2d(channels, out, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += identity
        return self.relu(out)


class ResNet18(nn.Module):
    """ResNet-18's shape, narrow."""

    def __init__(self, width: int = 8, channels: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inside = width
        for group in range(4):
            out = width * 2**group
            blocks = BasicBlock(inside, out, 2 if group else 1), BasicBlock(out, out, 1)
            setattr(self, f"layer{group + 1}", nn.Sequential(*blocks))
            inside = out
        self.fc = nn.Linear(inside, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


class CifarResNet(nn.Module):
    """6n + 2 layers of the first ResNet paper: post-activation, three groups, subsampled and padded skips."""

    def __init__(self, n: int, width: int = 16, channels: int = 1) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        sizes = [(width, width, 1)] * n + [(width, 2 * width, 2)] + [(2 * width, 2 * width, 1)] * (n - 1)
        sizes += [(2 * width, 4 * width, 2)] + [(4 * width, 4 * width, 1)] * (n - 1)
        self.blocks = nn.Sequential(*(OutOfPlaceBlock(*size) for size in sizes))
        self.fc = nn.Linear(4 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))


class OutOfPlaceBlock(nn.Module):
    """A basic block without in-place operations, the skip subsampled and zero-padded where shapes change."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.relu2 = nn.ReLU()
        self.stride, self.pad = stride, out - channels

    def forward(self, x: Tensor) -> Tensor:
        skip = nn.functional.pad(x[..., :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.pad))
        return self.relu2(skip + self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x))))))


class Odd(nn.Module):
    """Norms of a skip, of a group, depthwise, dilated and biased convolution, without affine, in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 1, 1)
        self.skip_norm = nn.BatchNorm2d(8)
        self.grouped = nn.Sequential(
            nn.Conv2d(8, 8, 3, 1, 1, groups=2, bias=False), nn.BatchNorm2d(8), nn.ReLU()
        )
        self.depthwise = nn.Sequential(nn.Conv2d(8, 16, 3, 1, 1, groups=8), nn.BatchNorm2d(16), nn.ReLU())
        self.dilated = nn.Sequential(
            nn.Conv2d(16, 8, 3, 1, 2, dilation=2, bias=True), nn.BatchNorm2d(8, affine=False)
        )
        self.used_twice = nn.Conv2d(8, 8, 1)
        self.after_used_twice = nn.BatchNorm2d(8)
        self.dense = nn.Linear(8, 8, bias=False)
        self.dense_norm = nn.BatchNorm1d(8)
        self.dense_out = nn.Linear(8, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for _ in range(2 if x.sum() > 1e9 else 1):  # Control flow on the data: no tracer gets through.
            x = self.skip_norm(x) + self.dilated(self.depthwise(self.grouped(x)))
        x = x + self.after_used_twice(self.used_twice(self.used_twice(x).relu()))
        h = x.mean((2, 3))
        return self.head(h + self.dense_out(self.dense_norm(self.dense(h)).relu()))


class Lines(nn.Module):
    """One-dimensional: BatchNorm1d after convolutions of sequences, and after a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(3, 8, 3, padding=1)
        self.conv1, self.norm1 = nn.Conv1d(8, 8, 3, padding=1), nn.BatchNorm1d(8)
        self.conv2, self.norm2 = nn.Conv1d(8, 8, 3, padding=1, bias=False), nn.BatchNorm1d(8)
        self.dense, self.norm3 = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        lines = x.transpose(1, 2)
        hidden = self.norm3(self.dense(lines).transpose(1, 2)).transpose(1, 2).relu()
        return lines + self.last(hidden)


class TiedNorm(nn.Module):
    """One norm in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(6, 6), nn.Linear(6, 6), nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.b(self.norm(self.a(x)).relu()))


class TiedHead(nn.Module):
    """A weight under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, 1, 1)
        self.conv = nn.Conv2d(4, 4, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Conv2d(4, 2, 1)
        self.tied = self.head.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(x + self.norm(self.conv(x.relu())))
