"""Training what a sweep still lacks, pack by pack, on this machine.

The store is written before the checkpoint: after a kill, a trial goes on from its checkpoint and the epochs
recorded beyond it are recorded again. A result is written once and never trained again.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..config import TrainConfig, identity
from ..data.catalog import describe
from ..errors import ConfigError
from ..files import write_whole
from ..provenance import Provenance
from ..training.data import Data, open_data
from ..training.loop import train_together
from ..training.progress import Bar, steps_bar
from ..training.records import EpochRecord
from ..training.run import Run
from ..training.stop import Stop, stopped_by_signals
from ..training.world import World, find_device
from .grid import Grid
from .packs import best_size, group, split
from .records import Epoch, Trial
from .store import Writer, open_writer


@dataclass(frozen=True)
class Outcome:
    """What a call of `run_sweep` left behind."""

    results: int
    """Trials with a result: finished or diverged."""
    failures: int
    """Trials that raised."""
    left: int
    """Trials that still owe a result."""


def run_sweep(
    grid: Grid,
    out: Path,
    *,
    device: str = "auto",
    time_limit: float | None = None,
    pack_size: int | None = None,
    checkpoint_seconds: float = 60.0,
    progress: bool = True,
    stop: Stop | None = None,
) -> Outcome:
    """Train every trial of the grid that has no result yet; the same call goes on where one ended.

    Args:
        grid: the trials.
        out: folder of the sweep: its store and its checkpoints.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        time_limit: seconds after which to stop in good order.
        pack_size: trials that step together; measured if not given.
        checkpoint_seconds: least time between two checkpoints of a pack.
        progress: show a bar where standard error is a terminal.
        stop: asks for an early end, besides signals and the time limit.
    """
    if pack_size is not None and pack_size < 1:
        raise ConfigError(f"pack_size {pack_size} is not allowed; it must be 1 or more")
    stop = stop or Stop(time_limit)
    world = World(find_device(device))
    with open_writer(out) as writer, stopped_by_signals(stop):
        writer.add(grid.trials)
        wanted = {identity(config) for config in grid.trials}
        engine = _Engine(
            writer, _Checkpoints(out / "checkpoints", checkpoint_seconds), world, stop, pack_size
        )
        owing = [trial.config for trial in writer.trials() if _owes(trial, wanted)]
        with steps_bar(sum(config.epochs for config in owing), progress) as bar:
            bar.update(0, "epochs of all trials")
            engine.train(owing, bar)
        states = [trial.state for trial in writer.trials() if trial.id in wanted]
    results = sum(state in ("finished", "diverged") for state in states)
    failures = states.count("failed")
    return Outcome(results, failures, len(states) - results - failures)


def _owes(trial: Trial, wanted: set[str]) -> bool:
    """A trial that raised is tried again: what made it raise may have been mended."""
    return trial.id in wanted and not trial.has_result


class _Checkpoints:
    """One file per unfinished trial: the run's state, and what it has cost so far."""

    def __init__(self, folder: Path, seconds_between: float) -> None:
        self.folder, self.seconds_between = folder, seconds_between

    def load(self, id: str) -> tuple[dict[str, Any] | None, float]:
        """A trial's newest state and its seconds; None where it must start anew."""
        try:
            # Mapped: to ask for a position must not read a deep network's weights.
            saved = torch.load(self._path(id), map_location="cpu", weights_only=True, mmap=True)
            return saved["run"], saved["seconds"]
        except Exception:  # absent or damaged: the trial is not lost, only its head start
            return None, 0.0

    def save(self, run: Run, seconds: float) -> None:
        """Replace a trial's state."""
        content = {"run": run.state(), "seconds": seconds}
        write_whole(self._path(identity(run.config)), lambda file: torch.save(content, file))

    def drop(self, id: str) -> None:
        """The trial has its result."""
        self._path(id).unlink(missing_ok=True)

    def _path(self, id: str) -> Path:
        return self.folder / f"{id}.pt"


class _Engine:
    """Trains packs one after the other until all have results or it is time to stop."""

    def __init__(
        self, writer: Writer, checkpoints: _Checkpoints, world: World, stop: Stop, pack_size: int | None
    ) -> None:
        self.writer, self.checkpoints, self.world, self.stop = writer, checkpoints, world, stop
        self.pack_size = pack_size
        name = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "cpu"
        self.provenance = Provenance.here(name)

    def train(self, configs: Sequence[TrainConfig], bar: Bar) -> None:
        """Give every trial its result, or its failure."""
        data: tuple[str, Data] | None = None
        for key, members in group([(config, self._position(config)) for config in configs]).items():
            if data is None or data[0] != key.data:
                data = key.data, open_data(key.data, self.world.device)
            size = self.pack_size or best_size(members, data[1], self.world)
            for pack in split(members, size):
                if self.stop.requested:
                    return
                self._train_pack(pack, data[1], bar)

    def _position(self, config: TrainConfig) -> int:
        state, _ = self.checkpoints.load(identity(config))
        return 0 if state is None else Run.position_of(state)

    def _train_pack(self, configs: Sequence[TrainConfig], data: Data, bar: Bar) -> None:
        """Train some trials together. If that raises, each alone: the one that raises again is to blame."""
        keeper = _Keeper(self.writer, self.checkpoints, bar)
        try:
            runs = [self._open(config, data, keeper) for config in configs]
            train_together(runs, data, keeper, self.stop)
        except Exception as error:
            if keeper.storing:  # no fault of a trial: nothing can be recorded any more
                raise
            if len(configs) == 1:
                reason = str(error).partition("\n")[0] or type(error).__name__
                self.writer.fail(
                    identity(configs[0]), reason, traceback.format_exc(), keeper.cost(configs[0])
                )
                return
            for config in configs:
                if identity(config) not in keeper.ended:
                    self._train_pack([config], data, bar)

    def _open(self, config: TrainConfig, data: Data, keeper: _Keeper) -> Run:
        """A run where its checkpoint left it, known to the store as running."""
        id = identity(config)
        state, seconds = self.checkpoints.load(id)
        epochs_done = 0 if state is None else len(state["records"])
        with keeper.stored():
            self.writer.start(id, self.provenance, describe(config.data).num_classes, epochs_done)
        run = Run(config, data.source(config, self.world), self.world, data.micro_batch)
        if state is not None:
            run.restore(state)
        keeper.seconds[id] = seconds
        return run


class _Keeper:
    """Tells the store of every epoch and end, and keeps checkpoints of what goes on."""

    def __init__(self, writer: Writer, checkpoints: _Checkpoints, bar: Bar) -> None:
        self.writer, self.checkpoints, self.bar = writer, checkpoints, bar
        self.fresh: list[tuple[str, Epoch]] = []
        self.ended: set[str] = set()
        self.seconds: dict[str, float] = {}
        self.storing = False
        self.charged_at = self.kept_at = time.monotonic()

    @contextmanager
    def stored(self) -> Iterator[None]:
        """Work on the store and the checkpoints; if it raises, no trial is to blame."""
        self.storing = True
        yield
        self.storing = False

    def cost(self, config: TrainConfig) -> float:
        """Seconds of the device that a trial has had."""
        return self.seconds.get(identity(config), 0.0)

    def advanced(self, runs: Sequence[Run], position: int) -> None:
        """The bar counts epochs."""

    def recorded(self, run: Run, record: EpochRecord) -> None:
        """Keep the epoch for the next commit."""
        self.fresh.append((identity(run.config), Epoch(**asdict(record))))
        self.bar.advance(1)

    def diverged(self, run: Run, step: int) -> None:
        """A result: its last epoch is the one before."""
        self._charge([run])
        id = identity(run.config)
        last = Epoch(**asdict(run.records[-1])) if run.records else None
        with self.stored():
            self.writer.diverge(id, last, f"the loss was not finite at step {step}", self.seconds[id])
            self.checkpoints.drop(id)
        self.ended.add(id)
        self.bar.advance(run.config.epochs - len(run.records))

    def paused(self, runs: Sequence[Run], last: bool) -> None:
        """Commit the epochs of all runs at once; end what is done; write checkpoints of the rest."""
        self._charge(runs)
        done = {identity(run.config) for run in runs if run.position == run.total_steps}
        with self.stored():
            self.writer.record((id, epoch) for id, epoch in self.fresh if id not in done)
            for id, epoch in self.fresh:
                if id in done:
                    self.writer.finish(id, epoch, self.seconds[id])
                    self.checkpoints.drop(id)
            if last or time.monotonic() - self.kept_at >= self.checkpoints.seconds_between:
                for run in runs:
                    if identity(run.config) not in done:
                        self.checkpoints.save(run, self.cost(run.config))
                self.kept_at = time.monotonic()
        self.fresh = []
        self.ended |= done

    def _charge(self, runs: Sequence[Run]) -> None:
        """Share the time since the last charge among the runs that had the device."""
        now = time.monotonic()
        for run in runs:
            self.seconds[identity(run.config)] += (now - self.charged_at) / len(runs)
        self.charged_at = now
