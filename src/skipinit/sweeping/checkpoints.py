"""Where unfinished trials stand: for each, the run's state and what it has cost so far."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ..files import write_whole
from ..training.run import Run

State = dict[str, Any]
Load = Callable[[str], tuple[State | None, float]]
"""A trial's newest state and its seconds, by its identity; None where it must start anew."""


def pack_state(run: Run, seconds: float) -> bytes:
    """The content of a checkpoint."""
    buffer = io.BytesIO()
    torch.save({"run": run.state(), "seconds": seconds}, buffer)
    return buffer.getvalue()


def unpack_state(file: Path | BinaryIO) -> tuple[State | None, float]:
    """State and seconds of a checkpoint."""
    try:
        # Mapped: to ask for a position must not read a deep network's weights.
        mapped = isinstance(file, Path)
        saved = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
        return saved["run"], saved["seconds"]
    except Exception:  # absent or damaged: the trial is not lost, only its head start
        return None, 0.0


class Checkpoints:
    """A folder with a file for each unfinished trial."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, id: str) -> tuple[State | None, float]:
        """A trial's newest state and its seconds; None where it must start anew."""
        return unpack_state(self._path(id))

    def position(self, id: str) -> int:
        """Steps that a trial has taken."""
        state, _ = self.load(id)
        return 0 if state is None else Run.position_of(state)

    def read(self, id: str) -> bytes:
        """The file as it is; empty where there is none."""
        path = self._path(id)
        return path.read_bytes() if path.exists() else b""

    def save(self, id: str, content: bytes) -> None:
        """Replace a trial's state."""
        write_whole(self._path(id), lambda file: file.write(content))

    def drop(self, id: str) -> None:
        """The trial has its result."""
        self._path(id).unlink(missing_ok=True)

    def _path(self, id: str) -> Path:
        return self.folder / f"{id}.pt"
