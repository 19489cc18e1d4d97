"""Trains one run: a sweep of one, with files that people can read.

A run is resumed from the store and its checkpoint. These files are written for people and their tools:

- config.json: the config, with the machine and versions that began it
- metrics.jsonl: a line per epoch
- balance.csv: if the run is watched, a line per measured step and residual block
- result.json: how it ended
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..callbacks.writers import CsvWriter
from ..config import TrainConfig, to_dict
from ..errors import ConfigError, DataError, SkipinitError, need, one_line, system_errors_explained
from ..files import append_whole, write_whole
from ..notation import check_value, value_text
from ..training.checkpoint import Checkpoints, restore_run, restoring
from ..training.control import Bar, Stop, check_seconds, say_once, steps_bar, stopped_by_signals
from ..training.loop import train_together
from ..training.protocol import identity, settle
from ..training.records import (
    Diverged,
    Emit,
    EpochRecord,
    Event,
    Finished,
    Measured,
    Recorded,
    Started,
    TrainResult,
)
from ..training.run import Run
from ..training.world import World, open_world
from .dispatch import Keeper
from .grid import flatten
from .store import FILE, RUN_CONFIG, Store, Writer, open_store, open_writer
from .trainer import Reporter, Workplace


@system_errors_explained()
def train(
    config: TrainConfig,
    out: str | Path | None = None,
    *,
    device: str = "auto",
    micro_batch: int | None = None,
    checkpoint_seconds: float = 30.0,
    tensorboard: bool = False,
    progress: bool = True,
    stop: Stop | None = None,
) -> TrainResult:
    """Train a run, or resume the one in the folder `out`; a finished run is only read.

    Non-finite losses end a run with state "diverged"; SIGTERM and Ctrl-C end it "stopped", with a checkpoint.

    Args:
        config: the run; `make_train_config` fills in the protocol's defaults.
        out: folder of the run; without it nothing is written, and the run cannot be resumed.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        micro_batch: the most examples per forward pass; larger batches are accumulated.
        checkpoint_seconds: least time between two checkpoints, which are written at the end of an epoch.
        tensorboard: also write TensorBoard events into the folder (extra `tensorboard`).
        progress: show a bar where standard error is a terminal, elsewhere a line each minute.
        stop: a request to stop, besides signals.
    """
    micro_batch = _check_options(config, out is not None, micro_batch, tensorboard)
    checkpoint_seconds = check_seconds("checkpoint_seconds", checkpoint_seconds)
    config, stop, folder = settle(config), stop or Stop(), None if out is None else Path(out)
    with ExitStack() as stack:
        world = stack.enter_context(open_world(device))
        stack.enter_context(_lost_processes_explained(world))
        stack.enter_context(stopped_by_signals(stop))
        if folder and (ended := _ended(folder, config)):
            if world.leads:
                _complete(folder, ended)
            return ended
        # Before anything is written: if this fails, the folder must still take the corrected command.
        place = Workplace(world)
        run = place.make_run(config, micro_batch)
        if micro_batch is not None and run.micro_batch > micro_batch and world.leads:
            say_once(
                f"micro_batch {micro_batch} becomes {run.micro_batch}, the examples over which batch norm "
                "takes its statistics"
            )
        bar = stack.enter_context(steps_bar(run.total_steps, shown=progress and world.leads))
        emit: Emit = _discard
        if folder and world.leads:
            emit = stack.enter_context(_recorded_in(folder, config, tensorboard))
        world.wait()
        if folder and (ended := _ended(folder, config)):  # another process has finished it meanwhile
            return ended
        checkpoints = None if folder is None else Checkpoints(folder)
        state, seconds = checkpoints.load(identity(config)) if checkpoints else (None, 0.0)
        keeps = emit is not _discard
        reporter = _BarReporter(emit, checkpoint_seconds if keeps else float("inf"), keeps, bar)
        reporter.start(config, place, state, seconds)
        if checkpoints and state is not None:
            with restoring(checkpoints.path(identity(config))):
                restore_run(run, state)
        bar.update(run.position, "training")
        train_together([run], place.data(config.data), reporter, stop)
        return _result(run, reporter)


def _check_options(
    config: TrainConfig, has_folder: bool, micro_batch: int | None, tensorboard: bool
) -> int | None:
    """Refuse what cannot be, before anything is opened; returns the micro-batch as a whole number."""
    if not isinstance(config, TrainConfig):
        kind = type(config).__name__
        raise ConfigError(f"config is a {kind}; make a TrainConfig of it: make_train_config(model, data)")
    if tensorboard and not has_folder:
        raise ConfigError("TensorBoard events need a folder; give out as well")
    if tensorboard:
        need("tensorboard", "tensorboard=True")
    if config.watch is not None and not has_folder:
        raise ConfigError("what is watched needs a folder; give out as well")
    checked: int | None = check_value("micro_batch", micro_batch, int | None, ", 1 or more")
    if checked is not None and checked < 1:
        raise ConfigError(f"micro_batch {checked} is not allowed; it must be 1 or more")
    return checked


def _discard(event: Event) -> None:
    """Drop an event: without a folder, and in all processes but the first."""


class _BarReporter(Reporter):
    """A reporter that also moves the progress bar."""

    def __init__(self, emit: Emit, checkpoint_seconds: float, keep_last: bool, bar: Bar) -> None:
        super().__init__(emit, checkpoint_seconds, keep_last)
        self.bar = bar

    def advanced(self, runs: Sequence[Run], position: int) -> None:
        """Move the bar."""
        self.bar.update(position)

    def recorded(self, run: Run, record: EpochRecord) -> None:
        """Say how the epoch went."""
        super().recorded(run, record)
        self.bar.update(
            record.epoch * run.source.steps_per_epoch,
            f"epoch {record.epoch}/{run.config.epochs}: test accuracy {record.test_accuracy:.2f} %, "
            f"training loss {record.train_loss:.4f}",
        )


def _result(run: Run, reporter: Reporter) -> TrainResult:
    diverged_at = reporter.diverged_at.get(identity(run.config))
    if diverged_at is not None:
        return TrainResult("diverged", diverged_at, tuple(run.records))
    finished = run.position == run.total_steps
    return TrainResult("finished" if finished else "stopped", run.position, tuple(run.records))


def _ended(folder: Path, config: TrainConfig) -> TrainResult | None:
    """The result of this run, if it has one; refuses the folder of another run."""
    if not (folder / FILE).exists():
        if (folder / RUN_CONFIG).exists():
            raise DataError(
                f"{folder}: not a run that this version can resume (no {FILE}); choose another folder"
            )
        return None
    with open_store(folder) as store:
        _refuse_other(folder, store, config)
        trial = store.trial(identity(config))
        if trial is None or not trial.has_result:
            return None
        assert trial.step is not None, "a trial with a result has taken steps"
        return TrainResult(
            "finished" if trial.state == "finished" else "diverged", trial.step, tuple(store.curve(trial.id))
        )


def _complete(folder: Path, result: TrainResult) -> None:
    """Write the files that a process did not write because it was killed at the end; remove SQLite's."""
    missing = not (folder / "result.json").exists()
    if missing or any((folder / f"{FILE}{end}").exists() for end in ("-wal", "-journal")):
        with suppress(SkipinitError), open_writer(folder):
            if missing:
                _write_metrics(folder, result.records)
                _write_result(folder, result)


def _refuse_other(folder: Path, store: Store, config: TrainConfig) -> None:
    trials = store.trials()
    if len(trials) > 1:
        raise ConfigError(f"{folder} holds a sweep of {len(trials)} trials; choose another folder")
    if not trials or trials[0].id == identity(config):
        return
    theirs, ours = flatten(trials[0].config), flatten(config)
    name = next(name for name in ours if ours[name] != theirs[name])
    there, here = value_text(theirs[name]), value_text(ours[name])
    raise ConfigError(f"{folder} holds another run: its {name} is {there}, not {here}; choose another folder")


@contextmanager
def _recorded_in(folder: Path, config: TrainConfig, tensorboard: bool) -> Iterator[Emit]:
    """Records a run's events in the store and the checkpoint, then in the files that people read."""
    with open_writer(folder) as writer:
        _refuse_other(folder, writer, config)
        writer.add([config])
        files, checkpoints = _RunFiles(folder, writer, config, tensorboard), Checkpoints(folder)
        with closing(files), steps_bar(0, shown=False) as hidden:
            yield Keeper(writer, checkpoints, hidden, [config], keep_last=True, observer=files.take).take


class _RunFiles:
    """The files that people read and TensorBoard events, kept up to date with the store."""

    def __init__(self, folder: Path, writer: Writer, config: TrainConfig, tensorboard: bool) -> None:
        self.folder, self.writer, self.config = folder, writer, config
        self.tensorboard, self.events = tensorboard, None
        self.write_balance = CsvWriter(folder / "balance.csv")

    def take(self, event: Event) -> None:
        """Write what an event adds."""
        match event:
            case Started(id, provenance, _, curve):
                content = {"config": to_dict(self.config), "began_on": asdict(provenance)}
                if not (self.folder / RUN_CONFIG).exists():
                    write_whole(self.folder / RUN_CONFIG, lambda file: file.write(_line(content)))
                _write_metrics(self.folder, curve)
                if not self.write_balance.path.exists():  # as in a copy that `store merge` has made
                    for measurement in self.writer.measurements(id):
                        self.write_balance(measurement)
                if self.tensorboard:
                    self.events = _open_events(self.folder / "tensorboard", len(curve))
            case Recorded(((_, record),)):
                self._append(record)
            case Measured(_, measurements):
                for measurement in measurements:
                    self.write_balance(measurement)
            case Finished(id, last, step, _):
                self._append(last)
                _write_result(self.folder, TrainResult("finished", step, tuple(self.writer.curve(id))))
            case Diverged(id, _, step, _):
                _write_result(self.folder, TrainResult("diverged", step, tuple(self.writer.curve(id))))

    def _append(self, record: EpochRecord) -> None:
        append_whole(self.folder / "metrics.jsonl", _line(asdict(record)))
        if self.events:
            for name, value in asdict(record).items():
                if name != "epoch" and value is not None:
                    self.events.add_scalar(name, value, record.epoch)
            self.events.flush()

    def close(self) -> None:
        """End the thread that writes TensorBoard events."""
        if self.events:
            self.events.close()


def _open_events(folder: Path, epochs_done: int) -> Any:
    """Continues the curves after `epochs_done`; later points of an earlier attempt are removed."""
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=epochs_done + 1)


def _write_metrics(folder: Path, curve: Sequence[EpochRecord]) -> None:
    lines = b"".join(_line(asdict(record)) for record in curve)
    write_whole(folder / "metrics.jsonl", lambda file: file.write(lines))


def _write_result(folder: Path, result: TrainResult) -> None:
    final = None if result.final is None else asdict(result.final)
    content = {"state": result.state, "step": result.step, "final": final}
    write_whole(folder / "result.json", lambda file: file.write(_line(content)))


def _line(content: object) -> bytes:
    return json.dumps(content).encode() + b"\n"


@contextmanager
def _lost_processes_explained(world: World) -> Iterator[None]:
    """If a process that decodes images has died, or another one of the job, whose own error says why."""
    try:
        yield
    except RuntimeError as error:
        # torch raises it from a signal handler, wherever the run is.
        if any(words in str(error) for words in ("DataLoader worker", "Communication with the workers")):
            reason = one_line(error).rstrip(".")
            raise SkipinitError(f"{reason}; run the command again to resume") from error
        if world.size == 1 or not any(word in str(error) for word in ("gloo", "NCCL", "Connection closed")):
            raise
        raise SkipinitError(
            f"process {world.rank} lost the others; see their error, then run the command again to resume"
        ) from error
