"""Data sets that fit on the device: read once and kept there as uint8, not standardized.

scikit-learn's 1,797 digits, 8×8 images with values 0 … 16, need no download. On small feature maps, zero
padding weakens the signal of deep networks; for those there are the same digits at twice the size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import ConfigError
from .arrays import read_arrays
from .catalog import DATA_SETS, Labelled, describe
from .cifar import CIFAR10, CIFAR100, read_cifar


def read_digits() -> tuple[Labelled, Labelled]:
    """Training and test split, 1,442 and 355 images: of each class, every fifth image is for testing.

    The split is by position in the file, so it does not depend on random numbers. It is by class, because
    long parts of the file count 0, 1, …, 9, 0, 1, …: every fifth image would be a 4 or a 9.
    """
    from sklearn.datasets import load_digits  # slow to import, and only needed here

    bundled = load_digits()
    images = bundled.images.astype(np.uint8)[:, None]
    labels = bundled.target.astype(np.int64)
    for_test = np.zeros(len(labels), dtype=bool)
    for digit in range(10):
        for_test[np.flatnonzero(labels == digit)[4::5]] = True
    return Labelled(images[~for_test], labels[~for_test]), Labelled(images[for_test], labels[for_test])


def read_large_digits() -> tuple[Labelled, Labelled]:
    """The same digits as 16×16 images: each pixel becomes a square of four."""
    train, test = read_digits()
    return _enlarge(train), _enlarge(test)


def _enlarge(part: Labelled) -> Labelled:
    return Labelled(part.images.repeat(2, axis=2).repeat(2, axis=3), part.labels)


def draw_gaussian() -> tuple[Labelled, Labelled]:
    """Training and test split of independent N(0, 1) values, float32, and uniform labels."""
    entry = DATA_SETS["gaussian"]
    generator = np.random.default_rng(0)

    def draw(size: int) -> Labelled:
        images = generator.standard_normal((size, *entry.shape), dtype=np.float32)
        return Labelled(images, generator.integers(entry.num_classes, size=size))

    return draw(entry.train_size), draw(entry.test_size)


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
    """Read the data set `name`, or download it first, and move it to `device`."""
    entry = describe(name)
    if not entry.in_memory:
        raise ConfigError(f"{name} is a folder of image files and not held in memory; use open_folder")
    train, test = _READERS[name]() if name in _READERS else read_arrays(name)
    # Flat and back: NumPy may give an axis of one channel a stride that torch takes for channels last.
    tensors = (torch.from_numpy(array.reshape(-1)).view(array.shape).to(device) for array in (*train, *test))
    return ImageSet(entry.name, entry.num_classes, *tensors)
