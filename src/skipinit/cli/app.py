"""The list of commands."""

from __future__ import annotations

from collections.abc import Sequence

import tyro
from tyro.extras import SubcommandApp

from ..errors import need
from . import convert, demo, nets, probe, reproduce, store, train

_DESCRIPTION = "Build, probe, convert and train residual networks with or without batch norm."

_COMMANDS = (
    demo.demo,
    nets.models,
    nets.schemes,
    nets.describe,
    probe.probe,
    convert.convert,
    train.train,
    train.evaluate,
    train.export,
    train.sweep,
    store.status,
    store.results,
    reproduce.reproduce,
    reproduce.claims,
    reproduce.report,
)
_LIBRARY = {"models", "schemes", "describe", "probe", "convert"}
_LABORATORY = {"store", *(command.__name__ for command in _COMMANDS)} - _LIBRARY


def run(arguments: Sequence[str]) -> int:
    """Parse the arguments, run the command and return its exit code."""
    app, stores = SubcommandApp(), SubcommandApp()
    for command in _COMMANDS:
        # The overview shows only the first line of each docstring.
        app.command(help=_summary(command) if arguments in (["--help"], ["-h"]) else None)(command)
    stores.command(store.merge)
    stores.command(store.export)
    stores.command(name="import")(store.import_)
    app.command(stores, name="store", help="Merge, export and import the results of sweeps.")
    if arguments[0] in _LABORATORY and not {"-h", "--help"} & {*arguments}:
        need("lab", f"skipinit {arguments[0]}")
    code = app.cli(
        prog="skipinit",
        description=_DESCRIPTION,
        args=list(arguments),
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    return int(code or 0)


def _summary(command: object) -> str:
    return (command.__doc__ or "").partition("\n")[0]
