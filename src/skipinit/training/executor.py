"""How the runs of a pack step together: in turn, or as one captured CUDA graph with a stream for each run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .run import Run

_STEPS_BETWEEN_LOOKS = 100
"""On a GPU, where a look waits for the device; on the CPU it costs nothing."""

Score = Callable[[Run], Tensor]


class InTurn:
    """Each run steps after the other."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        on_cpu = all(run.world.device.type == "cpu" for run in runs)
        self.poll_every = 1 if on_cpu else _STEPS_BETWEEN_LOOKS
        """Steps between looks at the losses."""

    def step(self) -> None:
        """One training step of every run."""
        for run in self.runs:
            run.model.train()
            run.train_step()

    def score(self, score: Score) -> list[Tensor]:
        """What `score` makes of every run, in evaluation mode."""
        for run in self.runs:
            run.model.eval()
        return [score(run) for run in self.runs]


class OneGraph:
    """A step of all runs is one graph launch: no Python between kernels, and runs fill each other's gaps."""

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
        """What `score` makes of every run, in evaluation mode."""
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
        self._warm_up(work)
        graph = torch.cuda.CUDAGraph()
        for run in self.runs:
            graph.register_generator_state(run.generator)
        results = []
        with torch.cuda.graph(graph, pool=self.pool):
            main = torch.cuda.current_stream()
            for run, stream in zip(self.runs, self.streams, strict=True):
                stream.wait_stream(main)
                with torch.cuda.stream(stream):
                    results.append(work(run))
            for stream in self.streams:
                main.wait_stream(stream)
        return graph, results

    def _warm_up(self, work: Callable[[Run], object]) -> None:
        """Compile, choose algorithms and allocate before capture, and leave no trace in the runs."""
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


Executor = InTurn | OneGraph


def make_executor(runs: Sequence[Run], images_on_device: bool) -> Executor:
    """One graph on a GPU; in turn on the CPU, and where several processes train one run."""
    if runs and runs[0].world.device.type == "cuda" and runs[0].world.size == 1:
        return OneGraph(runs, capture_scores=images_on_device)
    return InTurn(runs)
