"""Training one run from a config: what `skipinit train` does."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ..config import TrainConfig
from ..errors import ConfigError, SkipinitError
from .control import Bar, Stop, steps_bar, stopped_by_signals
from .folder import RunFolder
from .loop import train_together
from .records import EpochRecord, TrainResult
from .run import Run
from .sources import open_data
from .tensorboard import Events
from .world import World, open_world


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
    """Train to the end, or go on where the folder `out` stands; a finished run is only read.

    Non-finite losses end a run with state "diverged"; SIGTERM and Ctrl-C end it "stopped", with a checkpoint.

    Args:
        config: the run; `make_train_config` fills in the protocol's defaults.
        out: folder for everything the run leaves; without it nothing is written, nothing can be resumed.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        micro_batch: examples on the device at once; a batch is accumulated from as many as it takes.
        checkpoint_seconds: least time between two checkpoints, which are written at the end of an epoch.
        tensorboard: also write TensorBoard events into the folder (extra `tensorboard`).
        progress: show a bar where standard error is a terminal.
        stop: asks for an early end; by default only signals do.
    """
    if tensorboard and out is None:
        raise ConfigError("TensorBoard events need a folder; give out as well")
    if micro_batch is not None and micro_batch < 1:
        raise ConfigError(f"micro_batch {micro_batch} is not allowed; it must be 1 or more")
    stop = stop or Stop()
    folder = None if out is None else RunFolder(Path(out))
    with ExitStack() as stack:
        world = stack.enter_context(open_world(device))
        stack.enter_context(_lost_processes_explained(world))
        stack.enter_context(stopped_by_signals(stop))
        ended = folder.ended(config) if folder else None
        if ended:
            return ended
        # A config that cannot be built must not claim the folder: the corrected command would be refused.
        data = open_data(config.data, world.device)
        run = Run(config, data.source(config, world), world, micro_batch or data.micro_batch)
        if folder:
            if world.leads:
                stack.enter_context(folder.lock())
                folder.claim(config, str(world.device))
            world.wait()
            folder.restore(run)
        bar = stack.enter_context(steps_bar(run.total_steps, shown=progress and world.leads))
        keeper = _Keeper(folder if world.leads else None, bar, checkpoint_seconds, tensorboard)
        keeper.begin(run)
        train_together([run], data, keeper, stop)
        return keeper.end(run)


class _Keeper:
    """Keeps a run's files up to date and shows how it goes."""

    def __init__(self, folder: RunFolder | None, bar: Bar, checkpoint_seconds: float, events: bool) -> None:
        self.folder, self.bar, self.checkpoint_seconds = folder, bar, checkpoint_seconds
        self.writes_events = events
        self.events: Events | None = None
        self.kept_at = time.monotonic()
        self.diverged_at: int | None = None

    def begin(self, run: Run) -> None:
        """Take the run up where its checkpoint left it."""
        if self.folder:
            self.folder.rewind(run.records)
            if self.writes_events:
                self.events = Events(self.folder.path / "tensorboard", len(run.records))
        self.bar.update(run.position, "training")

    def advanced(self, runs: Sequence[Run], position: int) -> None:
        """Move the bar."""
        self.bar.update(position)

    def recorded(self, run: Run, record: EpochRecord) -> None:
        """Write the epoch's line."""
        if self.folder:
            self.folder.append(record)
        if self.events:
            self.events.add(record)
        self.bar.update(
            record.epoch * run.source.steps_per_epoch,
            f"epoch {record.epoch}/{run.config.epochs}: test accuracy {record.test_accuracy:.2f} %, "
            f"training loss {record.train_loss:.4f}",
        )

    def diverged(self, run: Run, step: int) -> None:
        """Remember where it happened."""
        self.diverged_at = step

    def paused(self, runs: Sequence[Run], last: bool) -> None:
        """Write a checkpoint if it is time to, or the last chance."""
        due = time.monotonic() - self.kept_at >= self.checkpoint_seconds
        if self.folder and (last or due):
            for run in runs:
                self.folder.keep(run)
            self.kept_at = time.monotonic()

    def end(self, run: Run) -> TrainResult:
        """How it ended; an end for good is written down."""
        records = tuple(run.records)
        if self.diverged_at is not None:
            result = TrainResult("diverged", self.diverged_at, records)
        elif run.position < run.total_steps:
            return TrainResult("stopped", run.position, records)
        else:
            result = TrainResult("finished", run.position, records)
        if self.folder:
            self.folder.finish(result)
        return result


@contextmanager
def _lost_processes_explained(world: World) -> Iterator[None]:
    """Where another process of the job has died, say that in one line; its own error says why."""
    try:
        yield
    except RuntimeError as error:
        if world.size == 1 or not any(word in str(error) for word in ("gloo", "NCCL", "Connection closed")):
            raise
        raise SkipinitError(
            f"process {world.rank} lost the others; see their error, then run the same command to go on"
        ) from error
