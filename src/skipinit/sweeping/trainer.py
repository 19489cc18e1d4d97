"""Training trials on one device, pack by pack, and telling of everything that happens to them.

Whoever listens keeps it: a store in this process, or one on another machine.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..config import TrainConfig, identity
from ..data.catalog import describe
from ..provenance import Provenance
from ..training.control import Stop
from ..training.loop import train_together
from ..training.records import Diverged, EpochRecord, Event, Failed, Finished, Kept, Recorded, Started, Tell
from ..training.run import Run
from ..training.sources import Data, open_data
from ..training.world import World, find_device
from .checkpoints import Load, pack_state
from .packs import best_size, split


@dataclass(frozen=True)
class Options:
    """How to train, besides what."""

    pack_size: int | None
    """Trials that step together; measured if not given."""
    checkpoint_seconds: float
    """Least time between two checkpoints of a pack."""


class Workplace:
    """A device, and the data that was last worked on there."""

    def __init__(self, device: str) -> None:
        self.world = World(find_device(device))
        on_gpu = self.world.device.type == "cuda"
        self.provenance = Provenance.here(torch.cuda.get_device_name(self.world.device) if on_gpu else "cpu")
        self._data: tuple[str, Data] | None = None

    def data(self, name: str) -> Data:
        """A data set, read once for as long as no other is asked for."""
        if self._data is None or self._data[0] != name:
            self._data = None  # two may not fit
            self._data = name, open_data(name, self.world.device)
        return self._data[1]


class Trainer:
    """Trains packs one after the other until all have results or it is time to stop."""

    def __init__(self, place: Workplace, options: Options, load: Load, tell: Tell, stop: Stop) -> None:
        self.place, self.options, self.load, self.tell, self.stop = place, options, load, tell, stop

    def train(self, configs: Sequence[TrainConfig]) -> None:
        """Give trials of the same data, batch size, length and position their results or failures."""
        if self.stop.requested:
            return
        data = self.place.data(configs[0].data)
        size = self.options.pack_size or best_size(configs, data, self.place.world)
        for pack in split(configs, size):
            if self.stop.requested:
                return
            self._train_pack(pack, data)

    def _train_pack(self, configs: Sequence[TrainConfig], data: Data) -> None:
        """Train some trials together. If that raises, each alone: the one that raises again is to blame."""
        reporter = _Reporter(self.tell, self.options.checkpoint_seconds)
        try:
            runs = [self._open(config, data, reporter) for config in configs]
            train_together(runs, data, reporter, self.stop)
        except Exception as error:
            if reporter.telling:  # no fault of a trial: nothing can be recorded any more
                raise
            if len(configs) == 1:
                id = identity(configs[0])
                reason = str(error).partition("\n")[0] or type(error).__name__
                self.tell(Failed(id, reason, traceback.format_exc(), reporter.seconds.get(id, 0.0)))
                return
            for config in configs:
                if identity(config) not in reporter.ended:
                    self._train_pack([config], data)

    def _open(self, config: TrainConfig, data: Data, reporter: _Reporter) -> Run:
        """A run where its checkpoint left it, known to the store as running."""
        id = identity(config)
        state, seconds = self.load(id)
        epochs_done = 0 if state is None else len(state["records"])
        classes = describe(config.data).num_classes
        reporter.tell(Started(id, self.place.provenance, classes, epochs_done))
        run = Run(config, data.source(config, self.place.world), self.place.world, data.micro_batch)
        if state is not None:
            run.restore(state)
        reporter.seconds[id] = seconds
        return run


class _Reporter:
    """Tells of every epoch and end of a pack, and hands over checkpoints of what goes on."""

    def __init__(self, tell: Tell, checkpoint_seconds: float) -> None:
        self._tell, self.checkpoint_seconds = tell, checkpoint_seconds
        self.fresh: list[tuple[str, EpochRecord]] = []
        self.ended: set[str] = set()
        self.seconds: dict[str, float] = {}
        """Of the device that each trial has had."""
        self.telling = False
        self.charged_at = self.kept_at = time.monotonic()

    def tell(self, event: Event) -> None:
        """Tell it; if that raises, no trial is to blame."""
        self.telling = True
        self._tell(event)
        self.telling = False

    def advanced(self, runs: Sequence[Run], position: int) -> None:
        """Only epochs count."""

    def recorded(self, run: Run, record: EpochRecord) -> None:
        """Keep the epoch until all runs of the pack have theirs."""
        self.fresh.append((identity(run.config), record))

    def diverged(self, run: Run, step: int) -> None:
        """A result: its last epoch is the one before."""
        self._charge([run])
        id = identity(run.config)
        last = run.records[-1] if run.records else None
        self.tell(Diverged(id, last, f"the loss was not finite at step {step}", self.seconds[id]))
        self.ended.add(id)

    def paused(self, runs: Sequence[Run], last: bool) -> None:
        """Tell the epochs of all runs at once, then who is done; hand over checkpoints of the rest."""
        self._charge(runs)
        done = {identity(run.config) for run in runs if run.position == run.total_steps}
        going_on = tuple((id, epoch) for id, epoch in self.fresh if id not in done)
        if going_on:
            self.tell(Recorded(going_on))
        for id, epoch in self.fresh:
            if id in done:
                self.tell(Finished(id, epoch, self.seconds[id]))
        if last or time.monotonic() - self.kept_at >= self.checkpoint_seconds:
            for run in runs:
                id = identity(run.config)
                if id not in done:
                    self.tell(Kept(id, pack_state(run, self.seconds[id])))
            self.kept_at = time.monotonic()
        self.fresh = []
        self.ended |= done

    def _charge(self, runs: Sequence[Run]) -> None:
        """Share the time since the last charge among the runs that had the device."""
        now = time.monotonic()
        for run in runs:
            self.seconds[identity(run.config)] += (now - self.charged_at) / len(runs)
        self.charged_at = now
