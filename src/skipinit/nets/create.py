"""Build networks from names and configs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..config import ModelConfig, TheoryConfig
from ..errors import ConfigError, system_errors_explained
from ..notation import check_seed
from .architectures import THEORY_NETWORKS, find_architecture
from .blocks import ResidualNet
from .layers import Layers, he, lecun, require_memory, scale_by_depth, zero_last
from .networks import resnet_v1, resnet_v2, theory_net, wide_resnet
from .pretrained import load
from .schemes import Design, resolve, settle

_PARTS = {"wide-resnet": wide_resnet, "resnet-v2": resnet_v2, "resnet-v1": resnet_v1}


@system_errors_explained()
def create_model(name: str, *, seed: int | None = None, **options: Any) -> ResidualNet:
    """Build and initialize a network.

    Args:
        name: a name of `list_models()`, or any wrn{6m+4}_{k}.
        seed: seed of the weights; torch's global generator is not used. Without it, torch's generator is.
        options: fields of `ModelConfig`: `scheme` (one of `list_schemes()`), `num_classes`, `in_channels`,
            `alpha`, `ghost_batch`, `dropout`, `biases`, `scalar_bias`, ...; for the theory networks those
            of `TheoryConfig`: `blocks`, `width`, `in_channels`.

    >>> model = create_model("wrn16_2", scheme="skipinit", num_classes=10)
    >>> model.num_blocks, model.blocks[0].merge.alpha.item()
    (6, 0.0)
    """
    return build(make_config(name, **options), seed)


def make_config(name: str, **options: Any) -> ModelConfig | TheoryConfig:
    """The config of a network by name and options."""
    kind = TheoryConfig if isinstance(name, str) and name in THEORY_NETWORKS else ModelConfig
    allowed = [field.name for field in dataclasses.fields(kind) if field.name != "name"]
    for option in options:
        if option not in allowed:
            raise ConfigError(f"{name}: option {option!r} is not known; it takes {', '.join(allowed)}")
    return kind(name, **options)


@system_errors_explained()
def build(config: ModelConfig | TheoryConfig, seed: int | None = None) -> ResidualNet:
    """Build and initialize the network that a config describes.

    Args:
        config: name and options of the network.
        seed: seed of the weights; torch's global generator is not used. Without it, torch's generator is.

    >>> build(ModelConfig("wrn16_2", scheme="skipinit")).num_blocks
    6
    """
    if not isinstance(config, ModelConfig | TheoryConfig):
        raise ConfigError(
            f"a {type(config).__name__} is not a config; give a ModelConfig or TheoryConfig, such as "
            "ModelConfig('wrn16_2')"
        )
    generator = None
    if seed is not None:
        generator = torch.Generator(torch.get_default_device()).manual_seed(check_seed("seed", seed))
    if isinstance(config, TheoryConfig):
        return theory_net(config, generator)
    config, architecture = settle(config), find_architecture(config.name)
    design = resolve(config, architecture)
    assert config.in_channels is not None
    assert config.num_classes is not None
    parts = _PARTS[architecture.family](architecture, Layers(design), config.in_channels, config.num_classes)
    net = ResidualNet(config, config.in_channels, *parts)
    require_memory(net)
    _initialize(net, design, generator)
    return net


def _initialize(net: ResidualNet, design: Design, generator: torch.Generator | None) -> None:
    """He everywhere (section 2.3), then the classifier's own start, then Fixup's changes (section 6)."""
    he(net, generator)
    if design.classifier_init == "lecun":
        lecun(net.head, generator)
    elif design.classifier_init == "zero":
        zero_last([net.head])
    branches: list[nn.Module] = [block.get_submodule("branch") for block in net.blocks]
    if design.depth_scaled:
        scale_by_depth(branches)
    if design.zero_last:
        zero_last(branches)


@system_errors_explained()
def from_pretrained(folder: str | Path) -> ResidualNet:
    """Load a network that `ResidualNet.save_pretrained` wrote.

    Reads JSON and safetensors and runs no code of the folder.

    Args:
        folder: path of the folder.

    >>> model = create_model("wrn16_2", scheme="skipinit")
    >>> model.save_pretrained("my-model")
    >>> same = from_pretrained("my-model")
    """

    def build_empty(config: ModelConfig | TheoryConfig) -> ResidualNet:
        with torch.device("meta"):
            return build(config)

    return load(Path(folder), build_empty)
