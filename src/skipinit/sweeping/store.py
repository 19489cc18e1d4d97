"""The store of a sweep: one SQLite file that many may read while one process writes.

A trial goes pending → running → finished, diverged or failed. Its end and its last epoch are one commit, so
a result is there whole or not at all; an epoch recorded twice, as after a resume, is there once.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, fields
from operator import attrgetter
from pathlib import Path
from typing import Any

from ..config import TrainConfig, identity, to_dict, train_from_dict
from ..errors import DataError, SkipinitError
from ..files import Holder, holder, writer_lock
from ..provenance import Provenance
from ..training.records import EpochRecord, State, Trial
from .database import EPOCH_COLUMNS, connect, create, explained, transaction, utc_now

FILE = "sweep.sqlite"
LOCK = "sweep.lock"

_epoch_values = attrgetter(*EPOCH_COLUMNS)

_TRIAL_COLUMNS = [field.name for field in fields(Trial) if field.name != "last"]
_SELECT_TRIALS = f"""
SELECT {", ".join(f"t.{name}" for name in _TRIAL_COLUMNS)}, {", ".join(f"m.{name}" for name in EPOCH_COLUMNS)}
FROM trials t LEFT JOIN metrics m
    ON m.trial = t.key AND m.epoch = (SELECT max(epoch) FROM metrics WHERE trial = t.key)
"""
_INSERT_TRIAL = f"""
INSERT INTO trials ({", ".join(_TRIAL_COLUMNS)}) VALUES ({", ".join("?" for _ in _TRIAL_COLUMNS)})
ON CONFLICT (id) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in _TRIAL_COLUMNS)}
RETURNING key
"""
_INSERT_EPOCH = f"""
INSERT OR REPLACE INTO metrics (trial, {", ".join(EPOCH_COLUMNS)})
VALUES (?, {", ".join("?" for _ in EPOCH_COLUMNS)})
"""


class Store:
    """What can be read, at any time, by anyone."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.path = path
        self._connection = connection

    def trials(self) -> list[Trial]:
        """All trials in the order they were added, as of one instant."""
        with explained(self.path):
            rows = self._connection.execute(f"{_SELECT_TRIALS} ORDER BY t.key")
            return [_trial(row) for row in rows]

    def trial(self, id: str) -> Trial | None:
        """The trial of that identity, if the store has it."""
        with explained(self.path):
            row = self._connection.execute(f"{_SELECT_TRIALS} WHERE t.id = ?", (id,)).fetchone()
        return _trial(row) if row else None

    def curve(self, id: str) -> list[EpochRecord]:
        """Every recorded epoch of a trial."""
        query = f"""SELECT {", ".join(EPOCH_COLUMNS)} FROM metrics
                    WHERE trial = (SELECT key FROM trials WHERE id = ?) ORDER BY epoch"""
        with explained(self.path):
            return [EpochRecord(*row) for row in self._connection.execute(query, (id,))]

    def meta(self) -> dict[str, Any]:
        """Schema, version, commit and time of creation; pace of the last writer."""
        with explained(self.path):
            return dict(self._connection.execute("SELECT name, value FROM meta"))

    def writer(self) -> Holder | None:
        """Who writes to it now."""
        return holder(self.path.with_name(LOCK))


class Writer(Store):
    """What the one writer can do besides."""

    def add(self, configs: Iterable[TrainConfig]) -> int:
        """Add the trials that are not there yet; how many were new."""
        rows = [(identity(config), json.dumps(to_dict(config), sort_keys=True)) for config in configs]
        before = self._connection.total_changes
        with transaction(self._connection, self.path):
            self._connection.executemany("INSERT OR IGNORE INTO trials (id, config) VALUES (?, ?)", rows)
        return self._connection.total_changes - before

    def start(self, id: str, provenance: Provenance, classes: int, epochs_done: int = 0) -> None:
        """The trial runs, for the first time or on from a checkpoint after `epochs_done`: later epochs go."""
        origin = json.dumps(asdict(provenance), sort_keys=True)
        with transaction(self._connection, self.path):
            key = self._key(id, ("pending", "running", "failed"))
            self._connection.execute("DELETE FROM metrics WHERE trial = ? AND epoch > ?", (key, epochs_done))
            self._set(key, state="running", classes=classes, provenance=origin, started=utc_now())
            self._set(key, reason=None, traceback=None, ended=None)

    def record(self, epochs: Iterable[tuple[str, EpochRecord]]) -> None:
        """Epochs of running trials, each with its trial's identity, in one commit."""
        with transaction(self._connection, self.path):
            for id, epoch in epochs:
                self._insert(self._key(id, ("running",)), [epoch])

    def finish(self, id: str, last: EpochRecord, seconds: float) -> None:
        """The trial is done; `last` is its result."""
        self._end(id, [last], state="finished", seconds=seconds)

    def diverge(self, id: str, last: EpochRecord | None, reason: str, seconds: float) -> None:
        """The trial went non-finite after its epoch `last`, if it came that far: a result too."""
        self._end(id, [last] if last else [], state="diverged", reason=reason, seconds=seconds)

    def fail(self, id: str, reason: str, traceback: str, seconds: float) -> None:
        """The trial raised."""
        self._end(id, [], state="failed", reason=reason, traceback=traceback, seconds=seconds)

    def put(self, trials: Iterable[tuple[Trial, Sequence[EpochRecord]]]) -> None:
        """Trials with their curves from elsewhere, in place of what is here under their identities."""
        with transaction(self._connection, self.path):
            for trial, curve in trials:
                [(key,)] = self._connection.execute(_INSERT_TRIAL, _row(trial)).fetchall()
                self._connection.execute("DELETE FROM metrics WHERE trial = ?", (key,))
                self._insert(key, curve)

    def open_session(self) -> None:
        """Nobody else writes, so nothing runs: what was cut off waits again. The pace counts from here."""
        with transaction(self._connection, self.path):
            self._set_waiting()
            done = sum(trial.epochs_done for trial in self.trials())
            session = [("session_started", utc_now()), ("session_epochs", done)]
            self._connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", session)

    def close_session(self) -> None:
        """In good order: what has no result yet waits again."""
        with transaction(self._connection, self.path):
            self._set_waiting()

    def _set_waiting(self) -> None:
        self._connection.execute("UPDATE trials SET state = 'pending' WHERE state = 'running'")

    def _end(self, id: str, last: Sequence[EpochRecord], **columns: object) -> None:
        """A running trial's last epoch and its end, in one commit."""
        with transaction(self._connection, self.path):
            key = self._key(id, ("running",))
            self._insert(key, last)
            self._set(key, ended=utc_now(), **columns)

    def _set(self, key: int, **columns: object) -> None:
        settings = ", ".join(f"{name} = ?" for name in columns)
        self._connection.execute(f"UPDATE trials SET {settings} WHERE key = ?", (*columns.values(), key))

    def _key(self, id: str, allowed: Sequence[State]) -> int:
        """The row of a trial in one of these states. A result is in none of them: it never changes."""
        row = self._connection.execute("SELECT key, state FROM trials WHERE id = ?", (id,)).fetchone()
        if row is None:
            raise SkipinitError(f"trial {id} is not in {self.path}; add it first")
        if row[1] not in allowed:
            raise SkipinitError(
                f"trial {id} is {row[1]}, not {' or '.join(allowed)}: this cannot be recorded"
            )
        return int(row[0])

    def _insert(self, key: int, epochs: Iterable[EpochRecord]) -> None:
        rows = [(key, *map(_finite, _epoch_values(epoch))) for epoch in epochs]
        self._connection.executemany(_INSERT_EPOCH, rows)


@contextmanager
def open_store(folder: Path) -> Iterator[Store]:
    """Read the store of the sweep in `folder`."""
    path = folder / FILE
    if not path.is_file():
        raise DataError(f"{folder}: no sweep is there (no {FILE}); give the folder that `sweep --out` named")
    with closing(connect(path, write=False)) as connection:
        yield Store(connection, path)


@contextmanager
def open_writer(folder: Path) -> Iterator[Writer]:
    """Write to the store of the sweep in `folder`, which is made if need be; one process at a time."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SkipinitError(
            f"{folder}: cannot be made ({error.strerror}); choose a folder that can be written"
        ) from None
    path = folder / FILE
    with writer_lock(folder / LOCK):
        if not path.exists():
            create(path)
        with closing(connect(path, write=True)) as connection:
            writer = Writer(connection, path)
            writer.open_session()
            yield writer
            writer.close_session()


def _trial(row: Sequence[Any]) -> Trial:
    split = len(_TRIAL_COLUMNS)
    values = dict(zip(_TRIAL_COLUMNS, row[:split], strict=True))
    values["config"] = train_from_dict(json.loads(values["config"]))
    if values["provenance"]:
        values["provenance"] = Provenance(**json.loads(values["provenance"]))
    return Trial(**values, last=EpochRecord(*row[split:]) if row[split] is not None else None)


def _row(trial: Trial) -> list[object]:
    values = vars(trial) | {"config": json.dumps(to_dict(trial.config), sort_keys=True)}
    if trial.provenance:
        values["provenance"] = json.dumps(asdict(trial.provenance), sort_keys=True)
    return [values[name] for name in _TRIAL_COLUMNS]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
