"""Count the blocks, parameters, multiply-accumulates, norms and scalars of a network."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ..config import ModelConfig, TheoryConfig
from ..errors import system_errors_explained
from .architectures import THEORY_NETWORKS, find_architecture
from .blocks import PostActivationBlock
from .create import build
from .layers import l2_parameters, weighted_layers


@dataclass(frozen=True)
class BlockRow:
    """Consecutive blocks that are equal, `first` to `last`, counted from 1."""

    first: int
    last: int
    skip: str
    branch: str
    merge: str
    parameters: int
    """Number of parameters of each block."""


@dataclass(frozen=True)
class Description:
    """The counts that `describe` returns."""

    config: ModelConfig | TheoryConfig
    input_shape: tuple[int, ...]
    num_blocks: int
    parameters: int
    l2_parameters: int
    macs: int
    """Multiply-accumulates of convolutions and dense layers for one example."""
    norms: int
    branch_scalars: int
    scalar_biases: int
    blocks: tuple[BlockRow, ...]


@system_errors_explained()
def describe(config: ModelConfig | TheoryConfig) -> Description:
    """Count the blocks, parameters and multiply-accumulates of a network, without memory for its weights.

    Args:
        config: name and options of the network; for an existing network, `model.config`.

    >>> describe(ModelConfig("wrn16_2", scheme="skipinit")).branch_scalars
    6
    """
    with torch.device("meta"):
        model = build(config)
        shape = _input_shape(config, model.in_channels)
        # In evaluation mode, because batch norm refuses to train with one value per channel.
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model.eval()(torch.empty(1, *shape))
    scalars = [name for name, parameter in model.named_parameters() if parameter.dim() == 0]
    return Description(
        config=model.config,
        input_shape=shape,
        num_blocks=model.num_blocks,
        parameters=count_parameters(model),
        l2_parameters=sum(parameter.numel() for parameter in l2_parameters(model).values()),
        macs=counter.get_total_flops() // 2,
        norms=sum(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()),
        branch_scalars=sum(name.endswith("merge.alpha") for name in scalars),
        scalar_biases=sum(name.endswith(".bias") for name in scalars),
        blocks=tuple(_block_rows(model.blocks)),
    )


def count_parameters(module: nn.Module) -> int:
    """The number of learnable values."""
    return sum(parameter.numel() for parameter in module.parameters())


def _input_shape(config: ModelConfig | TheoryConfig, channels: int) -> tuple[int, ...]:
    if isinstance(config, TheoryConfig):
        return (channels, 32, 32) if THEORY_NETWORKS[config.name].convolutional else (channels,)
    size = find_architecture(config.name).image_size
    return channels, size, size


def _block_rows(blocks: nn.Sequential) -> list[BlockRow]:
    facts = [
        (_skip(block), _branch(block), _merge(block), count_parameters(block)) for block in blocks.children()
    ]
    rows, first = [], 1
    for alike, run in groupby(facts):
        last = first + len(list(run)) - 1
        rows.append(BlockRow(first, last, *alike))
        first = last + 1
    return rows


def _skip(block: nn.Module) -> str:
    skip = block.get_submodule("skip")
    weights = weighted_layers(skip)
    if weights:
        return _layer(weights[0])
    return "identity" if isinstance(skip, nn.Identity) else "every second pixel"


def _branch(block: nn.Module) -> str:
    parts = [part for name, part in block.named_children() if name in ("preactivation", "branch")]
    layers = [module for part in parts for module in part.modules()]
    words = {"GhostBatchNorm2d": "BN", "ReLU": "ReLU", "ScalarBias": "+b"}
    shown = [
        _layer(m) if isinstance(m, nn.Conv2d | nn.Linear) else words.get(type(m).__name__, "") for m in layers
    ]
    return " ".join(word for word in shown if word)


def _layer(layer: nn.Conv2d | nn.Linear) -> str:
    if isinstance(layer, nn.Linear):
        return f"dense {layer.in_features}→{layer.out_features}"
    stride = f"/{layer.stride[0]}" if layer.stride[0] > 1 else ""
    return f"{layer.kernel_size[0]}×{layer.kernel_size[1]}{stride} {layer.in_channels}→{layer.out_channels}"


def _merge(block: nn.Module) -> str:
    """The equation in the first line of the merge's docstring; in ResNet-V1 with the ReLU after it."""
    equation = (type(block.get_submodule("merge")).__doc__ or "").partition("\n")[0]
    if not isinstance(block, PostActivationBlock):
        return equation
    return f"ReLU({equation} + b)" if hasattr(block.activation, "bias") else f"ReLU({equation})"
