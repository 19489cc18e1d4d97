"""A network in counts, without torch: its layers are played through on shapes alone.

What is counted is what a training step must do and keep: multiply-accumulates, parameters, and the values
that the forward pass leaves for the backward pass. A convolution and a norm keep their input, a ReLU its
output, a branch scalar the branch; what two layers keep is there once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ..config import ModelConfig
from ..nets.architectures import Architecture, find_architecture
from ..nets.schemes import Design, resolve


@dataclass(frozen=True)
class Workload:
    """Of one network on images of one size."""

    macs: int
    """Multiply-accumulates of the forward pass, for one example."""
    layers: int
    """Convolutions and dense layers."""
    parameters: int
    kept: int
    """Values kept for the backward pass, for one example."""
    kept_by_chains: int
    """Besides, where blocks run as chains (`training.chain`): the gradients of all their layers at once, less
    the branches, which chains do not keep for their scalars."""


CHAINED_CHANNELS = frozenset((16, 32, 64, 128))
"""Of blocks that can run as chains."""


@cache
def count_work(config: ModelConfig, side: int) -> Workload:
    """The network on images of `side` × `side` pixels."""
    architecture = find_architecture(config.name)
    tape = _Tape(resolve(config, architecture))
    image = _Tensor(config.in_channels or 3, side)
    last = _PLAYERS[architecture.family](tape, architecture, image)
    tape.classify(last, config.num_classes or architecture.num_classes)
    return Workload(tape.macs, tape.layers, tape.parameters, tape.kept, tape.kept_by_chains)


@dataclass
class _Tensor:
    """One example's channels × side × side values, and whether something keeps them already."""

    channels: int
    side: int
    kept: bool = False

    @property
    def values(self) -> int:
        return self.channels * self.side**2


class _Tape:
    """Layers as `nets.layers` builds them, counted as they are passed."""

    def __init__(self, design: Design) -> None:
        self.design = design
        self.macs = self.layers = self.parameters = self.kept = self.kept_by_chains = 0

    def conv(self, x: _Tensor, out: int, size: int, stride: int = 1) -> _Tensor:
        x = self._shift(x)
        self._keep(x)
        y = _Tensor(out, -(-x.side // stride))
        weights = x.channels * out * size**2
        self.macs += weights * y.side**2
        self.parameters += weights + (out if self.design.conv_bias else 0)
        self.layers += 1
        return y

    def norm(self, x: _Tensor) -> _Tensor:
        """[BN] of a branch."""
        return self._norm(x) if self.design.branch_norm else x

    def final_norm(self, x: _Tensor) -> _Tensor:
        """[BN] before the last ReLU."""
        return self._norm(x) if self.design.final_norm else x

    def relu(self, x: _Tensor) -> _Tensor:
        x = self._shift(x)
        y = _Tensor(x.channels, x.side)
        self._keep(y)
        return y

    def relu_merged(self, x: _Tensor) -> _Tensor:
        """The ReLU after a merge, with SkipInit's scalar bias on ResNet-V1."""
        if self.design.merge_bias and not self.design.layer_biases:
            self.parameters += 1
        return self.relu(x)

    def pool(self, x: _Tensor, padding: int) -> _Tensor:
        """3 × 3 maxima at every second pixel; their places are kept as 64-bit numbers."""
        padded = x if not padding else _Tensor(x.channels, x.side + 2 * padding)
        self._keep(padded)
        y = _Tensor(x.channels, -(-x.side // 2))
        self.kept += 2 * y.values
        return y

    def merge(self, skip: _Tensor, branch: _Tensor) -> _Tensor:
        out = _Tensor(branch.channels, branch.side)
        if self.design.merge == "scale":
            self._keep(branch)
            self.parameters += 1
        elif self.design.merge == "norm-output":
            out = self._norm(out)
        elif self.design.merge == "norm-skip":
            self._norm(skip)
        return out

    def chain(self, blocks: int, last: _Tensor) -> None:
        """Blocks of two 3 × 3 convolutions and nothing else, all with outputs like `last`."""
        design = self.design
        bare = not (design.branch_norm or design.conv_bias or design.layer_biases)
        if bare and design.merge in ("add", "divide-sqrt2", "scale") and last.channels in CHAINED_CHANNELS:
            self.kept_by_chains += blocks * last.values * (1 if design.merge == "scale" else 2)

    def classify(self, x: _Tensor, classes: int) -> None:
        means = self._shift(_Tensor(x.channels, 1))
        self._keep(means)
        self.macs += x.channels * classes
        self.parameters += (x.channels + 1) * classes
        self.layers += 1

    def _norm(self, x: _Tensor) -> _Tensor:
        self._keep(x)
        self.parameters += 2 * x.channels
        return _Tensor(x.channels, x.side)

    def _shift(self, x: _Tensor) -> _Tensor:
        """[+ b], Fixup's scalar bias: a tensor of its own."""
        if not self.design.layer_biases:
            return x
        self.parameters += 1
        return _Tensor(x.channels, x.side)

    def _keep(self, x: _Tensor) -> None:
        if not x.kept:
            self.kept += x.values
            x.kept = True


def _wide_resnet(tape: _Tape, architecture: Architecture, image: _Tensor) -> _Tensor:
    x = tape.conv(image, 16, 3)
    for group, blocks in enumerate(architecture.groups):
        out = 16 * 2**group * architecture.widen
        for index in range(blocks):
            stride = 2 if group and index == 0 else 1
            h = tape.relu(tape.norm(x))
            skip = x if x.channels == out and stride == 1 else tape.conv(h, out, 1, stride)
            branch = tape.relu(tape.norm(tape.conv(h, out, 3, stride)))
            x = tape.merge(skip, tape.conv(branch, out, 3))
        tape.chain(blocks, x)
    return tape.relu(tape.final_norm(x))


def _resnet_v2(tape: _Tape, architecture: Architecture, image: _Tensor) -> _Tensor:
    x = tape.pool(tape.conv(image, 64, 7, 2), padding=1)
    for group, blocks in enumerate(architecture.groups):
        middle, out = 64 * 2**group, 256 * 2**group
        for index in range(blocks):
            stride = 2 if index == blocks - 1 and group < len(architecture.groups) - 1 else 1
            h = tape.relu(tape.norm(x))
            skip = x if x.channels == out else tape.conv(h, out, 1, stride)
            branch = tape.relu(tape.norm(tape.conv(h, middle, 1)))
            branch = tape.relu(tape.norm(tape.conv(branch, middle, 3, stride)))
            x = tape.merge(skip, tape.conv(branch, out, 1))
    return tape.relu(tape.final_norm(x))


def _resnet_v1(tape: _Tape, architecture: Architecture, image: _Tensor) -> _Tensor:
    x = tape.pool(tape.relu(tape.norm(tape.conv(image, 64, 7, 2))), padding=0)
    for group, blocks in enumerate(architecture.groups):
        middle, out = 64 * 2**group, 256 * 2**group
        for index in range(blocks):
            stride = 2 if group and index == 0 else 1
            skip = x if x.channels == out else tape.norm(tape.conv(x, out, 1, stride))
            branch = tape.relu(tape.norm(tape.conv(x, middle, 1, stride)))
            branch = tape.relu(tape.norm(tape.conv(branch, middle, 3)))
            x = tape.relu_merged(tape.merge(skip, tape.norm(tape.conv(branch, out, 1))))
    return x


_PLAYERS = {"wide-resnet": _wide_resnet, "resnet-v2": _resnet_v2, "resnet-v1": _resnet_v1}
