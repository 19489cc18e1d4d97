"""Keeping what is told of trials: epochs and ends in the store, checkpoints in their folder, all in the bar.

The store is written before the checkpoint: after a kill, a trial goes on from its checkpoint and the epochs
recorded beyond it are recorded again. A result is written once and never trained again.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..config import TrainConfig, identity
from ..training.progress import Bar
from .checkpoints import Checkpoints
from .events import Diverged, Event, Failed, Finished, Kept, Recorded, Started
from .packs import group
from .store import Writer


class Keeper:
    """The one who writes, wherever trials run."""

    def __init__(
        self, writer: Writer, checkpoints: Checkpoints, bar: Bar, configs: Iterable[TrainConfig]
    ) -> None:
        self.writer, self.checkpoints, self.bar = writer, checkpoints, bar
        self.epochs = {identity(config): config.epochs for config in configs}
        self.done = dict.fromkeys(self.epochs, 0)
        self.started: set[str] = set()
        self.ended: set[str] = set()

    def take(self, event: Event) -> None:
        """Keep what happened."""
        match event:
            case Started(id, provenance, classes, epochs_done):
                self.writer.start(id, provenance, classes, epochs_done)
                self.started.add(id)
                self._show(id, epochs_done)
            case Recorded(epochs):
                self.writer.record(epochs)
                for id, epoch in epochs:
                    self._show(id, epoch.epoch)
            case Kept(id, content):
                self.checkpoints.save(id, content)
            case Finished(id, last, seconds):
                self.writer.finish(id, last, seconds)
                self._end(id)
            case Diverged(id, last, reason, seconds):
                self.writer.diverge(id, last, reason, seconds)
                self._end(id)
            case Failed(id, reason, traceback, seconds):
                self.writer.fail(id, reason, traceback, seconds)
                self.ended.add(id)

    def groups(self, configs: Iterable[TrainConfig]) -> list[list[TrainConfig]]:
        """Those that have not ended, by what trials that step together must share."""
        left = [config for config in configs if identity(config) not in self.ended]
        return list(
            group([(config, self.checkpoints.position(identity(config))) for config in left]).values()
        )

    def _end(self, id: str) -> None:
        """It has its result, so it needs no checkpoint."""
        self.checkpoints.drop(id)
        self.ended.add(id)
        self._show(id, self.epochs[id])

    def _show(self, id: str, epochs: int) -> None:
        self.bar.advance(epochs - self.done[id])
        self.done[id] = epochs
