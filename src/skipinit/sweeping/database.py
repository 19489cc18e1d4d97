"""The SQLite file of a sweep: its tables, opening, migrations, and error messages."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import sys
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from .. import __version__
from ..config import to_dict
from ..errors import DataError
from ..notation import utc_now
from ..provenance import source_commit
from ..training.protocol import identity, settled_from_dict

SCHEMA = 3

_TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE trials (
    key        INTEGER PRIMARY KEY,
    id         TEXT NOT NULL UNIQUE,
    config     TEXT NOT NULL,
    state      TEXT NOT NULL DEFAULT 'pending'
               CHECK (state IN ('pending', 'running', 'failed', 'diverged', 'finished')),
    step       INTEGER,
    reason     TEXT,
    traceback  TEXT,
    classes    INTEGER,
    provenance TEXT,
    started    TEXT,
    ended      TEXT,
    seconds    REAL NOT NULL DEFAULT 0,
    checksum   INTEGER
);
CREATE TABLE metrics (
    trial             INTEGER NOT NULL REFERENCES trials (key),
    epoch             INTEGER NOT NULL,
    train_loss        REAL,
    test_accuracy     REAL,
    test_loss         REAL,
    lr                REAL,
    images_per_second REAL,
    clean_train_loss  REAL,
    checksum          INTEGER,
    PRIMARY KEY (trial, epoch)
) WITHOUT ROWID;
"""
_MEASUREMENTS = """
CREATE TABLE measurements (
    trial    INTEGER NOT NULL REFERENCES trials (key),
    step     INTEGER NOT NULL,
    blocks   TEXT NOT NULL,
    checksum INTEGER,
    PRIMARY KEY (trial, step)
) WITHOUT ROWID
"""
# In the order of the fields of `Trial` and `EpochRecord`, which a test keeps equal.
TRIAL_COLUMNS = "id, config, state, step, reason, traceback, classes, provenance, started, ended, seconds"
EPOCH_COLUMNS = "epoch, train_loss, test_accuracy, test_loss, lr, images_per_second, clean_train_loss"
# SQLite notices damage to the structure of a page, but not to a number in it.
CHECKSUM_OF_TRIAL = f"crc({TRIAL_COLUMNS})"
CHECKSUM_OF_EPOCH = f"crc({EPOCH_COLUMNS})"
CHECKSUM_OF_MEASUREMENT = "crc(step, blocks)"
_SEALS = "".join(
    f"""
CREATE TEMP TRIGGER seal_{table}_after_{event} AFTER {event} ON main.{table} BEGIN
    UPDATE {table} SET checksum = {checksum} WHERE {row};
END;
"""
    for table, checksum, row in (
        ("trials", CHECKSUM_OF_TRIAL, "key = NEW.key"),
        ("metrics", CHECKSUM_OF_EPOCH, "trial = NEW.trial AND epoch = NEW.epoch"),
        ("measurements", CHECKSUM_OF_MEASUREMENT, "trial = NEW.trial AND step = NEW.step"),
    )
    for event in ("insert", "update")
)
"""Triggers of the writer's connection: each row that it changes gets a checksum."""


_OTHER_TABLES = re.compile("^(no such|duplicate column)|already exists$")
"""SQLite's messages if the tables do not fit the number of the schema."""


def create(path: Path) -> None:
    """Create an empty store at `path`, whole or not at all. The caller holds the writer's lock."""
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    now = utc_now()
    meta = {"schema": SCHEMA, "created": now, "skipinit": __version__, "commit": source_commit()}
    meta |= {"session_started": now, "session_epochs": 0}  # a reader may come before the first session
    try:
        with explained(path), closing(sqlite3.connect(draft, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = MEMORY")  # no second file beside a draft
            connection.executescript(_TABLES + _MEASUREMENTS)
            connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


class Connection(sqlite3.Connection):
    """A connection that knows its file: one that was removed can be written, but nobody would read it."""

    path: Path | None = None
    """Absolute; None for a store in memory."""

    def open(self, path: Path) -> None:
        """Remember the file, which is open by now."""
        self.path = path.absolute()
        self.file = os.stat(path)

    def is_in_place(self) -> bool:
        """Whether the path still leads to the file."""
        try:
            return self.path is None or os.path.samestat(os.stat(self.path), self.file)
        except (FileNotFoundError, NotADirectoryError):
            return False


def connect(path: Path, *, write: bool) -> Connection:
    """Connect to the store at `path` and migrate old tables: a writer in the file, a reader in memory."""
    with explained(path):
        connection = _open(path, "rw" if write else "ro")
        try:
            schema = _schema(connection, path)
            if schema < SCHEMA and not write:
                with closing(connection) as old:
                    connection = _connect(":memory:")
                    old.backup(connection)
            for number in range(schema, SCHEMA):
                with transaction(connection, path):
                    _MIGRATIONS[number](connection, path)
                    connection.execute("UPDATE meta SET value = ? WHERE name = 'schema'", (number + 1,))
            _check_tables(connection, path)
            if write:
                connection.execute("PRAGMA journal_mode = WAL")  # readers never wait, nor make anyone wait
                connection.executescript(_SEALS)
                # A commit is on the disk when it returns: a finished trial survives the loss of power.
                connection.execute("PRAGMA synchronous = FULL")
        except BaseException as error:
            connection.close()
            if isinstance(error, sqlite3.OperationalError) and _OTHER_TABLES.search(str(error)):
                raise damaged(path) from error
            raise
    return connection


def settle_files(connection: sqlite3.Connection) -> None:
    """Leave a single file without a write-ahead log, unless somebody is reading it."""
    connection.execute("PRAGMA busy_timeout = 200")
    with suppress(sqlite3.OperationalError):
        connection.execute("PRAGMA journal_mode = DELETE")


def _open(path: Path, mode: str) -> Connection:
    address = f"file:{quote(os.fsencode(path.absolute()))}?mode={mode}"  # a name need not be Unicode
    connection = _connect(address)
    try:
        connection.execute("SELECT name FROM sqlite_master LIMIT 1")
    except sqlite3.OperationalError:
        connection.close()
        if mode == "rw" or path.with_name(path.name + "-wal").exists():
            raise
        # With WAL even a reader writes beside the file. In a folder that cannot be written there is no
        # writer, so the file does not change.
        return _connect(f"{address}&immutable=1")
    connection.open(path)
    return connection


def _connect(address: str) -> Connection:
    connection = sqlite3.connect(address, uri=True, isolation_level=None, timeout=30, factory=Connection)
    connection.create_function("crc", -1, lambda *row: zlib.crc32(repr(row).encode()), deterministic=True)
    return connection


def _schema(connection: sqlite3.Connection, path: Path) -> int:
    """The number of the schema, which this version must support."""
    try:
        meta = dict(connection.execute("SELECT name, value FROM meta"))
    except sqlite3.OperationalError as error:
        if "no such" not in str(error):
            raise
        meta = {}
    if "schema" not in meta:
        raise DataError(f"{path}: not a sweep store; it was written by another program")
    if meta["schema"] not in range(1, SCHEMA + 1):
        raise DataError(
            f"{path}: written by skipinit {meta.get('skipinit')} (store schema {meta['schema']}), and "
            f"skipinit {__version__} reads schemas up to {SCHEMA}; export it there and import it here"
        )
    return int(meta["schema"])


def _check_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Check definitions and numbers of rows, in which SQLite does not notice all damage."""
    connection.execute(f"SELECT key, checksum, {CHECKSUM_OF_TRIAL} FROM trials LIMIT 0")
    connection.execute(f"SELECT trial, checksum, {CHECKSUM_OF_EPOCH} FROM metrics LIMIT 0")
    connection.execute(f"SELECT trial, checksum, {CHECKSUM_OF_MEASUREMENT} FROM measurements LIMIT 0")
    # One statement: a row that a writer adds meanwhile is in both counts or in neither.
    [(complete,)] = connection.execute(
        "SELECT (SELECT count(*) FROM trials NOT INDEXED)"
        " = (SELECT count(*) FROM trials INDEXED BY sqlite_autoindex_trials_1)"
    )
    if not complete:
        raise damaged(path)


def _settle_trials(connection: sqlite3.Connection, path: Path) -> None:
    """From 1 to 2: the step at which a trial diverged, checksums, one identity however a config is written.

    Of trials that turn out to be the same one, the first that has a result stays.
    """
    connection.execute("ALTER TABLE trials ADD COLUMN step INTEGER")
    connection.execute("ALTER TABLE trials ADD COLUMN checksum INTEGER")
    connection.execute("ALTER TABLE metrics ADD COLUMN checksum INTEGER")
    connection.execute(f"UPDATE metrics SET checksum = {CHECKSUM_OF_EPOCH}")
    rows = connection.execute(
        "SELECT key, config, reason FROM trials ORDER BY state NOT IN ('finished', 'diverged'), key"
    ).fetchall()
    kept: set[str] = set()
    connection.execute("UPDATE trials SET id = key")  # out of each other's way
    for key, text, reason in rows:
        try:
            config = settled_from_dict(json.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: trial {key} is not one that this version knows ({error})") from error
        id = identity(config)
        if id in kept:
            connection.execute("DELETE FROM metrics WHERE trial = ?", (key,))
            connection.execute("DELETE FROM trials WHERE key = ?", (key,))
            continue
        kept.add(id)
        values = id, json.dumps(to_dict(config), sort_keys=True), step_in(reason), key
        connection.execute("UPDATE trials SET id = ?, config = ?, step = ? WHERE key = ?", values)
    connection.execute(f"UPDATE trials SET checksum = {CHECKSUM_OF_TRIAL}")


def step_in(reason: str | None) -> int | None:
    """The step at which a trial diverged, from the reason: old formats have no `step`."""
    step = re.search(r"at step (\d+)$", reason or "")
    return step and int(step[1])


def _add_measurements(connection: sqlite3.Connection, path: Path) -> None:
    """From 2 to 3: a table for the measurements of a training."""
    connection.execute(_MEASUREMENTS)


_MIGRATIONS = {1: _settle_trials, 2: _add_measurements}
"""From each schema to the next."""


@contextmanager
def transaction(connection: Connection, path: Path) -> Iterator[None]:
    """A transaction: all of it is committed, or nothing."""
    with explained(path), connection:  # which commits at the end, and rolls back what raised
        connection.execute("BEGIN IMMEDIATE")
        yield
        if not connection.is_in_place():
            raise DataError(
                f"{path}: was moved, removed or replaced while it was written; run the command again, with "
                "the new path if it was moved"
            )


_DAMAGED = "the file is damaged; take a backup, or import an export into a new folder"
_WORDS_OF_DAMAGE = ("decode to UTF-8", "user-defined function", "unsupported file format")
"""In messages of errors without a code: invalid text, its checksum, an invalid file format."""
_REASONS = {
    sqlite3.SQLITE_FULL: "the disk is full; what was recorded is safe: make room and run it again",
    sqlite3.SQLITE_IOERR: "the disk is full or failing; what was recorded is safe: mend it and run it again",
    sqlite3.SQLITE_READONLY: "it cannot be written; copy the folder to where it can",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; look at the permissions of the file and its folder",
    sqlite3.SQLITE_PERM: "it cannot be opened; look at the permissions of the file and its folder",
    sqlite3.SQLITE_BUSY: "another program keeps it locked; close that one and try again",
    sqlite3.SQLITE_NOTADB: "not a sweep store; it was written by another program",
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_TOOBIG: _DAMAGED,  # a length in the file, of a definition or a value, that cannot be
}


def damaged(path: Path) -> DataError:
    """The error for a store whose content cannot be what was written."""
    return DataError(f"{path}: {_DAMAGED}")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn errors of SQLite that the user can fix into one line; others are defects of ours."""
    with _interrupts_noticed() as interrupted:
        try:
            yield
        except UnicodeDecodeError as error:  # in SQLite's message, which quotes a damaged definition
            raise damaged(path) from error
        except sqlite3.Error as error:
            if interrupted:
                raise KeyboardInterrupt from error
            if any(words in str(error) for words in _WORDS_OF_DAMAGE):
                raise damaged(path) from error
            primary_code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if primary_code not in _REASONS:
                raise
            raise DataError(f"{path}: {_REASONS[primary_code]}") from error


@contextmanager
def _interrupts_noticed() -> Iterator[list[object]]:
    """Interrupts in `crc`. SQLite only reports that a function failed; Ctrl-C must not look like damage."""
    interrupts: list[object] = []
    before = sys.unraisablehook

    def notice(raised: sys.UnraisableHookArgs) -> None:
        if isinstance(raised.exc_value, KeyboardInterrupt):
            interrupts.append(raised.exc_value)
        elif not isinstance(raised.exc_value, UnicodeDecodeError):
            before(raised)

    sqlite3.enable_callback_tracebacks(True)  # they go to the hook
    sys.unraisablehook = notice
    try:
        yield interrupts
    finally:
        sys.unraisablehook = before
