"""What runs on a node of a Ray cluster: a share of a sweep, which tells its events, and a bell to stop it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from io import BytesIO
from queue import Empty, SimpleQueue
from typing import Any

import ray

from ..config import TrainConfig
from ..training.stop import Stop
from .checkpoints import State, unpack_state
from .events import Event, Kept
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

    def load(id: str) -> tuple[State | None, float]:
        return unpack_state(BytesIO(contents[id]))

    def tell(event: Event) -> None:
        if isinstance(event, Kept):  # should the pack raise, each of its trials goes on from here
            contents[event.id] = event.content
        events.put(event)

    with ThreadPoolExecutor(1) as thread:
        training = thread.submit(lambda: Trainer(_workplace(device), options, load, tell, stop).train(share))
        while not (training.done() and events.empty()):
            if ray.wait(rung, timeout=0, fetch_local=False)[0]:
                stop.signal = signal.SIGTERM
            with suppress(Empty):
                yield events.get(timeout=0.2)
        training.result()


@lru_cache(maxsize=1)
def _workplace(device: str) -> Workplace:
    """Ray trains many shares in one process: the data of the last one is still there."""
    return Workplace(device)
