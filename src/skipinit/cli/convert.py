"""`skipinit convert`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import tyro

from ..converting.plan import make_plan
from ..errors import ConfigError, MissingExtraError
from ..nets.own import is_own, load_model
from ..notation import read_shape
from .flags import Count, Flag, Json, Model, given


def convert(
    model: Model,
    input: Annotated[str, tyro.conf.arg(metavar="SHAPE")],
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")],
    scheme: str = "skipinit",
    keep_function: Flag = False,
    alpha: Annotated[float | None, given("NUMBER")] = None,
    biases: Flag = False,
    no_biases: Flag = False,
    dropout: float = 0.2,
    tokens: Count = None,
    exclude: Annotated[tuple[str, ...], given("NAME [NAME ...]")] = (),
    only: Annotated[tuple[str, ...], given("NAME [NAME ...]")] = (),
    strict: Flag = False,
    seed: int = 0,
    force: Flag = False,
    all: Flag = False,
    json_: Json = False,
) -> None:
    """Remove normalization from your own residual network.

    MODEL is package.module:factory.
    - This imports the module and calls the factory without arguments: it runs that
      code, so name only code that you trust.
    - DIR gets the new weights (model.safetensors), the changes (report.txt,
      report.json), and a plot of skip and branch before and after (balance.svg).
    - To load the weights, call `skipinit.convert` on the same model with the same
      options, then `load_state_dict`.

    Example: skipinit convert mypackage:make_model --input 2x3x224x224 --out new

    Args:
        model: Where the model is made.
        input: Shape of a batch that the model takes, such as 2x3x224x224.
        out: Folder for weights and report.
        scheme: The new scheme: skipinit, regularized-skipinit, fixup, fixup-dropout, divide-sqrt2, none.
        keep_function: Fold batch norm into the layers; outputs in evaluation mode stay the same.
        alpha: Initial value of SkipInit's branch scalars; 0 if not given, 1 with --keep-function.
        biases: Give every convolution a bias; if neither flag is given, the scheme decides.
        no_biases: Give no convolution a bias.
        dropout: Drop probability before the classifier, in the schemes that have it.
        tokens: Number of token ids, for a language model: the batch has random ids below it.
        exclude: Names of modules to leave unchanged; * matches anything.
        only: Names of modules to change; all others stay unchanged.
        strict: Fail if a branch cannot get its scalar or a norm cannot be removed.
        seed: Seed of the factory and of the new weights.
        force: Replace an earlier conversion in DIR.
        all: Print a line for every block.
    """
    if biases and no_biases:
        raise ConfigError("--biases and --no-biases exclude each other; give one")
    if tokens is not None and tokens < 1:
        raise ConfigError(f"--tokens {tokens} is not allowed; it must be 1 or more")
    with_biases = biases if biases or no_biases else None
    make_plan(scheme, keep_function, alpha, with_biases, dropout, seed)
    shape = read_shape(input)
    if (out / "model.safetensors").exists() and not force:
        raise ConfigError(f"{out} holds a conversion already; give another folder, or --force to replace it")
    if not is_own(model):
        raise ConfigError(
            f"{model!r} is not a path of the form package.module:factory; for a network of this package use "
            "skipinit.create_model(..., scheme=...)"
        )
    import torch

    from ..converting.convert import convert as remove_norms
    from ..files import write_whole
    from ..nets.create import weights_of

    ids = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    conversion = remove_norms(
        load_model(model),
        torch.Size(shape) if tokens is None else torch.randint(tokens, shape, generator=ids),
        scheme=scheme,
        keep_function=keep_function,
        alpha=alpha,
        biases=with_biases,
        dropout=dropout,
        exclude=exclude,
        only=only,
        strict=strict,
        seed=seed,
    )
    text = conversion.to_text(every=all)
    write_whole(out / "report.txt", lambda file: file.write(f"{text}\n".encode()))
    write_whole(out / "report.json", lambda file: file.write(f"{conversion.to_json()}\n".encode()))
    try:
        conversion.plot(out / "balance.svg")
    except MissingExtraError as error:  # the conversion is complete without the plot
        print(f"skipinit: balance.svg is left out: {error}", file=sys.stderr)
    write_whole(out / "model.safetensors", lambda file: file.write(weights_of(conversion.model)))
    print(conversion.to_json() if json_ else text)
    print(f"wrote {out}", file=sys.stderr)
