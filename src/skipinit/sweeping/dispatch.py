"""Sends shares of a sweep to workers and records their events; only this process writes.

Workers are processes of this machine (`workers.py`) or of a Ray cluster (`cluster.py`). A share contains the
checkpoints of its trials. If its worker is lost, it is sent again, with the newest checkpoints.

The store is written before the checkpoint: after a kill, a trial resumes from its checkpoint, and the epochs
after it are recorded again. In a copy of the folder the checkpoint may be newer than the store; so it brings
its epochs. A result is written once and never trained again.
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
from .grid import config_name, group, split
from .store import Writer
from .trainer import Options, Share

_TRIES = 3
"""How many workers in a row a trial may lose, without finishing an epoch, until it counts as the cause."""


class Keeper:
    """Records the events of trials in store, checkpoints and progress bar."""

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
        self.configs = {identity(config): config for config in configs}
        self.done = dict.fromkeys(self.configs, 0)
        self.training: dict[str, None] = {}
        """Trials that have started and not ended; a set that keeps the order."""
        self.ended: set[str] = set()

    def take(self, event: Event) -> None:
        """Record an event, then call the observer."""
        match event:
            case Started(id, provenance, classes, curve):
                self.writer.start(id, provenance, classes, curve)
                self.training[id] = None
                self._show(id, len(curve))
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
                self._end(id, has_result=True)
            case Diverged(id, last, step, seconds):
                self.writer.diverge(id, last, step, seconds)
                self._end(id, has_result=True)
            case Failed(id, reason, traceback, seconds):
                self.writer.fail(id, reason, traceback, seconds)
                self._end(id, has_result=False)
        if self.observer:
            self.observer(event)

    def groups(self, configs: Iterable[TrainConfig]) -> list[list[TrainConfig]]:
        """The trials that have not ended, grouped by what a pack must share."""
        left = [config for config in configs if identity(config) not in self.ended]
        return list(
            group([(config, self.checkpoints.position(identity(config))) for config in left]).values()
        )

    def _end(self, id: str, has_result: bool) -> None:
        """Drop the checkpoint of a result, unless the trained network is to be kept. No epoch is left."""
        if has_result and not self.keep_last:
            self.checkpoints.drop(id)
        self.ended.add(id)
        self.training.pop(id, None)
        self._show(id, self.configs[id].epochs)

    def _show(self, id: str, epochs: int) -> None:
        first, more = next(iter(self.training), None), len(self.training) - 1
        self.bar.note = f"; training {config_name(self.configs[first])}" if first else ""
        self.bar.note += f" and {more} more" if more > 0 else ""
        self.bar.advance(epochs - self.done[id])
        self.done[id] = epochs


@dataclass(frozen=True)
class Lost:
    """A worker died before its share was done."""

    worker: str
    """Its name in messages."""
    reason: str


Task = Any
"""A pool's handle of a share in progress; hashable."""


class Pool(Protocol):
    """Workers that train a share each."""

    device: str
    """The device of the workers, `cpu` or `cuda`."""
    grace: float
    """Seconds that workers get, when asked to stop, to send their last checkpoints."""

    def room(self) -> int:
        """How many shares can run at once; SkipinitError if no worker is left."""

    def start(self, share: Share) -> Task:
        """Give a share to an idle worker."""

    def receive(self, tasks: Collection[Task]) -> Iterable[tuple[Task, Event | Lost | None]]:
        """Events of some tasks, after a second at most; None is the end of a share.

        Raises errors that are no trial's, such as missing data.
        """

    def ask_to_stop(self) -> None:
        """Ask every worker to stop and to send checkpoints of its trials."""


class Dispatcher:
    """Distributes shares over the workers of a pool."""

    def __init__(self, pool: Pool, options: Options, keeper: Keeper) -> None:
        self.pool, self.options, self.keeper = pool, options, keeper
        self.waiting: deque[Sequence[TrainConfig]] = deque()
        self.tasks: dict[Task, Sequence[TrainConfig]] = {}
        self.begun: dict[Task, set[str]] = {}
        """By share that has sent an event: its trials that have started and finished no epoch since."""
        self.losses: Counter[str] = Counter()

    def train(self, shares: Iterable[Sequence[TrainConfig]], stop: Stop) -> None:
        """Train until every trial has a result or a failure, or until `stop` is requested."""
        # Most epochs first: a long share at the end would keep one worker busy while the others are idle.
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
        self.keeper.bar.tick()  # an epoch can take an hour
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
        """Ask workers to stop, and record their last events; a share that has sent none has none."""
        self.pool.ask_to_stop()
        deadline = time.monotonic() + self.pool.grace
        self.tasks = {task: configs for task, configs in self.tasks.items() if task in self.begun}
        while self.tasks and time.monotonic() < deadline:
            self._receive()

    def _send_again(self, configs: Sequence[TrainConfig], lost: Lost, standing: set[str] | None) -> None:
        """Send the trials of a lost worker again, and give up those that seem to kill workers.

        Most workers are lost with their machine or for lack of memory. If a trial is the cause, it has
        started and finished no epoch since. If the share has sent no event, it can be any trial, or none.
        """
        print(f"skipinit: {lost.worker} is lost; its trials resume on another", file=sys.stderr)
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
