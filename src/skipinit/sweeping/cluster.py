"""The engine `ray`: shares of a sweep as tasks on a Ray cluster, each one telling its events as it goes.

Nodes share no disk with this process. A task brings the checkpoints of its trials along and streams every
event back; a share that a dead node took is sent again, with the checkpoints that had arrived.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout, suppress
from functools import lru_cache
from io import BytesIO
from queue import Empty, SimpleQueue
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from .. import __version__
from ..config import TrainConfig
from ..errors import ConfigError, DataError, SkipinitError
from ..training.checkpoint import RunState, unpack_state
from ..training.control import Stop
from ..training.protocol import identity
from ..training.records import Event, Failed, Kept, Recorded
from ..training.world import World, find_device
from .engine import Keeper
from .packs import split
from .trainer import Options, Trainer, Workplace


class Bell:
    """An actor that all tasks can hear. (Ray's own way to cancel a task drops what it still has to say.)"""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    async def rung(self) -> None:
        """Return when it has been rung."""
        await self.event.wait()

    async def ring(self) -> None:
        """Ask all to stop."""
        self.event.set()


def train_share(
    share: Sequence[TrainConfig], options: Options, device: str, contents: dict[str, bytes], rung: list[Any]
) -> Iterator[Event]:
    """Train on the node's device; a thread does, and this one passes on what it tells.

    Args:
        share: trials of one group.
        options: how to train.
        device: `cpu`, or `cuda` for the GPU that Ray has given to this process.
        contents: checkpoints by the trials' identities.
        rung: the bell's answer that comes when it is time to stop.
    """
    events: SimpleQueue[Event] = SimpleQueue()
    stop = Stop()

    def load(id: str) -> tuple[RunState | None, float]:
        try:
            return unpack_state(BytesIO(contents[id]), id) if contents[id] else (None, 0.0)
        except DataError:  # damaged: the trial is not lost, only its head start
            return None, 0.0

    def emit(event: Event) -> None:
        if isinstance(event, Kept):  # should the pack raise, each of its trials goes on from here
            contents[event.id] = event.content
        events.put(event)

    with ThreadPoolExecutor(1) as thread:
        training = thread.submit(lambda: Trainer(_workplace(device), options, load, emit, stop).train(share))
        while not (training.done() and events.empty()):
            if ray.wait(rung, timeout=0, fetch_local=False)[0]:
                stop.signal = signal.SIGTERM
            with suppress(Empty):
                yield events.get(timeout=0.2)
        training.result()


@lru_cache(maxsize=1)
def _workplace(device: str) -> Workplace:
    """Ray trains many shares in one process: the data of the last one is still there."""
    return Workplace(World(find_device(device)))


_TRIES = 3
"""Losses of its worker, with no epoch in between, after which a trial is taken to be the cause."""


_GRACE = 60.0
"""Seconds for tasks to hand over their last checkpoints."""


_Task = Any  # ray's ObjectRefGenerator, which has no public type


@contextmanager
def open_cluster(device: str) -> Iterator[Cluster]:
    """The cluster that RAY_ADDRESS names, once it is known to have such a device."""
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device {device!r} cannot be chosen on a cluster; give auto, cpu or cuda")
    joined_already = ray.is_initialized()
    if not joined_already:
        _join(os.environ.get("RAY_ADDRESS") or "auto")
    try:
        yield Cluster(_choose_resource(device))
    finally:
        if not joined_already:
            with _printing_nothing():
                ray.shutdown()


def _join(address: str) -> None:
    """Become a driver of the cluster, or say in one line why not."""
    if address.startswith("ray://"):
        raise ConfigError(f"RAY_ADDRESS {address}: a client cannot; run on a node, as host:6379 or auto")
    try:
        host, colon, port = address.rpartition(":")
        if colon:  # Ray itself would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
        with _native_log_silenced():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split()).partition(". ")[0]
        raise ConfigError(
            f"no Ray cluster to join at {address} ({reason}); start one with `ray start --head`, "
            "or name one in RAY_ADDRESS as host:port"
        ) from error


@contextmanager
def _native_log_silenced() -> Iterator[None]:
    """What Ray says of a lost node is no news here and would break the bar; its level is read once, at init.

    That a level was set is announced on standard error by native code, whatever the level.
    """
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    sys.stderr.flush()
    terminal = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)


@contextmanager
def _printing_nothing() -> Iterator[None]:
    """Ray prints what a dead node has logged to standard output, where results belong, now or at shutdown."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        yield


def _choose_resource(device: str) -> str:
    """What a share asks for: a GPU where one is wanted and there, else a CPU."""
    resource = "CPU" if device == "cpu" or (device == "auto" and not _count("GPU")) else "GPU"
    if not _count(resource):
        raise ConfigError(
            f"no node of the cluster has a {resource}; it has {_count('CPU')} CPUs and {_count('GPU')} GPUs"
        )
    return resource


def _count(resource: str) -> int:
    return int(ray.cluster_resources().get(resource, 0))


class Cluster:
    """Trains shares of a sweep wherever there is room, as many at once as the cluster has devices."""

    def __init__(self, resource: str) -> None:
        self.resource = resource

    def train(
        self, groups: Sequence[Sequence[TrainConfig]], options: Options, keeper: Keeper, stop: Stop
    ) -> None:
        """Give every trial its result, or its failure, until asked to stop."""
        dispatcher = _Dispatcher(self.resource, options, keeper)
        with _printing_nothing():
            for members in groups:
                dispatcher.add(members)
            while dispatcher.busy and not stop.requested:
                dispatcher.send()
                dispatcher.receive()
            dispatcher.end()


class _Dispatcher:
    """Who trains what: shares that wait, and tasks that train theirs."""

    def __init__(self, resource: str, options: Options, keeper: Keeper) -> None:
        self.resource, self.options, self.keeper = resource, options, keeper
        self.waiting: deque[Sequence[TrainConfig]] = deque()
        self.tasks: dict[_Task, Sequence[TrainConfig]] = {}
        self.begun: set[_Task] = set()
        self.losses: Counter[str] = Counter()
        request = {"num_gpus": 1, "num_cpus": 0} if resource == "GPU" else {"num_cpus": 1}
        # Not retried by Ray: it would begin again with the checkpoints of the first time.
        self.train_share = ray.remote(num_returns="streaming", max_retries=0, **request)(train_share)
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self.bell = ray.remote(num_cpus=0, scheduling_strategy=here)(Bell).remote()
        self.rung = self.bell.rung.remote()

    @property
    def busy(self) -> bool:
        """Whether there is anything left to do."""
        return bool(self.waiting or self.tasks)

    def add(self, members: Sequence[TrainConfig]) -> None:
        """Split a group: evenly over the GPUs, where a task finds the best packs itself; on CPUs singly."""
        even = -(-len(members) // self._room()) if self.resource == "GPU" else 1
        self.waiting.extend(split(members, self.options.pack_size or even))

    def send(self) -> None:
        """Fill the cluster; nodes that have joined meanwhile count."""
        while self.waiting and len(self.tasks) < self._room():
            share = self.waiting.popleft()
            contents = {identity(config): self.keeper.checkpoints.read(identity(config)) for config in share}
            device = "cuda" if self.resource == "GPU" else "cpu"
            task = self.train_share.remote(share, self.options, device, contents, [self.rung])
            self.tasks[task] = share

    def receive(self) -> None:
        """Take the next event of a task that has one."""
        ready, _ = ray.wait(list(self.tasks), timeout=1.0)
        if not ready:
            self._room()
        for task in ready:
            share = self.tasks.pop(task)
            try:
                event = ray.get(next(task))
            except StopIteration:
                continue
            except RayTaskError as error:
                raise _explained(error) from error
            except RayError as error:
                self._send_again(share, error)
                continue
            self.tasks[task] = share  # behind the others: each has its turn
            self.begun.add(task)
            self.keeper.take(event)
            if isinstance(event, Recorded):
                for id, _ in event.epochs:
                    del self.losses[id]

    def end(self) -> None:
        """Ask the tasks to stop and take what they hand over; one that has not begun has nothing to."""
        self.bell.ring.remote()
        deadline = time.monotonic() + _GRACE
        self.tasks = {task: share for task, share in self.tasks.items() if task in self.begun}
        while self.tasks and time.monotonic() < deadline:
            self.receive()

    def _room(self) -> int:
        """How many tasks can run at once; none is an error, because Ray would wait forever."""
        if room := _count(self.resource):
            return room
        raise SkipinitError(f"no node with a {self.resource} is left; run the same command again to resume")

    def _send_again(self, share: Sequence[TrainConfig], error: RayError) -> None:
        """Its worker is gone: with its node, most likely, but a trial may be what killed it."""
        print("skipinit: a worker of the cluster is lost; its trials go on elsewhere", file=sys.stderr)
        self.losses.update(identity(config) for config in share if identity(config) not in self.keeper.ended)
        for config in share:
            if self.losses[identity(config)] >= _TRIES:
                self._give_up(identity(config), error)
        for members in self.keeper.groups(share):
            alone = any(self.losses[identity(config)] == _TRIES - 1 for config in members)
            self.waiting.extendleft(split(members, 1 if alone else len(members)))

    def _give_up(self, id: str, error: RayError) -> None:
        if id not in self.keeper.started:
            reason = str(error).partition("\n")[0]
            raise SkipinitError(f"workers of the cluster die before they train anything ({reason})")
        reason = f"its worker died {_TRIES} times without finishing an epoch"
        self.keeper.take(Failed(id, reason, str(error), seconds=0.0))


def _explained(error: RayTaskError) -> SkipinitError:
    """What went wrong on a node outside of any trial, such as data that is not there."""
    if isinstance(error.cause, SkipinitError):
        return type(error.cause)(f"on a node of the cluster: {error.cause}")
    last = str(error).strip().splitlines()[-1]
    return SkipinitError(f"a task failed ({last}); is skipinit {__version__} installed on every node?")
