"""Atomic writes: a file is complete or not there."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from skipinit.errors import DataError
from skipinit.files import check_folder, make_folder, write_whole


def test_a_path_that_is_written_twice_at_once_holds_one_of_the_two(tmp_path: Path) -> None:
    """As two threads would: the second writer begins and ends while the first one writes."""
    path = tmp_path / "report.json"

    def write_first(file: BinaryIO) -> None:
        file.write(b"first ")
        write_whole(path, lambda other: other.write(b"second"))
        assert path.read_bytes() == b"second"
        file.write(b"writer")

    write_whole(path, write_first)
    assert path.read_bytes() == b"first writer"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_gets_its_name_when_its_content_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    fsync = os.fsync

    def flush(descriptor: int) -> None:
        fsync(descriptor)
        assert not path.exists()
        flushed.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "fsync", flush)
    path = tmp_path / "report.json"
    write_whole(path, lambda file: file.write(b"content"))
    assert flushed == [len(b"content")]
    assert path.read_bytes() == b"content"


@pytest.mark.parametrize("path", [".", "/", "", "..", "inside", "inside/."])
def test_a_folder_is_no_file_to_write_even_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path)
    line = f"{Path(path)}: cannot be written (not a regular file); give another path"
    with pytest.raises(DataError, match=f"^{re.escape(line)}$"):
        write_whole(Path(path), lambda file: file.write(b"content"))
    assert list(tmp_path.rglob("*")) == [tmp_path / "inside"]


@pytest.mark.parametrize(
    "use", [check_folder, make_folder, lambda path: write_whole(path / "file", lambda file: file.write(b""))]
)
def test_no_folder_is_named_as_the_home_of_shells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[[Path], object]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/ada")
    line = "~/runs: cannot be made (nothing expands ~ here); give /home/ada/runs"
    with pytest.raises(DataError, match=f"^{re.escape(line)}$"):
        use(Path("~/runs"))
    assert not list(tmp_path.iterdir())
    use(tmp_path / "~backup")
