"""The list of commands."""

from __future__ import annotations

import os
from collections.abc import Sequence

import tyro
from tyro.extras import SubcommandApp

from ..errors import ConfigError, need, unknown_name
from . import convert, demo, nets, probe, reproduce, store, train

_DESCRIPTION = """Build, probe, convert and train residual networks with or without batch norm.
- Start with `skipinit demo`, or `skipinit probe wrn100_2 --scheme none`.
- `skipinit COMMAND --help` explains the flags of a command."""
_STORE = "Merge, export and import the results of sweeps."

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
_STARTED_ONCE = {"demo", "sweep", "reproduce"}
"""They train many trials, and start processes of their own."""


def run(arguments: Sequence[str]) -> int:
    """Parse the arguments, run the command and return its exit code.

    Only the command that was asked for is parsed, so that a mistake is explained by its own options.
    """
    name, *rest = arguments
    commands = {command.__name__: command for command in _COMMANDS}
    stores, config = SubcommandApp(), (tyro.conf.FlagCreatePairsOff,)
    stores.command(store.merge)
    stores.command(store.export)
    stores.command(name="import")(store.import_)
    if name.startswith("-"):
        overview = SubcommandApp()
        for command in _COMMANDS:
            overview.command(help=_summary(command))(command)
        overview.command(stores, name="store", help=_STORE)
        code = overview.cli(prog="skipinit", description=_DESCRIPTION, args=list(arguments), config=config)
        return int(code or 0)
    if name not in (*commands, "store"):
        raise unknown_name("command", name, [*commands, "store"])
    by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"
    if name in _STARTED_ONCE and by_torchrun:
        raise ConfigError(f"torchrun shares one training between processes; run {name} without it")
    prog = f"skipinit {name}"
    if name not in _LIBRARY and not {"-h", "--help"} & {*rest}:
        need("lab", prog)
    if name == "store":
        code = stores.cli(prog=prog, description=_STORE, args=rest, config=config)
    else:
        code = tyro.cli(commands[name], prog=prog, args=rest, config=config)
    return int(code or 0)


def _summary(command: object) -> str:
    """The first line of the docstring."""
    return (command.__doc__ or "").partition("\n")[0]
