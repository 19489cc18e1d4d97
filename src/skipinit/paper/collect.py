"""From stores to measurements: which trial belongs to which cell of which table, under which preset.

A trial is recognised by its config, whoever ran it. Each preset and precision is a set of measurements of its
own, so that numbers of a reduced preset never pass for the paper's.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..config import Precision, TrainConfig
from ..errors import DataError
from ..sweeping.exchange import read_results
from ..sweeping.results import CellResult, Trim, cells
from ..sweeping.store import FILE, open_store
from ..training.records import Trial
from .claims.claim import Claim, State, Verdict
from .presets import PRECISIONS, PRESETS, Preset
from .published import Address, Measurements, Outcome, exhibits, find_exhibit
from .recipes import CellPlan, Order, plan_exhibit

INITIALIZATION = "initialization"
"""Folder, beside the store, of what was measured at initialization."""


@dataclass(frozen=True)
class MeasuredCell:
    """One cell of a table or figure, with all that its number must carry."""

    config: TrainConfig
    """Of its trials, at the rate expected to be best."""
    result: CellResult
    seconds: float
    brief: bool
    """Whether its epochs can only tell who trains and who fails."""

    @property
    def outcome(self) -> Outcome | None:
        """None where it has no result yet."""
        reservation = f"after {_count(self.config.epochs, 'epoch')} only" if self.brief else ""
        return Outcome.of_cell(self.result.summary, self.result.unfinished, reservation)

    @property
    def runs(self) -> str:
        """How many runs stand behind the number."""
        best, rates = self.result.summary.best, len(self.result.summary.rates)
        done = sum(rate.runs for rate in self.result.summary.rates)
        if best is None:
            return f"{_count(done, 'run')} at {_count(rates, 'rate')}"
        kept = f"best {best.kept} of " if best.kept < best.runs else ""
        return f"{kept}{_count(best.runs, 'run')}; {_count(rates, 'rate')} tried"


@dataclass(frozen=True)
class MeasuredSet:
    """What was measured under one preset at one precision."""

    preset: Preset
    precision: Precision
    cells: Mapping[Address, MeasuredCell]

    @property
    def label(self) -> str:
        """The preset, its data if not the paper's, the precision if not the preset's."""
        words = [self.preset.data, None if self.precision == self.preset.precision else self.precision]
        told = ", ".join(word for word in words if word)
        return f"{self.preset.name} ({told})" if told else self.preset.name

    @cached_property
    def measurements(self) -> Measurements:
        """Every cell that has an outcome."""
        found = {address: cell.outcome for address, cell in self.cells.items()}
        return Measurements({address: outcome for address, outcome in found.items() if outcome})


@dataclass(frozen=True)
class Probed:
    """What was measured of one figure's network at initialization."""

    figure: str
    inputs: str
    seed: int
    rows: Sequence[Mapping[str, Any]]
    provenance: Mapping[str, Any]
    networks: int = 1
    """How many the rows are the mean of."""


@dataclass(frozen=True)
class Collection:
    """All that several folders hold."""

    trials: tuple[Trial, ...]
    sets: tuple[MeasuredSet, ...]
    probes: Mapping[str, Probed]

    @cached_property
    def worlds(self) -> Mapping[str, Measurements]:
        """What decides claims, the most faithful last.

        On the paper's data, a cell that a preset lacks is taken from a more faithful one; how well it does
        there is not compared with numbers of this preset, but it says who trains and who fails. Other data
        stand in for CIFAR-10; they cannot say what holds on CIFAR-100 or ImageNet, too.
        """
        rows = {name: probed.rows for name, probed in self.probes.items()}
        deciding: dict[str, Measurements] = {}
        faithful: dict[Address, Outcome] = {}
        for each in reversed(self.sets):
            own = each.measurements.cells
            if each.preset.decides and each.preset.data is None:
                deciding[each.label] = Measurements({**faithful, **own})
                under = f"under {each.label}"
                told = {at: replace(cell, reservation=cell.reservation or under) for at, cell in own.items()}
                faithful = {**told, **faithful}
            elif each.preset.decides:
                likened = {at: cell for at, cell in own.items() if find_exhibit(at.exhibit).data == "cifar10"}
                deciding[each.label] = Measurements(likened)
        return {"at initialization": Measurements(rows=rows), **dict(reversed(deciding.items()))}

    def verdicts(self, claim: Claim) -> list[tuple[str, Verdict]]:
        """What each set of measurements says of a claim, the most faithful last; silent sets are left out."""
        found = [(label, claim.check(world)) for label, world in self.worlds.items()]
        return [(label, verdict) for label, verdict in found if verdict.state != "not measured yet"]

    def state(self, claim: Claim) -> State:
        """Where the claim stands: what the most faithful measurements say."""
        decided = self.verdicts(claim)
        return decided[-1][1].state if decided else "not measured yet"


def collect(places: Sequence[Path]) -> Collection:
    """Read folders of `reproduce` or `sweep`, and files of `store export`."""
    probes: dict[str, Probed] = {}
    for place in places:
        probes |= _read_probes(place / INITIALIZATION)
    trials = _read_trials(places)
    if not probes and not any(trial.has_result for trial in trials):
        where = " ".join(map(str, places))
        raise DataError(f"{where}: no results yet; train some with `skipinit reproduce --out {where}`")
    return Collection(tuple(trials), tuple(measured_sets(trials)), probes)


def measured_sets(trials: Sequence[Trial]) -> list[MeasuredSet]:
    """The sets that these trials fill, wholly or in part."""
    by_cell: defaultdict[TrainConfig, list[Trial]] = defaultdict(list)
    for trial in trials:
        by_cell[_cell_of(trial.config)].append(trial)
    found = []
    for preset in PRESETS.values():
        for precision in PRECISIONS:
            filled = {
                plan.address: _measure(plan, by_cell[key])
                for name in exhibits()
                for plan in plan_exhibit(name, Order(preset, precision))
                if (key := _cell_of(plan.config)) in by_cell
            }
            if any(cell.outcome for cell in filled.values()):
                found.append(MeasuredSet(preset, precision, filled))
    return found


def _cell_of(config: TrainConfig) -> TrainConfig:
    """What the trials of a cell share."""
    return replace(config, lr=1.0, seed=0)


def _measure(plan: CellPlan, trials: Sequence[Trial]) -> MeasuredCell:
    exhibit = find_exhibit(plan.address.exhibit)
    of_metric = [
        cell
        for cell in cells(trials, Trim(exhibit.best, exhibit.of))
        if cell.summary.metric == exhibit.metric
    ]
    return MeasuredCell(plan.config, of_metric[0], sum(trial.seconds for trial in trials), plan.brief)


def _read_trials(places: Iterable[Path]) -> list[Trial]:
    """Every trial once; one that has a result stands for those that have not."""
    by_id: dict[str, Trial] = {}
    for place in places:
        for trial in _trials_of(place):
            if trial.id not in by_id or not by_id[trial.id].has_result:
                by_id[trial.id] = trial
    return list(by_id.values())


def _trials_of(place: Path) -> list[Trial]:
    if place.is_file():
        return [trial for trial, _ in read_results(place)]
    if (place / INITIALIZATION).is_dir() and not (place / FILE).exists():
        return []  # only networks at initialization were measured
    with open_store(place) as store:
        return store.trials()


def _read_probes(folder: Path) -> dict[str, Probed]:
    return {probed.figure: probed for probed in map(read_probed, sorted(folder.glob("*.json")))}


def read_probed(path: Path) -> Probed:
    """What was measured of a network at initialization."""
    try:
        return Probed(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        raise DataError(f"{path}: not a file that `skipinit reproduce` wrote; remove it") from None


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
