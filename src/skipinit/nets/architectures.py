"""The names of the networks and their sizes, as data; nothing is built here.

- wrn{n}_{k}: Wide-ResNet of n = 6m + 4 layers, k times as wide (Zagoruyko & Komodakis 2016)
- resnet{50,101,152}_v2: pre-activation bottleneck ResNet (He et al. 2016b), as in the paper's appendix G
- resnet{50,101,152}_v1: the original bottleneck ResNet (He et al. 2016a)
- fc_*, conv_relu_bn: the theory networks of Figures 2 and 5
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from ..errors import ConfigError, unknown_name

Family = Literal["wide-resnet", "resnet-v2", "resnet-v1"]


@dataclass(frozen=True)
class Architecture:
    """The numbers that define a network."""

    name: str
    family: Family
    groups: tuple[int, ...]
    """Residual blocks per group."""
    widen: int = 1

    @property
    def num_blocks(self) -> int:
        """d, the total number of residual blocks."""
        return sum(self.groups)

    @property
    def post_activation(self) -> bool:
        """Whether a ReLU follows the merge; then no skip is the identity."""
        return self.family == "resnet-v1"

    @property
    def imagenet(self) -> bool:
        """Whether the paper trains it on ImageNet; otherwise on CIFAR."""
        return self.family != "wide-resnet"

    @property
    def num_classes(self) -> int:
        """Classes of its data set in the paper: ImageNet or CIFAR-10."""
        return 1000 if self.imagenet else 10

    @property
    def image_size(self) -> int:
        """Height and width of its images in the paper."""
        return 224 if self.imagenet else 32

    @property
    def dropout(self) -> float:
        """Drop probability in schemes with dropout (sections 4 and 5)."""
        return 0.2 if self.imagenet else 0.6


@dataclass(frozen=True)
class TheoryNetwork:
    """One of the networks whose variances the paper derives (appendices B and C)."""

    figure: str
    equation: str
    normalized: bool
    relu: bool
    convolutional: bool
    width: int
    in_channels: int


THEORY_NETWORKS = {
    "fc_linear": TheoryNetwork("2a", "x + W x", False, False, False, width=1000, in_channels=100),
    "fc_linear_bn": TheoryNetwork("2b", "x + W BN(x)", True, False, False, width=1000, in_channels=100),
    "conv_relu_bn": TheoryNetwork("2c", "x + W * relu(BN(x))", True, True, True, width=100, in_channels=3),
    "fc_relu_bn": TheoryNetwork("5", "x + W relu(BN(x))", True, True, False, width=1000, in_channels=100),
}

_BOTTLENECK_GROUPS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
_VERSIONS: dict[str, Family] = {"v2": "resnet-v2", "v1": "resnet-v1"}
_RESNETS = {
    name: Architecture(name, family, groups)
    for version, family in _VERSIONS.items()
    for depth, groups in _BOTTLENECK_GROUPS.items()
    for name in [f"resnet{depth}_{version}"]
}
_LARGEST = 100_000
"""The largest depth or width; a mistyped one must not fill the memory."""
_PAPER_WIDE_RESNETS = ("wrn16_2", "wrn100_2", "wrn1000_2", "wrn16_4", "wrn28_10")


def find_architecture(name: str) -> Architecture:
    """The architecture of that name; raises ConfigError with the nearest names if there is none."""
    if name in _RESNETS:
        return _RESNETS[name]
    if name in THEORY_NETWORKS:
        raise ConfigError(
            f"{name} is a theory network, which has no scheme and cannot be trained; use it with the "
            "commands describe and probe, or in Python with create_model or TheoryConfig"
        )
    wide = re.fullmatch(r"(?i)(?:wrn|wide-?resnet)[-_]?(\d{1,18})[-_x](\d{1,18})", name)
    if wide is None and "." in name:
        raise ConfigError(
            f"model {name!r} is not known; for a model of your own write package.module:factory, with a colon"
        )
    if wide is None:
        raise unknown_name("model", name, list_models())
    architecture = _wide_resnet(int(wide[1]), int(wide[2]))
    if architecture.name != name:
        raise ConfigError(f"model {name!r} is not known; did you mean {architecture.name}?")
    return architecture


def find_theory_network(name: str) -> TheoryNetwork:
    """The theory network of that name; raises ConfigError with the nearest names if there is none."""
    if name not in THEORY_NETWORKS:
        raise unknown_name("theory network", name, THEORY_NETWORKS)
    return THEORY_NETWORKS[name]


def _wide_resnet(depth: int, widen: int) -> Architecture:
    name = f"wrn{depth}_{widen}"
    if not 1 <= widen <= _LARGEST:
        raise ConfigError(f"{name}: width {widen} is not allowed; it must be 1 to {_LARGEST:,}")
    if depth > _LARGEST:
        raise ConfigError(f"{name}: depth {depth} is not allowed; it must be {_LARGEST:,} or less")
    if depth < 10 or (depth - 4) % 6:
        below = depth - (depth - 4) % 6
        near = [f"wrn{n}_{widen}" for n in (below, below + 6) if n >= 10] or [f"wrn10_{widen}"]
        nearest = "the nearest are " + " and ".join(near) if len(near) > 1 else f"the first is {near[0]}"
        raise ConfigError(f"{name}: depth {depth} is not 6m + 4; {nearest}")
    return Architecture(name, "wide-resnet", ((depth - 4) // 6,) * 3, widen)


def list_models(pattern: str = "*") -> list[str]:
    """The names of the networks, for `create_model`. Any other wrn{6m+4}_{k} exists, too.

    Args:
        pattern: list only the names that match, with the wildcards `*`, `?` and `[...]`.

    >>> list_models("wrn16*")
    ['wrn16_2', 'wrn16_4']
    """
    return [n for n in (*_PAPER_WIDE_RESNETS, *_RESNETS, *THEORY_NETWORKS) if fnmatchcase(n, pattern)]
