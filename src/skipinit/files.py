"""Atomic writes: a file is complete or not there. And a lock: one writer per folder."""

from __future__ import annotations

import fcntl
import glob
import itertools
import json
import os
import shlex
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from .errors import DataError, SkipinitError, system_error
from .notation import utc_now


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill a draft beside `path`, flush it to the disk, then rename it to `path`.

    Of several writers at once, in processes or threads, the last one's file remains.
    """
    with _explained(path, "written"):
        if path.exists() and not path.is_file():  # root could replace a device such as /dev/null by a file
            raise DataError(f"{path}: cannot be written (not a regular file); give another path")
        draft = path.with_name(f".{path.name}.{next(_drafts)}.{os.getpid()}")
        _make(path.parent)
        _clear_drafts(path)
        try:
            with open(draft, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)


_drafts = itertools.count()
"""Numbers the drafts of this process: two threads may write one path."""


@contextmanager
def _explained(path: Path, refused: str) -> Iterator[None]:
    """Turn an OSError into one line that names the path."""
    try:
        yield
    except OSError as error:
        raise system_error(error, path, refused) from error


def _clear_drafts(path: Path) -> None:
    """Remove the drafts of killed processes; a process that still runs may be writing its draft."""
    for draft in path.parent.glob(f".{glob.escape(path.name)}.*"):
        pid = draft.name.rpartition(".")[2]
        if pid.isdecimal() and not _lives(int(pid)):
            draft.unlink(missing_ok=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def append_whole(path: Path, line: bytes) -> None:
    """Add a line to a file in one write."""
    with _explained(path, "written"), open(path, "ab") as file:
        file.write(line)


def make_folder(path: Path) -> None:
    """Make a folder and its parents."""
    with _explained(path, "made"):
        _make(path)


def _make(folder: Path) -> None:
    _refuse_tilde(folder)
    folder.mkdir(parents=True, exist_ok=True)


def _refuse_tilde(path: Path) -> None:
    """Shells do not expand `--out=~/runs`, and nobody likes to remove a folder that is named `~`."""
    if path.parts[:1] == ("~",):
        expanded = Path.home().joinpath(*path.parts[1:])
        raise DataError(f"{path}: cannot be made (nothing expands ~ here); give {expanded}")


def check_folder(path: Path) -> None:
    """Raise DataError, before any work is done, if the folder cannot be made or written."""
    _refuse_tilde(path)
    present = next(place for place in (path, *path.absolute().parents) if os.path.lexists(place))
    if not present.is_dir():
        raise DataError(f"{path}: cannot be made ({present} is not a folder); give another path")
    if not os.access(present, os.W_OK | os.X_OK, effective_ids=True):
        raise DataError(f"{path}: cannot be written (no permission to write in {present}); give another path")


def read_whole(path: Path, advice: str = "give another path") -> bytes:
    """The content of a regular file. Others are refused: a pipe, for example, might never end."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return file.read()
    except OSError as error:
        raise system_error(error, path, "read", advice) from error
    raise DataError(f"{path}: cannot be read (not a regular file); {advice}")


_PATIENCE = 0.5
"""Seconds for which a new writer retries, because `holder` takes the lock for a moment to test it."""


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock."""

    pid: int
    host: str
    command: str
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}: {self.command}"


@contextmanager
def writer_lock(path: Path) -> Iterator[None]:
    """Hold the lock at `path`, or raise an error that names its holder.

    The file is not removed: if it were, two processes could hold the lock at once.
    """
    with _explained(path.parent, "written"):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    _held.add(descriptor)
    try:
        _acquire(descriptor, path)
        with _explained(path.parent, "written"):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(asdict(_myself())).encode(), 0)
        yield
    finally:
        if descriptor in _held:  # not in a forked child
            _held.remove(descriptor)
            os.close(descriptor)


_held: set[int] = set()
"""Descriptors of the locks that this process holds."""


def _leave_locks_to_parent() -> None:
    """Close the descriptors in a forked child, which would keep the locks if this process is killed."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_leave_locks_to_parent)


def holder(path: Path) -> Holder | None:
    """The process that holds the lock at `path`; None if it is free."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(descriptor)
    except OSError:  # a file system without locks, where `writer_lock` refuses every writer
        return None
    else:
        return None
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, path: Path) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise SkipinitError(
                    f"{path.parent} is being written by {_read(descriptor)}; wait for it, or stop it first"
                ) from None
        except OSError as error:
            raise SkipinitError(f"{path}: this file system has no file locks ({error.strerror})") from None
        time.sleep(0.05)


def _read(descriptor: int) -> Holder:
    try:
        return Holder(**json.loads(os.pread(descriptor, 65536, 0)))
    except (ValueError, TypeError):  # the holder has the lock but has not written its name yet
        return Holder(0, "this machine or another", "unknown", "now")


def _myself() -> Holder:
    return Holder(os.getpid(), socket.gethostname(), shlex.join(sys.argv), utc_now())
