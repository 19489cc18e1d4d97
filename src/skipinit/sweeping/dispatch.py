"""Shares of a sweep go out to workers, their events come back, and this process alone writes them down.

Workers are processes of this machine (`workers.py`) or of a Ray cluster (`cluster.py`). A share brings the
checkpoints of its trials along; one whose worker is lost goes out again with those that had arrived.

The store is written before the checkpoint: after a kill, a trial goes on from its checkpoint and the epochs
recorded beyond it are recorded again. A result is written once and never trained again.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..config import TrainConfig
from ..errors import SkipinitError
from ..training.checkpoint import Checkpoints
from ..training.control import Bar, Stop
from ..training.protocol import identity
from ..training.records import Diverged, Emit, Event, Failed, Finished, Kept, Measured, Recorded, Started
from .packs import group, split
from .store import Writer
from .trainer import Options, Share

_TRIES = 3
"""Losses of its worker in a row, while it stood before an epoch, after which a trial is the cause."""


class Keeper:
    """Writes what happens to trials, wherever they run: store, checkpoints, progress."""

    def __init__(
        self,
        writer: Writer,
        checkpoints: Checkpoints,
        bar: Bar,
        configs: Iterable[TrainConfig],
        keep_last: bool = False,
        observer: Emit | None = None,
    ) -> None:
        self.writer, self.checkpoints, self.bar, self.keep_last = writer, checkpoints, bar, keep_last
        self.observer = observer
        checkpoints.clear_drafts()
        self.epochs = {identity(config): config.epochs for config in configs}
        self.done = dict.fromkeys(self.epochs, 0)
        self.ended: set[str] = set()

    def take(self, event: Event) -> None:
        """Keep what happened, then tell the observer."""
        match event:
            case Started(id, provenance, classes, epochs_done):
                self.writer.start(id, provenance, classes, epochs_done)
                self._show(id, epochs_done)
            case Recorded(epochs):
                self.writer.record(epochs)
                for id, epoch in epochs:
                    self._show(id, epoch.epoch)
            case Measured(id, measurements):
                self.writer.measure(id, measurements)
            case Kept(id, content):
                self.checkpoints.save(id, content)
            case Finished(id, last, step, seconds):
                self.writer.finish(id, last, step, seconds)
                self._end(id)
            case Diverged(id, last, step, seconds):
                self.writer.diverge(id, last, step, seconds)
                self._end(id)
            case Failed(id, reason, traceback, seconds):
                self.writer.fail(id, reason, traceback, seconds)
                self.ended.add(id)
        if self.observer:
            self.observer(event)

    def groups(self, configs: Iterable[TrainConfig]) -> list[list[TrainConfig]]:
        """Those that have not ended, by what trials that step together must share."""
        left = [config for config in configs if identity(config) not in self.ended]
        return list(
            group([(config, self.checkpoints.position(identity(config))) for config in left]).values()
        )

    def _end(self, id: str) -> None:
        """It has its result, so it needs no checkpoint, but for who wants the trained network."""
        if not self.keep_last:
            self.checkpoints.drop(id)
        self.ended.add(id)
        self._show(id, self.epochs[id])

    def _show(self, id: str, epochs: int) -> None:
        self.bar.advance(epochs - self.done[id])
        self.done[id] = epochs


@dataclass(frozen=True)
class Lost:
    """A worker died with its share."""

    worker: str
    """What to call it."""
    reason: str


Task = Any
"""A pool's own name for a share under way; hashable."""


class Pool(Protocol):
    """Workers that train a share each."""

    device: str
    """`cpu` or `cuda`, as the workers know it."""
    grace: float
    """Seconds for workers that were asked to stop to hand over their last checkpoints."""

    def room(self) -> int:
        """How many shares can be under way at once; SkipinitError where there is no worker left."""

    def start(self, share: Share) -> Task:
        """Give a share to a worker that has none."""

    def receive(self, tasks: Collection[Task]) -> Iterable[tuple[Task, Event | Lost | None]]:
        """What came from some of these, after a second at most; None is the end of a share.

        Raises what went wrong outside of any trial, such as data that is not there.
        """

    def ask_to_stop(self) -> None:
        """Let every share end with checkpoints of its trials."""


class Dispatcher:
    """Who trains what: shares that wait, and those under way."""

    def __init__(self, pool: Pool, options: Options, keeper: Keeper) -> None:
        self.pool, self.options, self.keeper = pool, options, keeper
        self.waiting: deque[Sequence[TrainConfig]] = deque()
        self.tasks: dict[Task, Sequence[TrainConfig]] = {}
        self.begun: dict[Task, set[str]] = {}
        """Shares of which anything was heard, each with its trials that have started and no epoch since."""
        self.losses: Counter[str] = Counter()

    def train(self, shares: Iterable[Sequence[TrainConfig]], stop: Stop) -> None:
        """Give every trial its result, or its failure, until asked to stop."""
        # Most epochs first: begun last, a long share would keep one worker busy while the others idle.
        self.waiting.extend(sorted(shares, key=lambda configs: configs[0].epochs, reverse=True))
        while (self.waiting or self.tasks) and not stop.requested:
            while self.waiting and len(self.tasks) < self.pool.room():
                self._send(self.waiting.popleft())
            self._receive()
        self._end()

    def _send(self, configs: Sequence[TrainConfig]) -> None:
        contents = {identity(config): self.keeper.checkpoints.read(identity(config)) for config in configs}
        task = self.pool.start(Share(configs, self.options, self.pool.device, contents))
        self.begun.pop(task, None)
        self.tasks[task] = configs

    def _receive(self) -> None:
        for task, message in self.pool.receive(self.tasks.keys()):
            configs = self.tasks.pop(task)
            if isinstance(message, Lost):
                self._send_again(configs, message, self.begun.get(task))
            elif message is not None:
                self.tasks[task] = configs  # behind the others: each has its turn
                self.keeper.take(message)
                standing = self.begun.setdefault(task, set())
                if isinstance(message, Started):
                    standing.add(message.id)
                elif isinstance(message, Recorded):
                    standing.difference_update(id for id, _ in message.epochs)

    def _end(self) -> None:
        """Take what shares under way still hand over; one that has not begun has nothing to."""
        self.pool.ask_to_stop()
        deadline = time.monotonic() + self.pool.grace
        self.tasks = {task: configs for task, configs in self.tasks.items() if task in self.begun}
        while self.tasks and time.monotonic() < deadline:
            self._receive()

    def _send_again(self, configs: Sequence[TrainConfig], lost: Lost, standing: set[str] | None) -> None:
        """It died with its machine or for lack of memory, most likely, but a trial may be what killed it.

        Only one that stood before an epoch can be; where nothing was heard, any of them, or all workers die.
        """
        print(f"skipinit: {lost.worker} is lost; its trials go on elsewhere", file=sys.stderr)
        for id in map(identity, configs):
            self.losses[id] = self.losses[id] + 1 if standing is None or id in standing else 0
            if self.losses[id] == _TRIES and id not in self.keeper.ended:
                self._give_up(id, lost, heard=standing is not None)
        last_try = {id for id in map(identity, configs) if self.losses[id] == _TRIES - 1}
        for members in self.keeper.groups(configs):
            if others := [config for config in members if identity(config) not in last_try]:
                self.waiting.appendleft(others)
            alone = [config for config in members if identity(config) in last_try]
            self.waiting.extendleft(split(alone, 1))

    def _give_up(self, id: str, lost: Lost, heard: bool) -> None:
        if not heard:
            reason = lost.reason.partition("\n")[0]
            raise SkipinitError(f"workers die before they train anything ({reason})")
        reason = f"its worker died {_TRIES} times without finishing an epoch"
        self.keeper.take(Failed(id, reason, lost.reason, seconds=0.0))
