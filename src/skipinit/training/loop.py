"""The training loop, for one run or many: a lone run is a list of one.

All runs share data set, batch size and number of epochs, and are at the same step. A run whose loss is not
finite has its result and is removed; this does not change the others. On a GPU, the runs step together as one
captured graph with a stream for each run, and users' own models step beside it. On the CPU they step in turn.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from .control import Stop
from .records import EpochRecord
from .run import Run
from .sources import Data

_STEPS_BETWEEN_LOOKS = 100
"""On a GPU, because reading the losses waits for the device. On the CPU they are read after each step."""


Score = Callable[[Run], Tensor]


class InTurn:
    """The runs step one after the other."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        on_cpu = all(run.world.device.type == "cpu" for run in runs)
        self.poll_every = 1 if on_cpu else _STEPS_BETWEEN_LOOKS
        """Steps between checks of the losses."""

    def step(self) -> None:
        """One training step of every run."""
        for run in self.runs:
            run.model.train()
            run.train_step()

    def score(self, score: Score) -> list[Tensor]:
        """`score` of every run, in evaluation mode."""
        for run in self.runs:
            run.model.eval()
        return [score(run) for run in self.runs]


class OneGraph:
    """A step of all runs is one graph launch: no Python between kernels, and the runs' kernels overlap."""

    poll_every = _STEPS_BETWEEN_LOOKS

    def __init__(self, runs: Sequence[Run], capture_scores: bool) -> None:
        self.runs = runs
        self.capture_scores = capture_scores
        self.pool = torch.cuda.graph_pool_handle()
        self.streams = [torch.cuda.Stream() for _ in runs]
        self.training: torch.cuda.CUDAGraph | None = None
        self.scoring: dict[Score, tuple[torch.cuda.CUDAGraph, list[Tensor]]] = {}

    def step(self) -> None:
        """One training step of every run."""
        if self.training is None:
            for run in self.runs:
                run.model.train()
            self.training, _ = self._capture(lambda run: run.train_step())
        self.training.replay()

    def score(self, score: Score) -> list[Tensor]:
        """`score` of every run, in evaluation mode."""
        for run in self.runs:
            run.model.eval()
        if not self.capture_scores:
            return [score(run) for run in self.runs]
        if score not in self.scoring:
            self.scoring[score] = self._capture(score)
        graph, results = self.scoring[score]
        graph.replay()
        return [result.clone() for result in results]

    def _capture(self, work: Callable[[Run], Any]) -> tuple[torch.cuda.CUDAGraph, list[Any]]:
        graph = torch.cuda.CUDAGraph()
        # Before the warm-up takes memory: if a generator's few bytes are refused, torch aborts the process.
        own = torch.cuda.default_generators[torch.cuda.current_device()]  # each capture registers this one
        for generator in (own, *(run.generator for run in self.runs)):
            graph.register_generator_state(generator)
        self._warm_up(work)
        results: list[Any] = []
        # Of this thread alone: another one may pin the next photographs meanwhile, which CUDA would refuse.
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            main = torch.cuda.current_stream()
            forked: list[torch.cuda.Stream] = []
            try:
                for run, stream in zip(self.runs, self.streams, strict=True):
                    stream.wait_stream(main)
                    forked.append(stream)
                    with torch.cuda.stream(stream):
                        results.append(work(run))
            finally:  # after an error, too: a capture that ends unjoined raises, which would hide the error
                for stream in forked:
                    main.wait_stream(stream)
        return graph, results

    def _warm_up(self, work: Callable[[Run], object]) -> None:
        """Compile, choose algorithms and allocate before the capture; then set the runs back."""
        for run, stream in zip(self.runs, self.streams, strict=True):
            tensors = run.changing_tensors()
            before, generator = [tensor.clone() for tensor in tensors], run.generator.get_state()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):
                    work(run)
            torch.cuda.current_stream().wait_stream(stream)
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)
            run.generator.set_state(generator)
            run.optimizer.zero_grad(set_to_none=True)


class BesideGraph:
    """Users' own models, which no graph captures, step in turn while the graph of the others runs."""

    poll_every = _STEPS_BETWEEN_LOOKS

    def __init__(self, runs: Sequence[Run], capture_scores: bool) -> None:
        self.runs = runs
        self.own = InTurn([run for run in runs if run.own])
        self.graph = OneGraph([run for run in runs if not run.own], capture_scores)
        self.stream = torch.cuda.Stream()

    def step(self) -> None:
        """One training step of every run."""
        main = torch.cuda.current_stream()
        self.stream.wait_stream(main)
        self.graph.step()  # only launched: the host does not wait
        try:
            with torch.cuda.stream(self.stream):
                self.own.step()
        finally:  # after an error, too: other runs may get the memory that this stream still uses
            main.wait_stream(self.stream)

    def score(self, score: Score) -> list[Tensor]:
        """`score` of every run, in evaluation mode."""
        scores = [*self.own.score(score), *self.graph.score(score)]
        found = dict(zip([*self.own.runs, *self.graph.runs], scores, strict=True))
        return [found[run] for run in self.runs]


Executor = InTurn | OneGraph | BesideGraph


def make_executor(runs: Sequence[Run], images_on_device: bool) -> Executor:
    """One graph on a GPU, users' own models beside it. On the CPU and under torchrun, runs step in turn."""
    graphs = {run.world.device.type == "cuda" and run.world.size == 1 and not run.own for run in runs}
    if graphs == {True}:
        return OneGraph(runs, capture_scores=images_on_device)
    return BesideGraph(runs, capture_scores=images_on_device) if True in graphs else InTurn(runs)


class Observer(Protocol):
    """Callbacks of the training loop."""

    def advanced(self, runs: Sequence[Run], position: int) -> None:
        """The runs have taken `position` steps."""

    def recorded(self, run: Run, record: EpochRecord) -> None:
        """A run has finished an epoch."""

    def diverged(self, run: Run, step: int) -> None:
        """A run's loss at this step, counted from 0, was not finite: that is its result."""

    def paused(self, runs: Sequence[Run], last: bool) -> None:
        """The runs can be checkpointed now; if `last`, they will not continue."""


def train_together(runs: Sequence[Run], data: Data, observer: Observer, stop: Stop) -> None:
    """Train to the end, or until `stop` is requested, and report to the observer."""
    pack = make_executor(runs, data.on_device)
    world, batch_size = runs[0].world, runs[0].config.batch_size
    position, total, steps_per_epoch = runs[0].position, runs[0].total_steps, runs[0].source.steps_per_epoch
    if position == total:  # killed between the last checkpoint and the result
        observer.paused(runs, last=True)
    while pack.runs and position < total:
        epoch, first = divmod(position, steps_per_epoch)
        for run in pack.runs:
            run.source.begin(epoch, first)
        started = time.perf_counter()
        for place in range(first, steps_per_epoch):
            for run in pack.runs:
                run.source.fetch()
            if any(run.is_watched(position) for run in pack.runs):
                _measured_step(pack.runs, position)
            else:
                pack.step()
            position += 1
            if position % pack.poll_every and place < steps_per_epoch - 1:
                continue
            pack = _without(_diverged(pack.runs, epoch, observer), pack, data)
            observer.advanced(pack.runs, position)
            if not pack.runs:
                return
            if world.any(stop.requested) and place < steps_per_epoch - 1:
                observer.paused(pack.runs, last=True)
                return
        images_per_second = (steps_per_epoch - first) * batch_size / (time.perf_counter() - started)
        pack = _without(_record_epoch(pack, data, epoch, images_per_second, observer), pack, data)
        stopping = world.any(stop.requested)
        observer.paused(pack.runs, last=stopping or position == total)
        if stopping:
            return


def _measured_step(runs: Sequence[Run], position: int) -> None:
    """A step of every run in turn, without the graph, in which nothing can be measured."""
    for run in runs:
        run.model.train()
        if run.is_watched(position):
            run.measured_step(position)
        else:
            run.train_step()


def _without(lost: Sequence[Run], pack: Executor, data: Data) -> Executor:
    """The pack without the lost runs."""
    left = [run for run in pack.runs if run not in lost]
    return pack if not lost else make_executor(left, data.on_device)


def _diverged(runs: Sequence[Run], epoch: int, observer: Observer) -> list[Run]:
    """The runs whose loss is no longer finite, after telling the observer."""
    lost = []
    for run in runs:
        broken = run.epoch_losses().isfinite().logical_not().nonzero()
        if len(broken):
            observer.diverged(run, epoch * run.source.steps_per_epoch + int(broken[0]))
            lost.append(run)
    return lost


def _record_epoch(
    pack: Executor, data: Data, epoch: int, images_per_second: float, observer: Observer
) -> list[Run]:
    """Evaluate every run and report the epoch's record; returns the runs whose test loss is not finite."""
    tests = pack.score(data.score_test)
    cleans: Sequence[Tensor | None] = [None] * len(pack.runs)
    if any(run.config.clean_train_loss for run in pack.runs):
        scores = zip(pack.runs, pack.score(data.score_train), strict=True)
        cleans = [score if run.config.clean_train_loss else None for run, score in scores]
    lost = []
    for run, test, clean in zip(pack.runs, tests, cleans, strict=True):
        test_loss, right = run.world.sum(test).tolist()
        last_step = (epoch + 1) * run.source.steps_per_epoch - 1
        if not math.isfinite(test_loss):
            observer.diverged(run, last_step)
            lost.append(run)
            continue
        record = EpochRecord(
            epoch=epoch + 1,
            train_loss=float(run.epoch_losses().double().mean()),
            test_accuracy=100 * right / data.test_size,
            test_loss=test_loss / data.test_size,
            lr=run.rates[last_step],
            images_per_second=images_per_second,
            clean_train_loss=None if clean is None else float(run.world.sum(clean)[0]) / data.train_size,
        )
        run.records.append(record)
        observer.recorded(run, record)
    return lost
