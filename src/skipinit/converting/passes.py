"""The forward passes that a conversion looks at: no layer dropped, in evaluation, in training."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from ..probing.forward import Inputs, Mode, arguments_of, preserve_state

_DRAWS = 8
"""Most passes in training. Layers may be dropped at random; several passes let each of them run."""


@dataclass(frozen=True)
class Pass:
    """A forward pass in that mode."""

    mode: Mode
    seed: int | None = None
    """Seed of the random generators; None: they are not seeded."""

    @contextmanager
    def prepared(self, model: nn.Module) -> Iterator[None]:
        """Run the body with seeded generators; afterwards the generators and the model are as before.

        Warnings of the model are ignored, because the first pass has shown them.
        """
        if self.seed is None:
            yield
            return
        with preserve_state(model), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _seed_torch(model, self.seed)
            np.random.seed(self.seed)
            random.seed(self.seed)
            yield


WHOLE = Pass("whole")
FURTHER = (Pass("evaluation", 0), *(Pass("training", seed) for seed in range(_DRAWS)))


def run_once(model: nn.Module, inputs: Inputs) -> None:
    """One pass in evaluation mode; the model is left as it was."""
    args, kwargs = arguments_of(model, inputs)
    with preserve_state(model, "evaluation"):
        model(*args, **kwargs)


@contextmanager
def seeded_torch(model: nn.Module, seed: int | None) -> Iterator[None]:
    """Run the body with torch's generators at that seed, then restore them; None: leave them alone."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=_cuda_devices(model)):
        _seed_torch(model, seed)
        yield


def _seed_torch(model: nn.Module, seed: int) -> None:
    """Seed the generators of the CPU and of the model's devices: only these are restored."""
    torch.default_generator.manual_seed(seed)
    for device in _cuda_devices(model):
        torch.cuda.default_generators[device].manual_seed(seed)


def _cuda_devices(model: nn.Module) -> list[int]:
    return sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
