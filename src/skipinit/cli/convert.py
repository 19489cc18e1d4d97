"""`skipinit convert`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from ..converting.conversions import find_scheme
from ..errors import ConfigError
from .flags import Json
from .probe import InputFlags

if TYPE_CHECKING:
    from torch import nn

_Number = tyro.conf.arg(metavar="NUMBER", help_behavior_hint="")


def convert(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    input: Annotated[str, tyro.conf.arg(metavar="SHAPE")],
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")],
    scheme: str = "skipinit",
    keep_function: bool = False,
    alpha: Annotated[float | None, _Number] = None,
    biases: Annotated[bool | None, tyro.conf.arg(metavar="{True,False}", help_behavior_hint="")] = None,
    dropout: float = 0.2,
    seed: int = 0,
    json_: Json = False,
) -> None:
    """Take normalization out of a residual network of your own.

    MODEL is package.module:factory. The module is imported and the factory called without arguments: this
    runs that code, so name what you trust. Written to DIR: the new weights (model.safetensors), what was
    changed (report.txt, report.json), and skip and branch before and after (balance.svg). The new network
    itself is `skipinit.convert` of the same model with the same options; it then takes the weights.

    Args:
        model: The model's factory.
        input: Shape of a batch that the model takes, such as 2x3x224x224.
        out: Folder for weights and report.
        scheme: What it becomes: skipinit, regularized-skipinit, fixup, fixup-dropout, divide-sqrt2, none.
        keep_function: Compute what the model computes in evaluation mode; fold batch norm into its layers.
        alpha: Start of SkipInit's branch scalars.
        biases: A bias in every convolution.
        dropout: Drop probability before the classifier, in the schemes that have it.
        seed: Seed of the new weights, and of what the factory draws.
    """
    find_scheme(scheme, keep_function)
    shape = InputFlags(input=input).shape
    if ":" not in model:
        raise ConfigError(
            f"{model!r} is not a path of the form package.module:factory; for a network of this package take "
            "skipinit.create_model(..., scheme=...)"
        )
    import torch

    from ..converting.convert import convert as take_norms_out
    from ..files import write_whole
    from ..probing.forward import load_model

    torch.manual_seed(seed)
    converted, report = take_norms_out(
        load_model(model),
        shape,
        scheme=scheme,
        keep_function=keep_function,
        report=True,
        alpha=alpha,
        biases=biases,
        dropout=dropout,
        seed=seed,
    )
    write_whole(out / "report.txt", lambda file: file.write(f"{report}\n".encode()))
    write_whole(out / "report.json", lambda file: file.write(f"{report.to_json()}\n".encode()))
    report.plot(out / "balance.svg")
    write_whole(out / "model.safetensors", lambda file: file.write(_serialize(converted)))
    print(report.to_json() if json_ else report)
    print(f"wrote {out}", file=sys.stderr)


def _serialize(model: nn.Module) -> bytes:
    """Copies, since tied weights share memory, which the format refuses."""
    from safetensors.torch import save
    from torch import Tensor

    state = model.state_dict().items()
    return save({name: value.clone().contiguous() for name, value in state if isinstance(value, Tensor)})
