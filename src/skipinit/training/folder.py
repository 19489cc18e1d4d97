"""A run as a folder: what it is, what it measured, where it stands, how it ended. Nothing lies elsewhere.

- config.json: the config, with the machine and versions that began it
- metrics.jsonl: a line per epoch
- checkpoint.pt: the newest complete state, loaded with weights_only
- result.json: how it ended; where it is, nothing is left to do
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ..config import TrainConfig, to_dict, train_from_dict
from ..errors import ConfigError, DataError, SkipinitError
from ..files import write_whole, writer_lock
from ..provenance import Provenance
from .records import EpochRecord, TrainResult
from .run import Run

_FILES = ("config.json", "metrics.jsonl", "checkpoint.pt", "result.json")


class RunFolder:
    """The files of one run. Each is complete or absent, whenever the process is killed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lock(self) -> AbstractContextManager[None]:
        """Keep other processes from writing here."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SkipinitError(
                f"{self.path}: cannot be made ({error.strerror}); choose another folder"
            ) from error
        return writer_lock(self.path / "lock")

    def ended(self, config: TrainConfig) -> TrainResult | None:
        """How this very run ended, if it did; only reads."""
        self._refuse_other(config)
        return self.result()

    def claim(self, config: TrainConfig, device: str) -> None:
        """Make the folder this run's, or check that it is; clear away the drafts of a killed process."""
        self._refuse_other(config)
        for draft in (draft for name in _FILES for draft in self.path.glob(f".{name}.*")):
            draft.unlink()
        path = self.path / "config.json"
        if not path.exists():
            content = {"config": to_dict(config), "began_on": asdict(Provenance.here(device))}
            write_whole(path, lambda file: file.write(_json(content)))

    def _refuse_other(self, config: TrainConfig) -> None:
        if not (self.path / "config.json").exists():
            return
        theirs, ours = _flat(to_dict(self.config())), _flat(to_dict(config))
        for name in ours:
            if ours[name] != theirs[name]:
                raise ConfigError(
                    f"{self.path} holds another run: its {name} is {theirs[name]}, not {ours[name]}; "
                    "choose another folder"
                )

    def config(self) -> TrainConfig:
        """What the run is."""
        path = self.path / "config.json"
        try:
            return train_from_dict(json.loads(path.read_text())["config"])
        except OSError as error:
            raise DataError(f"{path}: cannot be read; is {self.path} the folder of a run?") from error
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: is not a run's config of this version ({error})") from error

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is anything to restore."""
        return self._checkpoint.exists()

    @property
    def _checkpoint(self) -> Path:
        return self.path / "checkpoint.pt"

    def restore(self, run: Run) -> None:
        """Bring a run to where its checkpoint stands, if there is one."""
        if self.has_checkpoint:
            self._load_into(run.restore)

    def restore_network(self, run: Run) -> None:
        """Only its network: a generator's state belongs to the kind of device that the run was on."""

        def restore(state: dict[str, Any]) -> None:
            network = run.model.state_dict().values()  # the first of a run's changing tensors
            for tensor, saved in zip(network, state["tensors"], strict=False):
                tensor.copy_(saved)

        self._load_into(restore)

    def _load_into(self, restore: Callable[[dict[str, Any]], None]) -> None:
        try:
            restore(torch.load(self._checkpoint, map_location="cpu", weights_only=True))
        except SkipinitError:
            raise
        except Exception as error:  # torch raises half a dozen kinds for a damaged file
            reason = str(error).partition("\n")[0]
            raise DataError(
                f"{self._checkpoint}: is damaged ({reason}); remove it to start the run anew"
            ) from error

    def rewind(self, records: Sequence[EpochRecord]) -> None:
        """Make these the metrics, dropping what came after the checkpoint."""
        lines = b"".join(_json(asdict(record)) for record in records)
        write_whole(self.path / "metrics.jsonl", lambda file: file.write(lines))

    def append(self, record: EpochRecord) -> None:
        """Add an epoch's line."""
        path = self.path / "metrics.jsonl"
        try:
            with open(path, "ab") as file:
                file.write(_json(asdict(record)))
        except OSError as error:
            raise SkipinitError(f"{path}: cannot be written ({error.strerror})") from error

    def keep(self, run: Run) -> None:
        """Replace the checkpoint."""
        write_whole(self._checkpoint, lambda file: torch.save(run.state(), file))

    def finish(self, result: TrainResult) -> None:
        """Say how it ended."""
        final = None if result.final is None else asdict(result.final)
        content = {"state": result.state, "step": result.step, "final": final}
        write_whole(self.path / "result.json", lambda file: file.write(_json(content)))

    def result(self) -> TrainResult | None:
        """How it ended, if it did."""
        path = self.path / "result.json"
        if not path.exists():
            return None
        try:
            content = json.loads(path.read_text())
            lines = (self.path / "metrics.jsonl").read_text().splitlines()
            records = tuple(EpochRecord(**json.loads(line)) for line in lines)
            return TrainResult(content["state"], content["step"], records)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path}: it or metrics.jsonl beside it is damaged ({error}); "
                "remove it, and the run goes on from its checkpoint"
            ) from error


def _json(content: object) -> bytes:
    return json.dumps(content).encode() + b"\n"


def _flat(nested: dict[str, Any]) -> dict[str, Any]:
    """The fields of a config and of the model in it, by dotted name."""
    model = {f"model.{name}": value for name, value in nested["model"].items()}
    return model | {name: value for name, value in nested.items() if name != "model"}
