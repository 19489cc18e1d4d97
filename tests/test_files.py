"""Atomic writes: a file is complete or not there."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from skipinit.files import write_whole


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
