"""Operations of the file layer fail, one by one: one line, no stray file, the same result afterwards."""

from __future__ import annotations

import builtins
import errno
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from skipinit import files
from skipinit.config import ModelConfig, TrainConfig
from skipinit.errors import SkipinitError
from skipinit.reporting.page import report
from skipinit.sweeping.exchange import export_results, read_results
from skipinit.sweeping.single import train
from skipinit.sweeping.store import open_store
from skipinit.sweeping.trained import export
from support.torture import Torture

CONFIG = TrainConfig(ModelConfig("wrn10_1", "skipinit"), "digits", lr=0.1, batch_size=512, epochs=2)
ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EDQUOT)


class FailingDisk:
    """Stands in for `os` and `open` in the file layer; operation number `fails` raises instead."""

    def __init__(self, fails: int | None = None, code: int = errno.EIO) -> None:
        self.operations = 0
        self.fails, self.code = fails, code

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _count(self) -> None:
        self.operations += 1
        if self.operations - 1 == self.fails:
            raise OSError(self.code, os.strerror(self.code))

    def fsync(self, descriptor: int) -> None:
        self._count()
        os.fsync(descriptor)

    def replace(self, source: Path, target: Path) -> None:
        self._count()
        os.replace(source, target)

    def pwrite(self, descriptor: int, content: bytes, offset: int) -> int:
        self._count()
        return os.pwrite(descriptor, content, offset)

    def open(self, path: Path, *arguments: Any) -> int:
        self._count()
        return os.open(path, *arguments)

    def open_file(self, path: Any, mode: str) -> BinaryIO:
        self._count()
        file: BinaryIO = builtins.open(path, mode)  # type: ignore[assignment]  # noqa: SIM115
        whole_write = file.write

        def write(content: Any) -> int:
            try:
                self._count()
            except OSError:
                whole_write(bytes(content)[: len(content) // 2])  # a short write, then the error
                raise
            return whole_write(content)

        return _Written(file, write) if "b" in mode and mode != "rb" else file


class _Written:
    """A file whose `write` is another; everything else is its own."""

    def __init__(self, file: BinaryIO, write: Any) -> None:
        self._file, self.write = file, write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Written:
        return self

    def __exit__(self, *details: object) -> None:
        self._file.close()


@contextmanager
def disk(fails: int | None = None, code: int = errno.EIO) -> Iterator[FailingDisk]:
    failing = FailingDisk(fails, code)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "os", failing)
        patch.setattr(files, "open", failing.open_file, raising=False)
        yield failing


def everything(root: Path) -> None:
    """What writes: a training with its run files and checkpoints, a saved network, an export, a report."""
    train(CONFIG, root / "run", device="cpu", progress=False)
    export(root / "run", root / "model")
    with open_store(root / "run") as store:
        export_results(store, root / "results.jsonl", curves=True)
    report([root / "run"], root / "report.html")


def measured(root: Path) -> object:
    [(trial, curve)] = read_results(root / "results.jsonl")
    return [(epoch.train_loss, epoch.test_accuracy, epoch.test_loss) for epoch in curve], trial.config


def names(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def test_every_failure_is_one_line_and_nothing_is_lost(tmp_path: Path, torture: Torture) -> None:
    whole = tmp_path / "whole"
    with disk() as counted:
        everything(whole)
    expected, places = measured(whole), names(whole)
    assert counted.operations > 20
    for seed in torture.cases(5):
        number = seed * 7 % counted.operations  # far apart, and each has its turn
        root = tmp_path / f"failed-{seed}"
        with (
            disk(number, random.Random(seed).choice(ERRORS)),
            pytest.raises(SkipinitError) as raised,
        ):
            everything(root)
        torture.count("injected errors")
        line = str(raised.value)
        assert str(root) in line, f"operation {number}: {line}"
        assert "\n" not in line, f"operation {number}: {line}"
        everything(root)
        assert measured(root) == expected, f"operation {number}"
        assert names(root) == places, f"operation {number}"
        torture.count("results compared")
        shutil.rmtree(root)
