"""The ways through a model's forward, which may differ: no layer dropped, in evaluation, in training."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from ..probing.forward import Mode, preserve_state

_DRAWS = 8
"""Passes in training at most: layers may be dropped at random, and each should be seen once."""


@dataclass(frozen=True)
class Pass:
    """A forward pass in that mode."""

    mode: Mode
    seed: int | None = None
    """Of what the model draws; None: as the generators stand."""

    @contextmanager
    def prepared(self, model: nn.Module) -> Iterator[None]:
        """Run the body with generators that start at the seed; the model and they are left as they were.

        What the model warns of, it does so in the first pass.
        """
        if self.seed is None:
            yield
            return
        with preserve_state(model), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.default_generator.manual_seed(self.seed)
            for device in {p.device for p in model.parameters() if p.device.type == "cuda"}:
                torch.cuda.default_generators[device.index].manual_seed(self.seed)
            np.random.seed(self.seed)
            random.seed(self.seed)
            yield


WHOLE = Pass("whole")
FURTHER = (Pass("evaluation", 0), *(Pass("training", seed) for seed in range(_DRAWS)))
