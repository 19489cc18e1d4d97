"""From stores to measurements: which trial belongs to which cell of which table, under which preset; and what
that says of the paper's claims.

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

from ..config import TrainConfig
from ..errors import ConfigError, DataError, system_errors_explained
from ..sweeping.exchange import read_results
from ..sweeping.store import FILE, open_store
from ..training.records import Trial
from .cells import ExhibitCell, plan_cells
from .claims import CLAIMS
from .claims.claim import Claim, ClaimState, Finding
from .exhibits import EXHIBITS
from .measurements import MeasurementSet, Place, Result
from .presets import PRECISIONS, PRESETS

INITIALIZATION = "initialization"
"""Folder, beside the store, of what was measured at initialization."""


@dataclass(frozen=True)
class EarlierProtocol:
    """A protocol that trials were trained under before today's: they say who trains, and not how well."""

    reservation: str
    """What it does otherwise, in words."""
    options: Mapping[str, Any]
    """Of the training, by name."""
    network_options: Mapping[str, Any]
    """Of the network; what is None there does not apply to it or has its own default, and stays."""

    def restate(self, config: TrainConfig) -> TrainConfig:
        """The same trial under this protocol."""
        model = config.model
        given = {
            name: value for name, value in self.network_options.items() if getattr(model, name) is not None
        }
        return replace(config, model=replace(model, **given), **self.options)


EARLIER_PROTOCOLS = (
    EarlierProtocol(
        "crops padded by zeros, He classifier",
        {"crop_padding": "zero"},
        {"classifier_init": "he", "projection": "activated"},
    ),
)
"""The most recent first."""


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
class JudgedClaim:
    """A statement of the paper, whether it holds in what was measured, and the evidence."""

    claim: str
    """Its name, such as `skipinit-trains-at-any-depth`."""
    section: str
    """Of the paper."""
    statement: str
    criterion: str
    """What must be so for it to hold."""
    needs: str
    """What must be measured to decide it."""
    state: ClaimState
    """What the most faithful measurements say."""
    evidence: Mapping[str, Finding]
    """By set of measurements, the most faithful last; sets that say nothing are left out."""


@dataclass(frozen=True)
class Collection:
    """All that several folders hold."""

    trials: tuple[Trial, ...]
    sets: dict[str, tuple[ExhibitCell, ...]]
    """The cells that trials fill, for each set of measurements, the most faithful last."""
    probes: Mapping[str, Probed]

    @cached_property
    def deciding(self) -> Mapping[str, MeasurementSet]:
        """What decides claims, the most faithful last.

        On the paper's data, a cell that a preset lacks is taken from a more faithful one; how well it does
        there is not compared with numbers of this preset, but it says who trains and who fails. Other data
        stand in for CIFAR-10; they cannot say what holds on CIFAR-100 or ImageNet, too.
        """
        deciding: dict[str, MeasurementSet] = {}
        faithful: dict[Place, Result] = {}
        for label, cells in reversed(self.sets.items()):
            preset = cells[0].preset
            own = {cell.place(metric): result for cell in cells for metric, result in cell.results.items()}
            if preset.decides and preset.data is None:
                deciding[label] = MeasurementSet({**faithful, **own})
                lent = {place: _lend(result, label) for place, result in own.items()}
                faithful = {**lent, **faithful}
            elif preset.decides:
                likened = {p: result for p, result in own.items() if EXHIBITS[p.exhibit].data == "cifar10"}
                deciding[label] = MeasurementSet(likened)
        rows = {name: probed.rows for name, probed in self.probes.items()}
        return {"at initialization": MeasurementSet(rows=rows), **dict(reversed(deciding.items()))}

    def judge(self, claim: Claim) -> JudgedClaim:
        """Where a claim stands."""
        found = {label: claim.check(measurements) for label, measurements in self.deciding.items()}
        evidence = {label: each for label, each in found.items() if each.state != "not measured yet"}
        state = list(evidence.values())[-1].state if evidence else "not measured yet"
        return JudgedClaim(
            claim.id, claim.section, claim.statement, claim.criterion, claim.needs, state, evidence
        )


def _lend(result: Result, label: str) -> Result:
    """The result with the reservation that it is of another set of measurements."""
    return replace(result, reservation=", ".join(filter(None, (result.reservation, f"under {label}"))))


@system_errors_explained()
def claims(folders: str | Path | Iterable[str | Path]) -> list[JudgedClaim]:
    """Say which statements of the paper hold in what was measured, which do not, and which are open.

        >>> [each.statement for each in skipinit.claims("results") if each.state == "does not hold"]
        []

    Args:
        folders: one or more that `reproduce` or `sweep` filled, or files that `store export` wrote.
    """
    collection = collect(folders)
    return [collection.judge(claim) for claim in CLAIMS.values()]


def collect(folders: str | Path | Iterable[str | Path]) -> Collection:
    """Read folders of `reproduce` or `sweep`, and files of `store export`."""
    places = [Path(each) for each in ([folders] if isinstance(folders, str | Path) else folders)]
    if not places:
        raise ConfigError("no folder given; name one or more that `skipinit reproduce --out` filled")
    probes: dict[str, Probed] = {}
    for place in places:
        probes |= _read_probes(place / INITIALIZATION)
    trials = _read_trials(places)
    if not probes and not any(trial.has_result for trial in trials):
        where = " ".join(map(str, places))
        raise DataError(f"{where}: no results yet; train some with `skipinit reproduce --out {where}`")
    return Collection(tuple(trials), sort_into_sets(trials), probes)


def sort_into_sets(trials: Iterable[Trial]) -> dict[str, tuple[ExhibitCell, ...]]:
    """The sets of measurements that these trials fill, wholly or in part."""
    by_config: defaultdict[TrainConfig, list[Trial]] = defaultdict(list)
    for trial in trials:
        by_config[_shared(trial.config)].append(trial)
    found: dict[str, tuple[ExhibitCell, ...]] = {}
    for preset in PRESETS.values():
        for precision in PRECISIONS:
            planned = (
                cell for exhibit in EXHIBITS.values() for cell in plan_cells(exhibit, preset, precision)
            )
            cells = tuple(filled for cell in planned if (filled := _fill(cell, by_config)).recorded)
            if any(cell.results for cell in cells):
                found[cells[0].label] = cells
    return found


def _fill(cell: ExhibitCell, by_config: Mapping[TrainConfig, Sequence[Trial]]) -> ExhibitCell:
    """The cell with the trials recorded of it, under an earlier protocol where today's has no result yet."""
    today = tuple(by_config.get(_shared(cell.config), ()))
    if not any(trial.has_result for trial in today):
        for protocol in EARLIER_PROTOCOLS:
            config = protocol.restate(cell.config)
            recorded = tuple(by_config.get(_shared(config), ()))
            if any(trial.has_result for trial in recorded):
                return replace(cell, config=config, recorded=recorded, earlier=protocol.reservation)
    return replace(cell, recorded=today)


def _shared(config: TrainConfig) -> TrainConfig:
    """What the trials of a cell share."""
    return replace(config, lr=1.0, seed=0)


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
