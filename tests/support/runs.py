"""Small trials, and the folder of a lone run as tests look into it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from skipinit.config import ModelConfig, TrainConfig
from skipinit.training.control import Stop

SMALL = TrainConfig(
    ModelConfig("wrn10_1", "skipinit", num_classes=10, in_channels=1),
    "digits",
    lr=0.05,
    batch_size=256,
    epochs=2,
    augment=False,
)
"""A trial of a second; the three below are variants of it."""
SMALL_BATCHNORM = ModelConfig("wrn10_1", num_classes=10, in_channels=1)
DIVERGING = replace(SMALL, model=replace(SMALL.model, alpha=1e30))
"""A scalar of 1e30 on every branch overflows float32 in the second block: it diverges at once."""
RAISING = replace(SMALL, model=replace(SMALL_BATCHNORM, ghost_batch=48))

FILES = {"config.json", "metrics.jsonl", "result.json", "sweep.sqlite", "sweep.lock", "checkpoints"}
"""What a run leaves behind, in good order."""


def checkpoint(folder: Path) -> Path:
    """The run's one checkpoint."""
    (path,) = (folder / "checkpoints").iterdir()
    return path


def state(folder: Path) -> dict[str, Any]:
    """What the checkpoint holds of the run."""
    return torch.load(checkpoint(folder), weights_only=True)["run"]


def tensors(saved: dict[str, Any]) -> dict[str, Tensor]:
    """Weights, running averages, momentum and losses of a state, by name."""
    parts = {f"{part}.{name}": value for part in ("model", "momentum") for name, value in saved[part].items()}
    return parts | {"losses": saved["losses"]}


class StopAfter(Stop):
    """Asks to stop when it has been looked at so many times."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks = looks

    @property
    def requested(self) -> bool:
        self.looks -= 1
        return self.looks < 0
