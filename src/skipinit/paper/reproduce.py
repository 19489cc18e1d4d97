"""Making tables and figures: measure what they need at initialization, train what they lack; and what it
costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..data.catalog import describe
from ..data.images import load
from ..data.photographs import open_folder
from ..sweeping.engine import Outcome, run_sweep
from ..sweeping.forecast import plan_packs, rough_time
from ..sweeping.pace import Pace
from ..training.world import find_device
from .presets import PRESETS
from .recipes import RECIPES, Order, Recipe, make_grid, plan_exhibit
from .theory_figures import count_networks, measure_probes

_NETWORK_SECONDS = 3.0
"""To measure one at initialization."""


@dataclass(frozen=True)
class Cost:
    """Of one recipe under one preset."""

    trials: int
    seconds: float

    @property
    def time(self) -> str:
        """In the unit that fits."""
        return rough_time(self.seconds)


def estimate_costs(device: str = "auto") -> Mapping[Recipe, list[Cost | None]]:
    """For every recipe its cost under each preset, in their order; None where the preset has none of it."""
    pace = Pace(find_device(device))
    return {recipe: [_cost(recipe, name, pace) for name in PRESETS] for recipe in RECIPES.values()}


def _cost(recipe: Recipe, preset: str, pace: Pace) -> Cost | None:
    order = Order(PRESETS[preset])
    plans = [plan for name in recipe.exhibits for plan in plan_exhibit(name, order)]
    trials = make_grid(plans).trials
    if not trials and not recipe.probes:
        return None
    packs = plan_packs([(trial, 0) for trial in trials], pace)
    networks = sum(count_networks(name, order.preset.networks) for name in recipe.probes)
    return Cost(len(trials), _NETWORK_SECONDS * networks + sum(pack.seconds for pack in packs))


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
