"""What `results/` holds, as the tables and figures of the documents need it: cells and their rates, single
trials, and how far a number is from the paper's.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from skipinit.config import TrainConfig
from skipinit.paper.cells import ExhibitCell
from skipinit.paper.collect import Collection, Probed, collect
from skipinit.paper.exhibits import EXHIBITS, Result, decimals
from skipinit.reporting.tables import FAR
from skipinit.sweeping.summary import Metric, Rate
from skipinit.training.protocol import identity
from skipinit.training.records import Trial

RESULTS = Path(__file__).parents[1] / "results"

FULL, REDUCED, BRIEF = "paper (bfloat16)", "reduced", "brief"
"""Sets of measurements, by the names that the report gives them."""


@functools.cache
def _collection() -> Collection:
    return collect([RESULTS, *sorted(RESULTS.glob("*.jsonl"))])


@functools.cache
def cells(label: str) -> dict[tuple[str, str, int], ExhibitCell]:
    """The cells of a set of measurements, by exhibit, method and depth or batch size."""
    return {(cell.exhibit.name, cell.method.name, cell.at): cell for cell in _collection().sets[label]}


def probed(figure: str) -> Probed:
    """What was measured of a figure's networks at initialization."""
    return _collection().probes[figure]


def rate_at(cell: ExhibitCell, metric: Metric, lr: float) -> Rate | None:
    """What the cell's runs at a rate have in the mean; None if it was not run."""
    rates = cell.summaries[metric].summary.rates
    return next((rate for rate in rates if rate.lr == lr), None)


def at_the_papers(cell: ExhibitCell, metric: Metric = "test_accuracy") -> Rate:
    """The same at the paper's best rate for the accuracy."""
    rate = rate_at(cell, metric, cell.config.lr)
    assert rate is not None, f"{cell.exhibit.name}: {cell.method.name} at {cell.at} was not run there"
    return rate


def steps_to_failure(cell: ExhibitCell) -> dict[float, int]:
    """By rate, the first step at which a run of the cell was not finite."""
    found: dict[float, int] = {}
    for trial in cell.recorded:
        if trial.state == "diverged" and trial.step is not None:
            found[trial.config.lr] = min(trial.step, found.get(trial.config.lr, trial.step))
    return found


def trial_like(config: TrainConfig, **options: Any) -> Trial | None:
    """The trial of a config with other options of its network or run; None if it has no result."""
    network = {name: value for name, value in options.items() if hasattr(config.model, name)}
    run = {name: value for name, value in options.items() if name not in network}
    wanted = identity(replace(config, model=replace(config.model, **network), **run))
    return next((each for each in _collection().trials if each.id == wanted and each.has_result), None)


@dataclass(frozen=True)
class Compared:
    """A number of a cell at the paper's best rate for the accuracy, beside the paper's."""

    rate: Rate
    paper: Result

    @classmethod
    def of(cls, cell: ExhibitCell, exhibit: str) -> Compared:
        """Of a table with that metric."""
        paper = EXHIBITS[exhibit].cells[cell.method.name, cell.at]
        return cls(at_the_papers(cell, paper.metric), paper)

    @property
    def spreads(self) -> tuple[float, float]:
        """The distance in units of both spreads together, and of the paper's alone.

        One run shows no spread; it is taken to scatter as the paper's runs do.
        """
        assert self.paper.value is not None, "it has not failed"
        difference = self.rate.mean - self.paper.value
        theirs = max(self.paper.spread or 0.0, 0.5 * 10.0 ** -decimals(self.paper.metric))
        both = math.hypot(theirs, theirs if self.rate.std is None else self.rate.std)
        return difference / both, difference / theirs

    @property
    def is_far(self) -> bool:
        """Whether the report would call it different."""
        return abs(self.spreads[0]) > FAR
