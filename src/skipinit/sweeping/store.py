"""The store of a sweep: one SQLite file that many processes may read while one writes.

A trial goes pending → running → finished, diverged or failed. Its end and its last epoch are one commit, so
a result is there whole or not at all. An epoch that is recorded again, as after a resume, is there once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ..config import TrainConfig, to_dict, train_from_json
from ..errors import DataError, SkipinitError
from ..files import Holder, holder, make_folder, writer_lock
from ..notation import utc_now
from ..probing.history import Measurement
from ..provenance import Provenance
from ..training.protocol import identity, settle
from ..training.records import EpochRecord, State, Trial, is_gapless
from .database import (
    CHECKSUM_OF_EPOCH,
    CHECKSUM_OF_MEASUREMENT,
    CHECKSUM_OF_TRIAL,
    EPOCH_COLUMNS,
    TRIAL_COLUMNS,
    Connection,
    connect,
    create,
    damaged,
    explained,
    settle_files,
    transaction,
)

FILE = "sweep.sqlite"
LOCK = "sweep.lock"
RUN_CONFIG = "config.json"
"""Only in the folder of a single run."""

_SELECT_TRIALS = f"""
SELECT {TRIAL_COLUMNS}, {EPOCH_COLUMNS},
       t.checksum IS {CHECKSUM_OF_TRIAL} AND (epoch IS NULL OR m.checksum IS {CHECKSUM_OF_EPOCH})
FROM trials t LEFT JOIN metrics m
    ON m.trial = t.key AND m.epoch = (SELECT max(epoch) FROM metrics WHERE trial = t.key)
"""
_SELECT_CURVE = f"""
SELECT {EPOCH_COLUMNS}, checksum IS {CHECKSUM_OF_EPOCH}
FROM metrics WHERE trial = (SELECT key FROM trials WHERE id = ?) ORDER BY epoch
"""
_SELECT_MEASUREMENTS = f"""
SELECT step, blocks, checksum IS {CHECKSUM_OF_MEASUREMENT}
FROM measurements WHERE trial = (SELECT key FROM trials WHERE id = ?) ORDER BY step
"""
_SELECT_STATES = f"SELECT id, state, checksum IS {CHECKSUM_OF_TRIAL} FROM trials"
_REASONS = "SELECT reason, count(*) FROM trials WHERE state = 'failed' GROUP BY reason ORDER BY 2 DESC, 1"
_TALLY = """
SELECT state, count(*), sum(epochs),
       sum(CASE WHEN state IN ('pending', 'running')
           THEN coalesce((SELECT max(epoch) FROM metrics WHERE trial = key), 0) ELSE epochs END)
FROM (SELECT *, json_extract(config, '$.epochs') AS epochs FROM trials) GROUP BY state
"""
_PUT_TRIAL = f"""
INSERT INTO trials ({TRIAL_COLUMNS})
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
    config = excluded.config, state = excluded.state, step = excluded.step, reason = excluded.reason,
    traceback = excluded.traceback, classes = excluded.classes, provenance = excluded.provenance,
    started = excluded.started, ended = excluded.ended, seconds = excluded.seconds
RETURNING key
"""
_INSERT_EPOCH = f"INSERT OR REPLACE INTO metrics (trial, {EPOCH_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_TRY_AGAIN = "UPDATE trials SET state = 'pending' WHERE id = ? AND state = 'failed'"
_WAIT_AGAIN = "UPDATE trials SET state = 'pending' WHERE state = 'running'"
# A start clears the reason: what waits and has one is a failure that was not tried again.
_FAIL_AGAIN = "UPDATE trials SET state = 'failed' WHERE state = 'pending' AND reason IS NOT NULL"
_START = """
UPDATE trials SET state = 'running', classes = ?, provenance = ?, started = ?,
                  step = NULL, reason = NULL, traceback = NULL, ended = NULL
WHERE key = ?
"""
_END = """
UPDATE trials SET state = ?, step = ?, reason = ?, traceback = ?, seconds = ?, ended = ? WHERE key = ?
"""


class Tally(NamedTuple):
    """Trials that are in one state."""

    trials: int
    epochs: int
    """The sum of their epochs."""
    done: int
    """Epochs that are not left to train; failed trials count as done."""


class Store:
    """Reads a sweep; any process may, at any time."""

    def __init__(self, connection: Connection, path: Path) -> None:
        self.path = path
        self._connection = connection

    def trials(self, state: State | None = None) -> list[Trial]:
        """All trials, or those of one state, in the order in which they were added; a consistent snapshot."""
        return self._select() if state is None else self._select("WHERE t.state = ?", state)

    def watched(self) -> list[Trial]:
        """The trials that have measurements."""
        return self._select("WHERE t.key IN (SELECT trial FROM measurements)")

    def _select(self, where: str = "", *values: object) -> list[Trial]:
        with explained(self.path):
            rows = self._connection.execute(f"{_SELECT_TRIALS} {where} ORDER BY t.key", values)
            return [self._trial(row) for row in rows]

    def states(self) -> dict[str, State]:
        """The state of every trial, by its identity."""
        return dict(self._whole_rows(_SELECT_STATES))

    def tally(self) -> dict[State, Tally]:
        """The number of trials in each state, and of their epochs; does not read the trials."""
        self.states()  # checks the configs before SQLite reads them
        with explained(self.path):
            return {state: Tally(*numbers) for state, *numbers in self._connection.execute(_TALLY)}

    def failure_reasons(self) -> dict[str, int]:
        """The number of failed trials by reason; the most frequent first."""
        with explained(self.path):
            return dict(self._connection.execute(_REASONS).fetchall())

    def trial(self, id: str) -> Trial | None:
        """The trial of an identity, or None."""
        return next(iter(self._select("WHERE t.id = ?", id)), None)

    def curve(self, id: str) -> list[EpochRecord]:
        """Every recorded epoch of a trial."""
        curve = [EpochRecord(*row) for row in self._whole_rows(_SELECT_CURVE, id)]
        if not is_gapless(curve):
            raise damaged(self.path)
        return curve

    def measurements(self, id: str) -> list[Measurement]:
        """The measurements of a trial, by step."""
        rows = self._whole_rows(_SELECT_MEASUREMENTS, id)
        return [Measurement.from_dict({"step": step, "rows": json.loads(blocks)}) for step, blocks in rows]

    def measured_steps(self, id: str) -> set[int]:
        """The steps of the measurements of a trial."""
        return {step for step, _ in self._whole_rows(_SELECT_MEASUREMENTS, id)}

    def _whole_rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """The rows of a query, without its last column, which says whether the checksum is right."""
        with explained(self.path):
            rows = self._connection.execute(query, values).fetchall()
        if not all(whole for *_, whole in rows):
            raise damaged(self.path)
        return [row[:-1] for row in rows]

    def meta(self) -> dict[str, Any]:
        """Schema, version, commit and time of creation; start of the last writer's session."""
        with explained(self.path):
            return dict(self._connection.execute("SELECT name, value FROM meta"))

    def writer(self) -> Holder | None:
        """The process that writes to it now, or None."""
        return holder(self.path.with_name(LOCK))

    def _trial(self, row: Sequence[Any]) -> Trial:
        *columns, whole = row
        trial = _read_trial(columns) if whole else None
        if trial is None or not trial.is_whole:
            raise damaged(self.path)
        return trial


class Writer(Store):
    """Also writes; one process at a time."""

    def add(self, configs: Iterable[TrainConfig]) -> None:
        """Add the trials that are not there yet; those that failed wait, for this session, to be tried again.

        The pace counts from here.
        """
        rows = [(identity(config), _json(to_dict(settle(config)))) for config in configs]
        with transaction(self._connection, self.path):
            self._connection.executemany("INSERT OR IGNORE INTO trials (id, config) VALUES (?, ?)", rows)
            self._connection.executemany(_TRY_AGAIN, [(id,) for id, _ in rows])
            self._count_from_here()

    def start(self, id: str, provenance: Provenance, classes: int, curve: Iterable[EpochRecord] = ()) -> None:
        """The trial starts, or resumes from a checkpoint, whose epochs, `curve`, replace those recorded."""
        with transaction(self._connection, self.path):
            key = self._key(id, ("pending", "running", "failed"))
            self._connection.execute("DELETE FROM metrics WHERE trial = ?", (key,))
            self._insert(key, curve)
            self._connection.execute(_START, (classes, _json(asdict(provenance)), utc_now(), key))

    def record(self, epochs: Iterable[tuple[str, EpochRecord]]) -> None:
        """Epochs of running trials, each with its trial's identity, in one commit."""
        with transaction(self._connection, self.path):
            for id, epoch in epochs:
                self._insert(self._key(id, ("running",)), [epoch])

    def measure(self, id: str, measurements: Iterable[Measurement]) -> None:
        """Measurements of a running trial; a step that is measured again is replaced."""
        with transaction(self._connection, self.path):
            self._insert_measurements(self._key(id, ("running",)), measurements)

    def finish(self, id: str, last: EpochRecord, step: int, seconds: float) -> None:
        """The trial is done after `step` steps; `last` is its result."""
        self._end(id, [last], "finished", step, None, None, seconds)

    def diverge(self, id: str, last: EpochRecord | None, step: int, seconds: float) -> None:
        """The loss was not finite at `step`, after epoch `last` if there is one: a result, too."""
        reason = f"the loss was not finite at step {step}"
        self._end(id, [last] if last else [], "diverged", step, reason, None, seconds)

    def fail(self, id: str, reason: str, traceback: str, seconds: float) -> None:
        """The trial raised."""
        self._end(id, [], "failed", None, reason, traceback, seconds)

    def put(
        self,
        trials: Iterable[tuple[Trial, Sequence[EpochRecord]]],
        measured: Callable[[str], Iterable[Measurement]] = lambda id: (),
    ) -> None:
        """Insert trials of another store, with their curves; they replace trials of the same identity.

        `measured` returns the measurements of a trial, which are added to those that are here.
        """
        with transaction(self._connection, self.path):
            for trial, curve in trials:
                [(key,)] = self._connection.execute(_PUT_TRIAL, _row(trial)).fetchall()
                self._connection.execute("DELETE FROM metrics WHERE trial = ?", (key,))
                self._insert(key, curve)
                self._insert_measurements(key, measured(trial.id))

    def open_session(self) -> None:
        """Nobody else writes, so trials that were cut off are pending again. The pace counts from here."""
        with transaction(self._connection, self.path):
            self._set_back()
            self._count_from_here()

    def close_session(self) -> None:
        """Trials that were running are pending again."""
        with transaction(self._connection, self.path):
            self._set_back()

    def _count_from_here(self) -> None:
        done = sum(tally.done for tally in self.tally().values())
        session = [("session_started", utc_now()), ("session_epochs", done)]
        self._connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", session)

    def _set_back(self) -> None:
        self._connection.execute(_WAIT_AGAIN)
        self._connection.execute(_FAIL_AGAIN)

    def _end(self, id: str, last: Sequence[EpochRecord], *columns: object) -> None:
        """A running trial's last epoch and its end, in one commit."""
        with transaction(self._connection, self.path):
            key = self._key(id, ("running",))
            self._insert(key, last)
            self._connection.execute(_END, (*columns, utc_now(), key))

    def _key(self, id: str, allowed: Sequence[State]) -> int:
        """The key of a trial, which must be in one of these states. No result is: results never change."""
        row = self._connection.execute("SELECT key, state FROM trials WHERE id = ?", (id,)).fetchone()
        if row is None:
            raise SkipinitError(f"trial {id} is not in {self.path}; add it first")
        if row[1] not in allowed:
            raise SkipinitError(
                f"trial {id} is {row[1]}, not {' or '.join(allowed)}: this cannot be recorded"
            )
        return int(row[0])

    def _insert(self, key: int, epochs: Iterable[EpochRecord]) -> None:
        rows = [(key, *map(_finite, vars(epoch).values())) for epoch in epochs]
        self._connection.executemany(_INSERT_EPOCH, rows)

    def _insert_measurements(self, key: int, measurements: Iterable[Measurement]) -> None:
        rows = [(key, each.step, json.dumps(each.to_dict()["rows"])) for each in measurements]
        self._connection.executemany(
            "INSERT OR REPLACE INTO measurements (trial, step, blocks) VALUES (?, ?, ?)", rows
        )


@contextmanager
def open_store(folder: Path) -> Iterator[Store]:
    """Read the store of the sweep in `folder`."""
    path = folder / FILE
    if not path.is_file():
        raise DataError(f"{folder}: no sweep is there (no {FILE}); give the folder of a run or sweep")
    with closing(connect(path, write=False)) as connection:
        yield Store(connection, path)


@contextmanager
def open_writer(folder: Path) -> Iterator[Writer]:
    """Write to the store of the sweep in `folder`, which is created if necessary; one process at a time."""
    make_folder(folder)
    path = folder / FILE
    with writer_lock(folder / LOCK):
        if not path.exists():
            create(path)
        with closing(connect(path, write=True)) as connection:
            writer = Writer(connection, path)
            writer.open_session()
            yield writer
            writer.close_session()
            settle_files(connection)


def _json(content: object) -> str:
    return json.dumps(content, sort_keys=True)


def _read_trial(row: Sequence[Any]) -> Trial:
    id, config, state, step, reason, traceback, classes, origin, started, ended, seconds, *epoch = row
    provenance = _read_provenance(origin) if origin else None
    last = EpochRecord(*epoch) if epoch[0] is not None else None
    return Trial(
        id, train_from_json(config), state, step, reason, traceback, classes, provenance, started,
        ended, seconds, last,
    )  # fmt: skip


@lru_cache(maxsize=1024)
def _read_provenance(text: str) -> Provenance:
    """Cached: thousands of trials come from a few machines."""
    return Provenance(**json.loads(text))


def _row(trial: Trial) -> tuple[object, ...]:
    origin = trial.provenance and _json(asdict(trial.provenance))
    return (
        trial.id, _json(to_dict(trial.config)), trial.state, trial.step, trial.reason, trial.traceback,
        trial.classes, origin, trial.started, trial.ended, trial.seconds,
    )  # fmt: skip


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
