"""Processes of this machine that train shares of a sweep on the CPU, one thread and one share each.

A worker is a new interpreter, so nothing depends on what this process has imported or how it was started. It
trains share after share until its connection closes. So workers end when this process ends, in any way.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Collection, Iterator
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from threading import Thread
from typing import Any

from ..errors import SkipinitError
from ..provenance import usable_cores
from ..training.control import Stop
from ..training.records import Event
from ..training.world import cpu_threads
from .dispatch import Lost
from .trainer import Share, train_share

_PATIENCE = 0.5
"""Seconds between checks whether to stop."""


def work(descriptor: int) -> None:
    """Train the shares that come from a connection until it closes."""
    connection: Connection[object, Share | None] = Connection(descriptor)
    shares: SimpleQueue[Share] = SimpleQueue()
    stop = Stop()

    def listen() -> None:
        with suppress(OSError, EOFError):
            while True:
                if (share := connection.recv()) is None:
                    stop.signal = signal.SIGTERM
                else:
                    shares.put(share)
        os._exit(1)  # the other process has ended, and nothing here needs to be saved

    def send(message: object) -> None:
        with suppress(OSError):  # the other process has ended: `listen` exits
            connection.send(message)

    Thread(target=listen, daemon=True).start()
    while True:
        try:
            train_share(shares.get(), send, stop)
            send(None)
        except SkipinitError as error:
            send(error)
        except Exception:
            send(RuntimeError(f"in a worker process:\n{traceback.format_exc()}"))


def start_interpreter(code: str, count: int = 1, **options: Any) -> subprocess.Popen[bytes]:
    """Start a process, one of `count`, that runs `code`; it can import what this one can."""
    environment = os.environ | {
        # Python ignores what is no text, such as a pathlib.Path.
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path if isinstance(path, str)),
        "OMP_NUM_THREADS": str(cpu_threads()),
        "LOCAL_WORLD_SIZE": str(count),  # decoders of images divide the cores by it
    }
    # Blocked signals stay so in a new process: Ctrl-C goes to the whole group, and SIGTERM often, but only
    # this process decides when to stop.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", code], stdin=subprocess.DEVNULL, env=environment, **options
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Worker:
    """A process that runs `work`, and the connection to it."""

    def __init__(self, count: int) -> None:
        self.connection, there = Pipe()
        with there:
            code = f"from {__name__} import work; work({there.fileno()})"
            self.process = start_interpreter(code, count, pass_fds=[there.fileno()])

    def close(self) -> str:
        """End the process; returns how it ended."""
        self.connection.close()
        self.process.kill()
        code = self.process.wait()
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


class Workers:
    """A pool of worker processes."""

    device, grace = "cpu", math.inf  # a step is short, and a second Ctrl-C does not wait

    def __init__(self, count: int) -> None:
        self.workers = {_Worker(count) for _ in range(count)}
        self.idle = [*self.workers]
        self.count = count

    def room(self) -> int:
        """The number of workers, which is constant: a lost one is replaced."""
        return self.count

    def start(self, share: Share) -> _Worker:
        """Give a share to an idle worker."""
        worker = self.idle.pop()
        with suppress(OSError):  # it has died, which `receive` reports
            worker.connection.send(share)
        return worker

    def receive(self, tasks: Collection[_Worker]) -> Iterator[tuple[_Worker, Event | Lost | None]]:
        """A message of every worker that has one."""
        workers = {worker.connection: worker for worker in tasks}
        for connection in wait(list(workers), timeout=_PATIENCE):
            worker = workers[connection]  # type: ignore[index]
            try:
                message = worker.connection.recv()
            except (EOFError, OSError):
                message = self._replace(worker)
            if isinstance(message, Exception):
                raise message
            if message is None:
                self.idle.append(worker)
            yield worker, message

    def _replace(self, worker: _Worker) -> Lost:
        ended = worker.close()
        self.workers.remove(worker)
        self.workers.add(new := _Worker(self.count))
        self.idle.append(new)
        return Lost(f"a worker process ({ended})", ended)

    def ask_to_stop(self) -> None:
        """Tell all workers; an idle one ignores it."""
        for worker in self.workers:
            with suppress(OSError):
                worker.connection.send(None)

    def close(self) -> None:
        """End all workers. Their events have been received."""
        for worker in self.workers:
            worker.close()


def workers_at_once() -> int:
    """How many trainings can run at once on the cores of this machine."""
    return max(1, usable_cores() // cpu_threads())
