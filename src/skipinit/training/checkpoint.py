"""Checkpoints: the state of an unfinished run, in a file with a format number and named contents."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from ..errors import ConfigError, DataError
from ..files import write_whole
from .records import EpochRecord
from .run import Run, momentum_buffers

FORMAT, VERSION = "skipinit checkpoint", 2

RunState = dict[str, Any]
"""All that a resumed run needs, by name, as tensors and plain values."""


def state_of(run: Run) -> RunState:
    """The state of a run at its position."""
    return {
        "model": _on_cpu(run.model.state_dict()),
        "momentum": _on_cpu(momentum_buffers(run.model, run.optimizer)),
        "step": run.position,
        "losses": run.losses.cpu(),
        "generator": {"device": run.world.device.type, "state": run.generator.get_state()},
        "records": [asdict(record) for record in run.records],
    }


def restore_run(run: Run, state: RunState) -> None:
    """Load a state. One of another kind of device is refused if the run draws random numbers."""
    here = run.world.device.type
    device, generator = state["generator"]["device"], state["generator"]["state"]
    if device == here:
        run.generator.set_state(generator)
    elif run.dropouts or run.own:
        what = "a model of your own" if run.own else "dropout"
        raise ConfigError(
            f"this run has {what} and was started on {device}; {here} cannot continue its random numbers: "
            f"use --device {device}"
        )
    kept, now = len(state["losses"]), len(run.losses)
    if kept != now:
        raise DataError(f"batches per epoch: {kept} in the checkpoint, {now} in {run.config.data}")
    restore_network(run.model, state)
    _copy(state["momentum"], momentum_buffers(run.model, run.optimizer))
    run.step.fill_(state["step"])
    run.losses.copy_(state["losses"])
    run.records = curve_in(state)


def curve_in(state: RunState) -> list[EpochRecord]:
    """The epochs of a state."""
    return [EpochRecord(**record) for record in state["records"]]


def restore_network(model: nn.Module, state: RunState) -> None:
    """Load the weights of a run's state. They fit any kind of device, unlike the generator's state."""
    _copy(state["model"], model.state_dict())


@contextmanager
def restoring(file: Path | str) -> Iterator[None]:
    """Inside, an error means that the file is of another model or data: its checksums are right."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (KeyError, TypeError, RuntimeError, DataError) as error:
        raise DataError(
            f"{file}: does not fit ({error}); if the model or the data has changed, choose another folder, "
            "or remove this file to start the run anew"
        ) from error


def _on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.cpu() for name, tensor in tensors.items()}


def _copy(saved: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """In place, because a captured graph uses these tensors."""
    if odd := sorted(saved.keys() ^ tensors.keys()):
        owner = "checkpoint" if odd[0] in saved else "model"
        raise DataError(f"only the {owner} has {odd[0]}")
    for name, tensor in tensors.items():
        if saved[name].shape != tensor.shape:  # torch would broadcast
            shapes = f"{tuple(saved[name].shape)} in the checkpoint, {tuple(tensor.shape)} in the model"
            raise DataError(f"{name} has shape {shapes}")
        tensor.copy_(saved[name])


def pack_state(run: Run, seconds: float) -> bytes:
    """The content of a checkpoint: the run's state, and the seconds it has taken."""
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, "version": VERSION, "run": state_of(run), "seconds": seconds}, buffer)
    return buffer.getvalue()


def unpack_state(file: Path | BinaryIO) -> tuple[RunState, float]:
    """State and seconds of a checkpoint; DataError, with its path, if damaged or of another version."""
    try:
        with zipfile.ZipFile(file) as archive:  # torch does not check the checksums that it writes
            if damaged := archive.testzip():
                raise DataError(f"checksum of {damaged}")
        saved = _load(file)
        version = saved.get("version") if saved.get("format") == FORMAT else 1
        state, seconds = (saved["run"], saved["seconds"]) if version == VERSION else ({}, 0.0)
    except Exception as error:  # torch raises half a dozen kinds for a damaged file
        reason = str(error).partition("\n")[0]
        raise DataError(f"{file}: is damaged ({reason}); remove it to start the run anew") from error
    if version != VERSION:
        raise DataError(
            f"{file}: a checkpoint of format {version}, and this version reads {VERSION}; "
            "remove it to start the run anew"
        )
    return state, seconds


def _load(file: Path | BinaryIO) -> dict[str, Any]:
    """The content, memory-mapped if possible: to read the position must not copy all weights."""
    if isinstance(file, Path):
        try:
            str(file).encode()
        except UnicodeEncodeError:  # torch cannot open such a name
            return _load(io.BytesIO(file.read_bytes()))
        mapped: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        return mapped
    file.seek(0)
    content: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    return content


def unpack_if_whole(file: Path | BinaryIO) -> tuple[RunState | None, float]:
    """The same, but None for a damaged checkpoint: the trial starts anew."""
    try:
        return unpack_state(file)
    except DataError:
        return None, 0.0


class Checkpoints:
    """The checkpoints of a run or sweep: a folder with a file for each unfinished trial, by its identity."""

    def __init__(self, out: Path) -> None:
        self.folder = out / "checkpoints"

    def load(self, id: str) -> tuple[RunState | None, float]:
        """A trial's newest state and its seconds; None where there is no checkpoint."""
        path = self.path(id)
        return unpack_state(path) if path.exists() else (None, 0.0)

    def load_if_whole(self, id: str) -> tuple[RunState | None, float]:
        """The same, but None for a damaged checkpoint: the trial starts anew."""
        path = self.path(id)
        return unpack_if_whole(path) if path.exists() else (None, 0.0)

    def ids(self) -> set[str]:
        """The trials that have a checkpoint."""
        return {path.stem for path in self.folder.glob("*.pt")}

    def position(self, id: str) -> int:
        """Steps that a trial has taken."""
        state, _ = self.load_if_whole(id)
        return 0 if state is None else int(state["step"])

    def read(self, id: str) -> bytes:
        """The bytes of the file; empty if there is none."""
        try:
            return self.path(id).read_bytes()
        except FileNotFoundError:
            return b""

    def save(self, id: str, content: bytes) -> None:
        """Replace a trial's state."""
        write_whole(self.path(id), lambda file: file.write(content))

    def take(self, id: str, others: Checkpoints) -> bool:
        """Copy a checkpoint from another folder if it is further than ours; returns whether it was."""
        content = others.read(id)  # before it is looked at: another process may replace it
        state, _ = unpack_if_whole(io.BytesIO(content))
        further = state is not None and int(state["step"]) > self.position(id)
        if further:
            self.save(id, content)
        return further

    def drop(self, id: str) -> None:
        """The trial has its result."""
        self.path(id).unlink(missing_ok=True)

    def clear_drafts(self) -> None:
        """Remove the unfinished files of killed processes; only the writer may call it."""
        for draft in self.folder.glob(".*.pt.*"):
            draft.unlink()

    def path(self, id: str) -> Path:
        """The file of a trial's state."""
        return self.folder / f"{id}.pt"
