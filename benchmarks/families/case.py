"""A published model: how to build it, what it takes, and how many residual adds it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Case:
    """A model to build, its inputs, and how many adds it has."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Any
    wanted: Callable[[nn.Module], int]
    doubtful: int = 0


def stub_torchvision() -> None:
    """Beside a CPU-only torch its compiled operators are missing, and timm imports it for images alone."""
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        global _LIBRARY
        _LIBRARY = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            _LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
