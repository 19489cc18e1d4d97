"""Making tables and figures: measure what they need at initialization, train what they lack."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..data.catalog import describe
from ..data.images import load
from ..data.photographs import open_folder
from ..sweeping.engine import Outcome, run_sweep
from ..training.world import find_device
from .recipes import Order, Recipe, make_grid, plan_exhibit
from .theory_figures import measure_probes


def reproduce(
    recipes: Sequence[Recipe],
    order: Order,
    out: Path,
    *,
    device: str = "auto",
    time_limit: float | None = None,
    progress: bool = True,
) -> Outcome:
    """Fill `out` with all that the recipes need; the same call goes on where one ended."""
    names = dict.fromkeys(name for recipe in recipes for name in recipe.exhibits)
    plans = [plan for name in names for plan in plan_exhibit(name, order)]
    for data in sorted({plan.config.data for plan in plans}):
        _require(data)
    probes = dict.fromkeys(name for recipe in recipes for name in recipe.probes)
    where, most = str(find_device(device)), order.preset.networks
    measure_probes(list(probes), out, order.first_seed, where, most, progress)
    return run_sweep(make_grid(plans), out, device=device, time_limit=time_limit, progress=progress)


def _require(data: str) -> None:
    """Say how to get a data set that is not there before anything is trained."""
    if describe(data).in_memory:
        load(data)
    else:
        open_folder(data)
