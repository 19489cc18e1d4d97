"""Moves results between stores: merges sweeps that ran in pieces, exports to and imports from a text file.

The file is JSON lines: a header, then one line per trial that has a result, sorted by config. Numbers are
written so that they read back exactly, and the same results give the same file, byte for byte.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from ..config import to_dict
from ..errors import ConfigError, DataError
from ..files import read_whole, write_whole
from ..notation import check_value
from ..provenance import Provenance
from ..training.protocol import identity, settled_from_dict
from ..training.records import RESULTS, EpochRecord, Trial, is_gapless
from .database import step_in
from .store import RUN_CONFIG, Store, Writer

if TYPE_CHECKING:
    from ..training.checkpoint import Checkpoints

FORMAT = 1
_EPOCH_FIELDS = tuple(field.name for field in fields(EpochRecord))
_TYPES = {kind: get_type_hints(kind) for kind in (EpochRecord, Trial)}
_RANK = {"pending": 0, "running": 1, "failed": 2, "diverged": 3, "finished": 3}
Entry = tuple[Trial, Sequence[EpochRecord]]


@dataclass(frozen=True)
class Merged:
    """The number of trials that a merge added, updated and kept."""

    added: int = 0
    updated: int = 0
    kept: int = 0
    conflicts: tuple[str, ...] = ()
    """Trials with two results that disagree; the store kept its own."""
    checkpoints: int = 0
    """Checkpoints that were taken over, of trials that had no result here."""


def merge_sweep(writer: Writer, sweep: Store) -> Merged:
    """Merge another sweep, which may be running: its checkpoints, its trials and their measurements.

    The checkpoints come first, so that the trials are as far or further, as in the folder of a sweep.
    """
    theirs = _checkpoints(sweep) if _has_checkpoints(sweep) else None
    taken = 0
    if theirs:
        refuse_other_trials(writer, theirs.ids())
        ours, states = _checkpoints(writer), writer.states()
        unfinished = [id for id in theirs.ids() if states.get(id) not in RESULTS]
        taken = sum(ours.take(id, theirs) for id in unfinished)
    return replace(merge(writer, entries(sweep), sweep, theirs), checkpoints=taken)


def _has_checkpoints(store: Store) -> bool:
    return store.path.with_name("checkpoints").is_dir()


def _checkpoints(store: Store) -> Checkpoints:
    """The checkpoints beside a store. Imports torch, which takes seconds."""
    from ..training.checkpoint import Checkpoints

    return Checkpoints(store.path.parent)


def merge(
    writer: Writer,
    source: Iterable[Entry],
    sweep: Store | None = None,
    theirs: Checkpoints | None = None,
) -> Merged:
    """Take over the trials of `source` that are further, with their measurements in `sweep`; all or none.

    A result beats a failure beats running beats pending; among equals the longer curve wins. Of two results
    that disagree the writer's stays, and is named. Otherwise measurements of both are kept: the checkpoint
    may be further than the trial that wins, and of two equal results one may have been watched. A trial that
    gets a result loses its checkpoint, unless `theirs` has one: a single run keeps its network.
    """
    tally: Counter[str] = Counter()
    conflicts: list[str] = []
    overtaken: list[str] = []

    def better() -> Iterator[Entry]:
        # Read within the transaction that `put` writes in: a trial that comes twice meets itself.
        for trial, curve in source:
            mine = writer.trial(trial.id)
            if trial.has_result and not (mine and mine.has_result):
                overtaken.append(trial.id)
            if mine is None:
                refuse_other_trials(writer, [trial.id])
                tally["added"] += 1
                yield trial, curve
            elif mine.has_result and trial.has_result and _result(mine) != _result(trial):
                conflicts.append(trial.id)
            elif (_RANK[trial.state], len(curve)) > (_RANK[mine.state], len(writer.curve(trial.id))):
                tally["updated"] += 1
                yield trial, curve
            else:
                tally["kept"] += 1
                if sweep and not sweep.measured_steps(trial.id) <= writer.measured_steps(trial.id):
                    yield mine, writer.curve(mine.id)  # for the measurements

    writer.put(better(), sweep.measurements if sweep else lambda id: ())
    if overtaken and (theirs or _has_checkpoints(writer)):
        ours = _checkpoints(writer)
        for id in overtaken:
            if theirs and theirs.path(id).exists():
                ours.take(id, theirs)
            else:
                ours.drop(id)
    return Merged(tally["added"], tally["updated"], tally["kept"], tuple(conflicts))


def refuse_other_trials(store: Store, ids: Iterable[str]) -> None:
    """Refuse to add trials to the folder of a single run: `train` would refuse it from then on."""
    if store.path.with_name(RUN_CONFIG).exists():
        known = store.states().keys()
        if len(known) == 1 and not known >= set(ids):
            raise ConfigError(f"{store.path.parent} is the folder of a single run; choose another folder")


def _result(trial: Trial) -> tuple[object, ...]:
    """The part of a result that two runs of a trial must share: all but the speed."""
    return trial.state, trial.last and replace(trial.last, images_per_second=0.0)


def entries(store: Store) -> Iterator[Entry]:
    """Every trial of a store with its curve; running ones are pending here."""
    for trial in store.trials():
        yield replace(trial, state="pending") if trial.state == "running" else trial, store.curve(trial.id)


def export_results(store: Store, path: Path, curves: bool = False) -> int:
    """Write every trial that has a result, with its last epoch or its whole curve; returns how many."""
    results = [trial for trial in store.trials() if trial.has_result]
    lines = sorted(_line(trial, store.curve(trial.id)[:-1] if curves else []) for trial in results)
    header = {"format": "skipinit results", "version": FORMAT, "curves": curves, "sha256": _checksum(lines)}
    text = "\n".join([json.dumps(header), *lines, ""])
    write_whole(path, lambda file: file.write(text.encode()))
    return len(lines)


def read_results(path: Path) -> list[Entry]:
    """The trials of an exported file."""
    checksum, lines = _open(path)
    found = [_entry(line, f"{path}, line {number}") for number, line in enumerate(lines, start=2)]
    if checksum not in (None, _checksum(lines)):
        raise DataError(
            f"{path}: is damaged or was edited (sha256); take it as it was exported, or remove sha256 from "
            "its first line if you edited it on purpose"
        )
    return found


def _open(path: Path) -> tuple[str | None, list[str]]:
    """Checksum and lines after the header; earlier versions wrote no checksum."""
    try:
        first, *lines = read_whole(path).decode().splitlines()
        header = json.loads(first)
        known, version = header["format"] == "skipinit results", header["version"]
    except (ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise DataError(f"{path}: not a file that `skipinit store export` wrote")
    if version != FORMAT:
        raise DataError(f"{path}: format {version} is not known; this version reads {FORMAT}")
    return header.get("sha256"), lines


def _checksum(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _line(trial: Trial, earlier: Sequence[EpochRecord]) -> str:
    """A line of the file: the config first, by which lines are sorted. The identity follows from it."""
    record: dict[str, Any] = {
        "config": dict(sorted(to_dict(trial.config).items())),
        "state": trial.state,
        "step": trial.step,
        "reason": trial.reason,
        "classes": trial.classes,
        "last": trial.last and asdict(trial.last),
        "seconds": trial.seconds,
        "started": trial.started,
        "ended": trial.ended,
        "provenance": trial.provenance and asdict(trial.provenance),
    }
    if earlier:
        record["earlier"] = {name: [getattr(epoch, name) for epoch in earlier] for name in _EPOCH_FIELDS}
    return json.dumps(record, allow_nan=False)


def _entry(line: str, where: str) -> Entry:
    try:
        record = json.loads(line)
        config = settled_from_dict(record.pop("config"))
        step = record.pop("step", step_in(record["reason"]))
        columns = record.pop("earlier", {})
        measured = record.pop("last")
        last = EpochRecord(**_typed(EpochRecord, measured)) if measured else None
        provenance = Provenance(**record.pop("provenance"))
        values = _typed(Trial, {**record, "step": step})
        trial = Trial(identity(config), config, last=last, provenance=provenance, **values)
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        earlier = [EpochRecord(**_typed(EpochRecord, row)) for row in rows]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{where}: not a result ({error}); take the file as it was exported") from None
    if not trial.has_result:
        raise DataError(f"{where}: a trial that is {trial.state}, not a result")
    if trial.classes is None or trial.classes < 1:
        raise DataError(f"{where}: not a result (classes {trial.classes}); take the file as it was exported")
    curve = [*earlier, last] if last else []
    if not trial.is_whole or not is_gapless(curve):
        raise DataError(
            f"{where}: not a result (its epochs are not those of a training over {config.epochs}); "
            "take the file as it was exported"
        )
    return trial, curve


def _typed(kind: type[EpochRecord | Trial], values: dict[str, Any]) -> dict[str, Any]:
    """The values, checked against the types of their fields."""
    return {name: check_value(name, value, _TYPES[kind][name], "") for name, value in values.items()}
