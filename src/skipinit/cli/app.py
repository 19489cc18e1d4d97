"""Which commands there are."""

from __future__ import annotations

from collections.abc import Sequence

import tyro
from tyro.extras import SubcommandApp

from . import nets, probe, store, sweep, train

_DESCRIPTION = "Deep residual networks with and without normalization: build, probe, train, sweep."


def run(arguments: Sequence[str]) -> int:
    """Parse the arguments and run the command; what it returns is the exit code, None meaning 0."""
    app = SubcommandApp()
    app.command(nets.models)
    app.command(nets.schemes)
    app.command(nets.describe)
    app.command(probe.probe)
    app.command(train.train)
    app.command(train.evaluate)
    app.command(train.export)
    app.command(sweep.sweep)
    app.command(store.status)
    app.command(store.results)
    stores = SubcommandApp()
    stores.command(store.merge)
    stores.command(store.export)
    stores.command(name="import")(store.import_)
    app.command(stores, name="store", help="Merge, export and import the results of sweeps.")
    code = app.cli(
        prog="skipinit",
        description=_DESCRIPTION,
        args=list(arguments),
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    return int(code or 0)
