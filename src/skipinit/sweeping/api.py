"""A sweep from Python: what `skipinit sweep` does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .engine import Outcome, run_sweep
from .grid import expand_protocol, read_grid


def sweep(
    axes: Mapping[str, object] | str | Path,
    out: str | Path,
    *,
    device: str = "auto",
    engine: str = "local",
    time_limit: float | None = None,
    pack_size: int | None = None,
    progress: bool = True,
) -> Outcome:
    """Train every combination of some values, many to a GPU; the same call goes on where one ended.

        >>> axes = {"model": "wrn10_1", "data": "digits", "epochs": 1, "lr": "2^-3,2^-2"}
        >>> skipinit.sweep(axes, "runs/a").results
        2

    Args:
        axes: values by the name of their axis, each a list, one value, or text such as `2^-6..2^0`; or the
            path of a TOML file. What is not given is the protocol's choice.
        out: folder of the sweep.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        engine: `local`, or `ray` for the cluster that RAY_ADDRESS names (extra `cluster`).
        time_limit: seconds after which to stop in good order.
        pack_size: trials that step together on a GPU; measured if not given.
        progress: show a bar where standard error is a terminal.
    """
    grid = expand_protocol(axes) if isinstance(axes, Mapping) else read_grid(Path(axes))
    return run_sweep(
        grid,
        Path(out),
        device=device,
        engine=engine,
        time_limit=time_limit,
        pack_size=pack_size,
        progress=progress,
    )
