"""From stores to measurements: which trial belongs to which cell of which table, under which preset, and
which claims of the paper hold.

A trial is recognised by its config. Each preset and precision is a separate set of measurements, so that
numbers of a reduced preset are never taken for the paper's.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..config import Precision, TrainConfig
from ..errors import ConfigError, DataError, system_errors_explained
from ..files import write_whole
from ..notation import count_text
from ..sweeping.exchange import Entry, entries, read_results
from ..sweeping.store import FILE, open_store
from ..training.records import EpochRecord, Trial
from .cells import ExhibitCell, plan_cells, shared_config
from .claims import CLAIMS
from .claims.claim import Claim, ClaimState, MeasurementSet
from .exhibits import EXHIBITS, Place, Result
from .presets import FEWEST_EPOCHS, PRECISIONS, PRESETS, Preset

INITIALIZATION = "initialization"
"""Folder, beside the store, of what was measured at initialization."""


EARLIER_PROTOCOL = "crops padded by zeros, He classifier"
"""The default protocol before today's: its trials show who trains, and not how well.

Only a former default counts. Trials that were run to choose one, such as those with reflected crops and a He
classifier, belong to no cell.
"""


def restate_earlier(config: TrainConfig) -> TrainConfig:
    """The same trial under the earlier protocol; an option that is None does not apply and stays."""
    before: dict[str, Any] = {"classifier_init": "he", "projection": "activated"}
    applying = {name: value for name, value in before.items() if getattr(config.model, name) is not None}
    return replace(config, model=replace(config.model, **applying), crop_padding="zero")


@dataclass(frozen=True)
class Probed:
    """What was measured of one figure's network at initialization."""

    figure: str
    inputs: str
    seed: int
    rows: Sequence[Mapping[str, Any]]
    provenance: Mapping[str, Any]
    networks: int = 1
    """Number of networks whose mean the rows are."""


@dataclass(frozen=True)
class Evidence:
    """What one set of measurements says about a claim."""

    state: ClaimState
    words: str
    """What was not as in the paper, then the numbers."""


@dataclass(frozen=True)
class JudgedClaim:
    """A statement of the paper, whether it holds in the measurements, and the evidence."""

    claim: str
    """Its name, such as `skipinit-trains-at-any-depth`."""
    section: str
    """Of the paper."""
    statement: str
    criterion: str
    """The condition under which it holds."""
    needs: str
    """What must be measured to decide it."""
    state: ClaimState
    """What the most faithful measurements say."""
    evidence: Mapping[str, Evidence]
    """By set of measurements, the most faithful last; sets that say nothing are left out."""
    missing: Mapping[str, str]
    """What is missing to decide it, by set of measurements that has a part of it; empty if it is decided."""

    @property
    def decided_by(self) -> str:
        """The set of measurements that decides it, the most faithful; empty if none does."""
        return next(reversed([*self.evidence]), "")


@dataclass(frozen=True)
class Collection:
    """What was read from several folders and files."""

    trials: tuple[Trial, ...]
    sets: dict[str, tuple[ExhibitCell, ...]]
    """The cells that trials fill, for each set of measurements, the most faithful last."""
    probes: Mapping[str, Probed]
    curves: Mapping[str, Sequence[EpochRecord]] = field(default_factory=dict)
    """The epochs of each trial, by its identity, as far as they were kept."""

    @property
    def outside(self) -> str:
        """How many of the trials are in no table or figure of the paper, in words; empty if none."""
        placed = {trial.id for cells in self.sets.values() for cell in cells for trial in cell.recorded}
        count = sum(trial.id not in placed for trial in self.trials)
        return f"{count} of {count_text(len(self.trials), 'trial')} in no table or figure" if count else ""

    @cached_property
    def deciding(self) -> Mapping[str, MeasurementSet]:
        """The sets of measurements that decide claims, the most faithful last.

        On the paper's data, a cell that a preset lacks is taken from a more faithful preset. Such a cell
        shows who trains and who fails; its number is not compared with those of this preset. Other data
        stand in for CIFAR-10 only, not for CIFAR-100 or ImageNet.
        """
        deciding: dict[str, MeasurementSet] = {}
        faithful: dict[Place, Result] = {}
        for label, cells in reversed(self.sets.items()):
            preset = cells[0].preset
            own = {cell.place(metric): result for cell in cells for metric, result in cell.results.items()}
            if preset.decides and preset.data is None:
                deciding[label] = MeasurementSet({**faithful, **own})
                lent = {place: _lend(result, label) for place, result in own.items()}
                # Whatever its precision, a result of the earlier protocol does not replace one of today's.
                faithful = lent | {
                    place: result
                    for place, result in faithful.items()
                    if place not in lent or EARLIER_PROTOCOL not in result.reservation
                }
            elif preset.decides:
                likened = {p: result for p, result in own.items() if EXHIBITS[p.exhibit].data == "cifar10"}
                deciding[label] = MeasurementSet(likened)
        rows = {name: probed.rows for name, probed in self.probes.items()}
        return {"at initialization": MeasurementSet(rows=rows), **dict(reversed(deciding.items()))}

    def judge(self, name: str) -> JudgedClaim:
        """Whether the claim of that name holds, with the evidence."""
        claim = CLAIMS[name]
        found = {label: claim.check(measurements) for label, measurements in self.deciding.items()}
        evidence = {
            label: Evidence(each.state, (f"With {differs}. " if differs else "") + each.words)
            for label, each in found.items()
            if each.state != "not decided yet"
            for differs in [self.departures(label, claim)]
        }
        state = list(evidence.values())[-1].state if evidence else "not decided yet"
        partly = {
            label: each.words
            for label, each in found.items()
            if any(cell.exhibit.name in claim.exhibits for cell in self.sets.get(label, ()))
        }
        return JudgedClaim(
            name, claim.section, claim.statement, claim.criterion, claim.needs, state, evidence,
            missing={} if evidence else partly,
        )  # fmt: skip

    def departures(self, label: str, claim: Claim) -> str:
        """What was not as in the paper in the measurements of a set that a claim reads; empty if nothing."""
        cells = [cell for cell in self.sets.get(label, ()) if cell.exhibit.name in claim.exhibits]
        if not cells:
            return ""
        shared = [words for words in cells[0].departures if all(words in each.departures for each in cells)]
        # Results of fewer epochs say so themselves.
        epochs = {cell.config.epochs for cell in cells if cell.config.epochs >= FEWEST_EPOCHS}
        if len(epochs) > 1 and max(epochs) < cells[0].exhibit.epochs:
            shared.append(f"{min(epochs)} to {max(epochs)} of {cells[0].exhibit.epochs} epochs")
        return ", ".join(shared)


def _lend(result: Result, label: str) -> Result:
    """The result with the reservation that it is of another set of measurements."""
    return replace(result, reservation=", ".join(filter(None, (result.reservation, f"of preset {label}"))))


@system_errors_explained()
def claims(folders: str | Path | Iterable[str | Path]) -> list[JudgedClaim]:
    """Judge the statements of the paper by the results: which hold, which do not, and which are open.

        >>> [each.statement for each in skipinit.claims("results") if each.state == "does not hold"]
        []

    Args:
        folders: one or more that `reproduce` or `sweep` filled, or files that `store export` wrote.
    """
    collection = collect(folders)
    return [collection.judge(name) for name in CLAIMS]


def list_places(folders: str | Path | Iterable[str | Path]) -> list[Path]:
    """The paths of one folder or file, or of several."""
    return [Path(each) for each in ([folders] if isinstance(folders, str | Path) else folders)]


def collect(folders: str | Path | Iterable[str | Path]) -> Collection:
    """Read folders of `reproduce` or `sweep`, and files of `store export`."""
    places = list_places(folders)
    if not places:
        raise ConfigError("no folder given; name one or more that `skipinit reproduce --out` filled")
    measured = [
        read_probed(path) for each in places for path in sorted(each.glob(f"{INITIALIZATION}/*.json"))
    ]
    found = _read_trials(places)
    trials = tuple(trial for trial, _ in found.values())
    if not measured and not any(trial.has_result for trial in trials):
        where = " ".join(map(str, places))
        if trials:
            raise DataError(
                f"{where}: {count_text(len(trials), 'trial')}, but no results yet; see `skipinit status`"
            )
        raise DataError(f"{where}: no results yet; train some with `skipinit reproduce --out {where}`")
    curves = {id: curve for id, (_, curve) in found.items()}
    # Of several measurements of a figure, the one of most networks, which scatters least.
    probes = {each.figure: each for each in sorted(measured, key=lambda each: each.networks)}
    return Collection(trials, sort_into_sets(trials), probes, curves)


def sort_into_sets(trials: Iterable[Trial]) -> dict[str, tuple[ExhibitCell, ...]]:
    """The sets of measurements that these trials fill, wholly or in part."""
    everything = tuple(trials)
    found: dict[str, tuple[ExhibitCell, ...]] = {}
    for preset in PRESETS.values():
        sets = [tuple(_recorded_cells(preset, precision, everything)) for precision in PRECISIONS]
        today = {_place(cell) for cells in sets for cell in cells if cell.has_result and not cell.earlier}
        for cells in sets:  # at any precision, a result of today's protocol replaces one of the earlier
            current = tuple(cell for cell in cells if not (cell.earlier and _place(cell) in today))
            if any(cell.results for cell in current):
                found[current[0].label] = current
    return found


def _recorded_cells(preset: Preset, precision: Precision, trials: Sequence[Trial]) -> Iterator[ExhibitCell]:
    planned = [cell for exhibit in EXHIBITS.values() for cell in plan_cells(exhibit, preset, precision)]
    return (cell for cell in fill(planned, trials) if cell.recorded)


def _place(cell: ExhibitCell) -> Place:
    return cell.place(cell.exhibit.metrics[0])


def fill(planned: Iterable[ExhibitCell], trials: Iterable[Trial]) -> Iterator[ExhibitCell]:
    """The cells with the trials recorded of each, of the earlier protocol where today's has no result yet."""
    by_config: defaultdict[TrainConfig, list[Trial]] = defaultdict(list)
    for trial in trials:
        by_config[shared_config(trial.config)].append(trial)
    for cell in planned:
        today = tuple(by_config.get(shared_config(cell.config), ()))
        config = restate_earlier(cell.config)
        earlier = tuple(by_config.get(shared_config(config), ()))
        if not any(trial.has_result for trial in today) and any(trial.has_result for trial in earlier):
            yield replace(cell, config=config, recorded=earlier, earlier=EARLIER_PROTOCOL)
        else:
            yield replace(cell, recorded=today)


def _read_trials(places: Iterable[Path]) -> dict[str, Entry]:
    """Every trial once, with its curve; of several copies, one that has a result."""
    by_id: dict[str, Entry] = {}
    for place in places:
        for trial, curve in _entries(place):
            if trial.id not in by_id or not by_id[trial.id][0].has_result:
                by_id[trial.id] = trial, curve
    return by_id


def _entries(place: Path) -> list[Entry]:
    if place.is_file():
        return read_results(place)
    if (place / INITIALIZATION).is_dir() and not (place / FILE).exists():
        return []  # only networks at initialization were measured
    with open_store(place) as store:
        return list(entries(store))


def read_probed(path: Path) -> Probed:
    """What was measured of a network at initialization."""
    try:
        probed = Probed(**json.loads(path.read_text(encoding="utf-8")))
        numbers = [value for row in probed.rows for name, value in row.items() if name != "name"]
        whole = bool(numbers) and all(value is None or isinstance(value, float | int) for value in numbers)
        whole = whole and all("depth" in row for row in probed.rows) and probed.figure == path.stem
        whole = whole and {"machine", "commit"} <= set(probed.provenance)
    except (OSError, ValueError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise DataError(f"{path}: not a file that `skipinit reproduce` wrote; remove it")
    return probed


def merge_probed(source: Path, target: Path) -> int:
    """Copy what was measured at initialization, of each figure from the folder that has more networks.

    Returns the number of figures copied.
    """
    copied = 0
    for path in sorted(source.glob(f"{INITIALIZATION}/*.json")):
        found, here = read_probed(path), target / INITIALIZATION / path.name
        if not here.exists() or read_probed(here).networks < found.networks:
            _copy_whole(path, here)
            copied += 1
    return copied


def _copy_whole(source: Path, target: Path) -> None:
    content = source.read_bytes()
    write_whole(target, lambda file: file.write(content))
