"""A callback for the Trainer of Hugging Face's transformers; needs the extra `transformers`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import DataError
from ..files import read_whole, write_whole
from ..probing.history import WatchReport, check_settings
from ..probing.watch import Watch, Writer, check_writers

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise ImportError("transformers is not installed; pip install 'skipinit[transformers]'") from error

_FILE = "skipinit_watch.json"


class WatchCallback(TrainerCallback):
    """Watches the model of a Trainer. A step is an update, as in `state.global_step`.

    The measurements are saved in the checkpoints' folders. A training that resumes in the same `output_dir`
    continues with them.

    >>> trainer = Trainer(model, args, callbacks=[WatchCallback(every=100, writers=[CsvWriter("b.csv")])])

    Args:
        every: as for `skipinit.watch`.
        limit: as for `skipinit.watch`.
        writers: functions that are called with each measurement, on the first process.
    """

    def __init__(self, every: int = 100, limit: int = 1000, writers: Iterable[Writer] = ()) -> None:
        check_settings(every, limit)
        self.watch: Watch | None = None
        self._settings = every, limit
        self._writers = check_writers(writers)

    def report(self) -> WatchReport:
        """The measurements so far."""
        return WatchReport("", (), "No training has begun.") if self.watch is None else self.watch.report()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start to watch the model that the Trainer gives."""
        model: nn.Module = kwargs["model"]
        if self.watch is not None:
            self.watch.stop()
        every, limit = self._settings
        self.watch = Watch(model, every, limit, self._writers if state.is_world_process_zero else ())
        self.watch.step = state.global_step
        saved = _checkpoint(args, state) / _FILE
        if state.global_step and saved.exists():
            self.watch.load_state_dict(_read(saved))
        self.watch.start()

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Save the measurements beside the checkpoint."""
        if self.watch is not None and state.is_world_process_zero:
            text = json.dumps(self.watch.state_dict())
            write_whole(_checkpoint(args, state) / _FILE, lambda file: file.write(text.encode()))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Remove all hooks."""
        if self.watch is not None:
            self.watch.stop()


def _read(path: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads(read_whole(path))
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}); delete it to resume without measurements") from error
    return state


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"
