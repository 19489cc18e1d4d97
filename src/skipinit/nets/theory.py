"""The networks of Figures 2 and 5, as appendices B and C define them: a stem, then x + W g(x) without end.

Momentum 1 makes a norm's running averages the statistics of the last batch: the paper's "momentum 0,
updated once".
"""

from __future__ import annotations

import torch
from torch import nn

from ..config import TheoryConfig
from ..errors import unknown_name
from . import init
from .architectures import THEORY_NETWORKS
from .blocks import PreActivationBlock
from .layers import Named, empty_conv, empty_linear
from .merge import Add
from .network import ResidualNet
from .norm import GhostBatchNorm2d


def theory_net(config: TheoryConfig, generator: torch.Generator | None = None) -> ResidualNet:
    """Build one of the four; He where there are ReLUs, LeCun where all is linear."""
    if config.name not in THEORY_NETWORKS:
        raise unknown_name("theory network", config.name, THEORY_NETWORKS)
    kind = THEORY_NETWORKS[config.name]
    channels, width = config.in_channels or kind.in_channels, config.width or kind.width

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
    blocks: list[nn.Module] = [
        PreActivationBlock(before(width), weights(), Add()) for _ in range(config.blocks)
    ]
    net = ResidualNet(config, channels, stem, blocks, {})
    (init.he if kind.relu else init.lecun)(net, generator)
    return net
