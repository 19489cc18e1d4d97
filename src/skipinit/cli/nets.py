"""`skipinit models`, `skipinit schemes`, `skipinit describe`."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from ..config import ModelConfig, TheoryConfig
from ..errors import ConfigError
from ..nets.architectures import THEORY_NETWORKS, find_architecture, list_models
from ..nets.schemes import SCHEMES
from ..notation import count_text
from .flags import Count, Json, Model, NetworkFlags


def models(
    pattern: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PATTERN")] = "*", json_: Json = False
) -> None:
    """List the names of the networks.

    Args:
        pattern: List only names that match, such as "wrn*".
    """
    names = list_models(pattern)
    if not names:
        raise ConfigError(f"no listed model matches {pattern!r}; there are {', '.join(list_models())}")
    if json_:
        print(json.dumps(names))
        return
    table = Table("model", "residual blocks", "what it is", box=None, pad_edge=False)
    for name in names:
        if name in THEORY_NETWORKS:
            theory = THEORY_NETWORKS[name]
            table.add_row(name, "any", f"Figure {theory.figure}: {theory.equation}")
        else:
            architecture = find_architecture(name)
            table.add_row(name, str(architecture.num_blocks), _WORDS[architecture.family])
    console = Console()
    console.print(table)
    console.print("\nOther Wide-ResNets of depth 6m + 4 exist, too: wrn{depth}_{width}.", style="dim")


_WORDS = {
    "wide-resnet": "Wide-ResNet for 32 x 32 images",
    "resnet-v2": "pre-activation bottleneck ResNet for 224 x 224 images",
    "resnet-v1": "original bottleneck ResNet for 224 x 224 images",
}


def schemes(json_: Json = False) -> None:
    """List the schemes: batch norm, SkipInit, Fixup and others."""
    if json_:
        print(json.dumps([dataclasses.asdict(scheme) for scheme in SCHEMES.values()]))
        return
    table = Table("scheme", "block", "in the paper", box=None, pad_edge=False)
    for scheme in SCHEMES.values():
        table.add_row(scheme.name, scheme.equation, scheme.source)
    Console().print(table)


def describe(
    model: Model,
    network: Annotated[NetworkFlags, tyro.conf.arg(name="")] = NetworkFlags(),
    blocks: Count = None,
    json_: Json = False,
) -> None:
    """Show the blocks, parameters and multiply-accumulates of a network.

    Args:
        model: Name of the network: see `skipinit models`.
        network: The network's scheme and options.
        blocks: Number of residual blocks, for the theory networks (fc_linear and others).
    """
    from ..nets.describe import describe as describe_network

    if model in THEORY_NETWORKS:
        network.refuse(model, "a theory network; it takes --blocks")
        found = describe_network(TheoryConfig(model) if blocks is None else TheoryConfig(model, blocks))
    elif blocks is not None:
        raise ConfigError(f"--blocks belongs to the theory networks, {', '.join(THEORY_NETWORKS)}")
    else:
        found = describe_network(ModelConfig(model, **network.of(ModelConfig)))
    if json_:
        print(json.dumps(dataclasses.asdict(found)))
        return
    console = Console()
    scheme = "" if isinstance(found.config, TheoryConfig) else f", scheme {found.config.scheme}"
    console.print(f"[bold]{model}[/bold]{scheme}, input {' x '.join(map(str, found.input_shape))}")
    table = Table("blocks", "skip", "branch", "output", "parameters each", box=None, pad_edge=False)
    for row in found.blocks:
        numbers = f"{row.first}" if row.first == row.last else f"{row.first}-{row.last}"
        table.add_row(numbers, row.skip, row.branch, row.merge, f"{row.parameters:,}")
    console.print(table)
    console.print(
        f"d = {count_text(found.num_blocks, 'residual block')} · {found.parameters:,} parameters, "
        f"{found.l2_parameters:,} of them under L2\n{found.macs:,} multiply-accumulates per example · "
        f"{count_text(found.norms, 'norm')} · {count_text(found.branch_scalars, 'branch scalar')} · "
        f"{found.scalar_biases} scalar biases"
    )
