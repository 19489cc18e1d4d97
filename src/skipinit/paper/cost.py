"""What a recipe would cost on this machine: the forecast of its trials, and its probes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..sweeping.forecast import plan_packs, rough_time
from ..sweeping.pace import Pace
from ..training.world import find_device
from .presets import PRESETS
from .probes import count_networks
from .recipes import RECIPES, Order, Recipe, make_grid, plan_exhibit

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
