"""Which commands there are."""

from __future__ import annotations

from collections.abc import Sequence

import tyro
from tyro.extras import SubcommandApp

from . import nets, train

_DESCRIPTION = "Deep residual networks with and without normalization: build, train."


def run(arguments: Sequence[str]) -> int:
    """Parse the arguments and run the command; what it returns is the exit code, None meaning 0."""
    app = SubcommandApp()
    app.command(nets.models)
    app.command(nets.schemes)
    app.command(nets.describe)
    app.command(train.train)
    app.command(train.evaluate)
    app.command(train.export)
    code = app.cli(
        prog="skipinit",
        description=_DESCRIPTION,
        args=list(arguments),
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    return int(code or 0)
