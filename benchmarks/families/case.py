"""A published model: how to build it, what it takes, and how many residual adds it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Adds = int | str | Callable[[Any], int]
"""How many residual adds the forward of a block has, by its source; a text names an attribute that tells."""


@dataclass(frozen=True)
class Case:
    """A model to build, its inputs, and how many adds it has."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Any
    wanted: Callable[[nn.Module], int]
    doubtful: int = 0


def count_adds(model: nn.Module, blocks: Mapping[str, Adds], by_file: bool = False) -> int:
    """The sum over the blocks of a model, which are named by their class.

    Where others have the same name, the library and the file stand before it, or the library; with `by_file`,
    the file alone.
    """
    total = 0
    for module in model.modules():
        path, kind = type(module).__module__.split("."), type(module).__name__
        places = [path[-1]] if by_file else [f"{path[0]}.{path[-1]}", path[0]]
        names = [*(f"{place}.{kind}" for place in places), kind]
        adds = next((blocks[name] for name in names if name in blocks), 0)
        found: Any = adds(module) if callable(adds) else adds
        if isinstance(found, str):
            found = getattr(module, found)
        total += found if isinstance(found, int) else bool(found)
    return total


def stub_torchvision() -> None:
    """Beside a CPU-only torch its compiled operators are missing, and timm imports it for images alone."""
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        global _LIBRARY
        _LIBRARY = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            _LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
