"""Several processes on one GPU, each with the eager loop: what fractional GPUs of a scheduler give."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier

import torch
from bench import SCHEMES, Bench, Row, speed_row
from train import BATCH, plain_loop

_WINDOWS = 3
_PATIENCE = 90.0
"""Seconds that processes wait for one another; one that died would be waited for in vain."""


def measure_processes(bench: Bench, network: str, count: int) -> Iterator[Row]:
    """Images per second summed over processes that train at the same time, in three windows."""
    context = multiprocessing.get_context("spawn")
    barrier, speeds = context.Barrier(count), context.Queue()
    arguments = (str(bench.device), network, bench.seconds, barrier, speeds)
    workers = [context.Process(target=_train, args=arguments, daemon=True) for _ in range(count)]
    for worker in workers:
        worker.start()
    try:
        for scheme in SCHEMES:
            windows = [sum(speeds.get(timeout=_PATIENCE) for _ in workers) for _ in range(_WINDOWS)]
            yield speed_row(network, scheme, f"{count} eager processes", windows)
    finally:
        for worker in workers:
            worker.join(timeout=5)
            worker.kill()


def _train(device: str, network: str, seconds: float, barrier: Barrier, speeds: Queue[float]) -> None:
    """One of the processes: between barriers, train for some seconds and tell the images per second."""
    bench = Bench.on(torch.device(device), seconds)
    for scheme in SCHEMES:
        step = plain_loop(bench.config(network, scheme), bench.data, bench.device)
        for _ in range(5):
            step()
        for _ in range(_WINDOWS):
            bench.wait()
            barrier.wait(_PATIENCE)
            started, steps = time.perf_counter(), 0
            while time.perf_counter() - started < seconds:
                step()
                steps += 1
            bench.wait()
            speeds.put(steps * BATCH / (time.perf_counter() - started))
            barrier.wait(_PATIENCE)  # so that no window begins before all have told of the last
