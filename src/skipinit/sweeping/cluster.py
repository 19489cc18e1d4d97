"""The engine `ray`: shares of a sweep as tasks on a Ray cluster, which stream their events back."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout, suppress
from queue import Empty, SimpleQueue
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from .. import __version__
from ..config import TrainConfig
from ..errors import ConfigError, SkipinitError, one_line
from ..notation import count_text
from ..training.control import Stop
from ..training.records import Event
from .dispatch import Dispatcher, Keeper, Lost, Task
from .engine import Engine
from .grid import split
from .trainer import Options, Share, train_share


class Bell:
    """An actor that asks all tasks to stop. (To cancel a task in Ray would lose its last events.)"""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    async def rung(self) -> None:
        """Wait until it rings."""
        await self.event.wait()

    async def ring(self) -> None:
        """Ask all tasks to stop."""
        self.event.set()


def stream_share(share: Share, rung: list[Any]) -> Iterator[Event]:
    """Train in a thread, on the node's device, and yield its events.

    Args:
        share: the trials to train.
        rung: a list of one reference, of the call to `Bell.rung`; it is ready when it is time to stop.
    """
    events: SimpleQueue[Event] = SimpleQueue()
    stop = Stop()
    with ThreadPoolExecutor(1) as thread:
        training = thread.submit(train_share, share, events.put, stop)
        while not (training.done() and events.empty()):
            if ray.wait(rung, timeout=0, fetch_local=False)[0]:
                stop.signal = signal.SIGTERM
            with suppress(Empty):
                yield events.get(timeout=0.2)
        training.result()


@contextmanager
def open_cluster(device: str) -> Iterator[Engine]:
    """Train on the cluster that RAY_ADDRESS names; refuses a device that no node has."""
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device {device!r} cannot be chosen on a cluster; give auto, cpu or cuda")
    joined_already = ray.is_initialized()
    if not joined_already:
        _join(os.environ.get("RAY_ADDRESS") or "auto")
    try:
        yield Cluster(_choose_resource(device)).train
    finally:
        if not joined_already:
            with _printing_nothing():
                ray.shutdown()


def _join(address: str) -> None:
    """Connect to the cluster, or say in one line why that fails."""
    if address.startswith("ray://"):
        raise ConfigError(
            f"RAY_ADDRESS {address}: Ray Client addresses (ray://) are not supported; run on a node of the "
            "cluster and give host:6379 or auto"
        )
    try:
        host, colon, port = address.rpartition(":")
        if colon:  # Ray itself would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
        with _native_log_silenced():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as error:
        reason = one_line(error).partition(". ")[0]
        raise ConfigError(
            f"no Ray cluster to join at {address} ({reason}); start one with `ray start --head`, "
            "or name one in RAY_ADDRESS as host:port"
        ) from error


@contextmanager
def _native_log_silenced() -> Iterator[None]:
    """Silence Ray's log: its lines about lost nodes, which we report ourselves, would break the bar.

    Ray reads the level once, at init, and then prints to standard error that it was set.
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
    """Discard standard output: Ray prints the logs of dead nodes there, also at shutdown."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        yield


def _choose_resource(device: str) -> str:
    """The resource of a share: a GPU if one is wanted and there, otherwise a CPU."""
    resource = "CPU" if device == "cpu" or (device == "auto" and not _count("GPU")) else "GPU"
    if not _count(resource):
        raise ConfigError(
            f"no node of the cluster has a {resource}; it has {count_text(_count('CPU'), 'CPU')} and "
            f"{count_text(_count('GPU'), 'GPU')}"
        )
    return resource


def _count(resource: str) -> int:
    return int(ray.cluster_resources().get(resource, 0))


class Cluster:
    """Trains as many shares of a sweep at once as the cluster has devices."""

    grace = 60.0

    def __init__(self, resource: str) -> None:
        self.resource, self.device = resource, "cuda" if resource == "GPU" else "cpu"
        request = {"num_gpus": 1, "num_cpus": 0} if resource == "GPU" else {"num_cpus": 1}
        # Not retried by Ray, which would start again from the old checkpoints.
        self.stream_share = ray.remote(num_returns="streaming", max_retries=0, **request)(stream_share)
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self.bell = ray.remote(num_cpus=0, scheduling_strategy=here)(Bell).remote()
        self.rung = self.bell.rung.remote()

    def train(
        self, groups: Sequence[Sequence[TrainConfig]], options: Options, keeper: Keeper, stop: Stop
    ) -> None:
        """Split groups evenly over the GPUs, whose tasks measure the best pack size; a CPU gets one trial."""

        def size(members: Sequence[TrainConfig]) -> int:
            even = -(-len(members) // self.room()) if self.resource == "GPU" else 1
            return options.pack_size or even

        shares = [share for members in groups for share in split(members, size(members))]
        with _printing_nothing():
            Dispatcher(self, options, keeper).train(shares, stop)

    def room(self) -> int:
        """The devices of all nodes, also of new ones. None is an error, because Ray would wait for ever."""
        if room := _count(self.resource):
            return room
        raise SkipinitError(f"no node with a {self.resource} is left; run the same command again to resume")

    def start(self, share: Share) -> Task:
        """Let Ray choose a node for a share."""
        return self.stream_share.remote(share, [self.rung])

    def receive(self, tasks: Collection[Task]) -> Iterator[tuple[Task, Event | Lost | None]]:
        """The next event of each task that has one."""
        ready, _ = ray.wait(list(tasks), timeout=1.0)
        if not ready:
            self.room()
        for task in ready:
            try:
                yield task, ray.get(next(task))
            except StopIteration:
                yield task, None
            except RayTaskError as error:
                raise _explained(error) from error
            except RayError as error:
                yield task, Lost("a worker of the cluster", str(error))

    def ask_to_stop(self) -> None:
        """Ring the bell."""
        self.bell.ring.remote()


def _explained(error: RayTaskError) -> SkipinitError:
    """An error on a node that is no trial's, such as missing data."""
    if isinstance(error.cause, SkipinitError):
        return type(error.cause)(f"on a node of the cluster: {error.cause}")
    last = str(error).strip().splitlines()[-1]
    return SkipinitError(f"a task failed ({last}); is skipinit {__version__} installed on every node?")
