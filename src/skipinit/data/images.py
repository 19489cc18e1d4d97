"""Data sets that fit on the device: read once, kept there as they are, uint8 and unstandardized."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import ConfigError
from .catalog import describe
from .cifar import CIFAR10, CIFAR100, read_cifar
from .digits import read_digits, read_large_digits
from .gaussian import draw_gaussian
from .labelled import Labelled

_READERS: dict[str, Callable[[], tuple[Labelled, Labelled]]] = {
    "digits": read_digits,
    "digits16": read_large_digits,
    "cifar10": lambda: read_cifar(CIFAR10),
    "cifar100": lambda: read_cifar(CIFAR100),
    "gaussian": draw_gaussian,
}


@dataclass(frozen=True, eq=False)
class ImageSet:
    """A data set on a device: images (N, C, H, W), uint8 (`gaussian`: float32), labels int64 (N,)."""

    name: str
    num_classes: int
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load(name: str, device: torch.device | str = "cpu") -> ImageSet:
    """Read the data set `name`, fetching it first if need be, onto `device`."""
    entry = describe(name)
    if not entry.in_memory:
        raise ConfigError(f"{name} is a folder of image files and not held in memory; use open_folder")
    train, test = _READERS[name]()
    tensors = (torch.from_numpy(array).to(device) for array in (*train, *test))
    return ImageSet(entry.name, entry.num_classes, *tensors)
