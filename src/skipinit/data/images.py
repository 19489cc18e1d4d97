"""Images on the device: data sets read once and kept there as uint8, and the preprocessing of a batch.

scikit-learn's 1,797 digits, 8×8 images with values 0 … 16, need no download. On small feature maps, zero
padding weakens the signal of deep networks; for those there are the same digits at twice the size.

A batch is standardized, then cropped and flipped. These functions have no random draws, host synchronization
or data-dependent control flow, so that they can be compiled and captured in a CUDA graph. The random choices
of an epoch are drawn at once on the CPU, so that they are the same in every process and on every device.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
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
    rows = _read_bundled_digits()
    images, labels = rows[:, :-1].astype(np.uint8).reshape(-1, 1, 8, 8), rows[:, -1].astype(np.int64)
    for_test = np.zeros(len(labels), dtype=bool)
    for digit in range(10):
        for_test[np.flatnonzero(labels == digit)[4::5]] = True
    return Labelled(images[~for_test], labels[~for_test]), Labelled(images[for_test], labels[for_test])


def _read_bundled_digits() -> NDArray[np.float64]:
    """A row for each image: its 64 pixels, then its class.

    Read from scikit-learn's file, since its loader imports seconds' worth of modules to do the same.
    """
    package = find_spec("sklearn")
    assert package is not None, "in the extra `lab`"
    assert package.origin is not None, "a package has a file"
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if path.is_file():
        return np.loadtxt(path, delimiter=",")
    from sklearn.datasets import load_digits  # a version that keeps its file elsewhere

    return np.column_stack(load_digits(return_X_y=True))


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


def mix(*parts: int | str) -> int:
    """A 63-bit seed that depends on every part and on their order, the same on every machine."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


class EpochPlan(NamedTuple):
    """`order[k]` is the k-th image of the epoch; `top[k]`, `left[k]`, `flip[k]` are its crop and flip."""

    order: Tensor
    top: Tensor
    left: Tensor
    flip: Tensor


def epoch_plan(seed: int, epoch: int, n: int, padding: int = 0, flip: bool = False) -> EpochPlan:
    """The plan of epoch `epoch` of the run `seed` over `n` images.

    It only depends on its arguments, so a resumed run has the same plan. Offsets are uniform over
    0 … 2·padding. The order does not depend on `padding` and `flip`.
    """
    generator = torch.Generator().manual_seed(mix("epoch", seed, epoch))
    order = torch.randperm(n, generator=generator)
    top, left = torch.randint(0, 2 * padding + 1, (2, n), generator=generator)
    mirrored = torch.randint(0, 2 if flip else 1, (n,), generator=generator).bool()
    return EpochPlan(order, top, left, mirrored)


def standardize(images: Tensor) -> Tensor:
    """(x - mean(x)) / max(σ(x), 1/√N) over the N values of each image (..., C, H, W), as float32.

    σ is the biased standard deviation. Its lower bound makes a constant image zero instead of NaN.
    """
    values = images.float()
    axes = (-3, -2, -1)
    centred = values - values.mean(axes, keepdim=True)
    deviation = centred.square().mean(axes, keepdim=True).sqrt()
    return centred / deviation.clamp(min=1 / math.sqrt(math.prod(images.shape[-3:])))


def crop_flip(
    images: Tensor,
    top: Tensor,
    left: Tensor,
    flip: Tensor,
    padding: int = 4,
    mode: Literal["zero", "reflect", "symmetric"] = "zero",
) -> Tensor:
    """Pad (B, C, H, W) by `padding`, cut out H×W at row `top`, column `left`, and mirror where `flip`.

    `top`, `left` (integers in 0 … 2·padding) and `flip` (bool) have one entry per image. The padded images
    are never built: each output pixel is gathered from its pixel of the input.
    """
    batch, channels, height, width = images.shape
    down = torch.arange(height, device=images.device)
    across = torch.arange(width, device=images.device)
    rows = top[:, None] + down - padding
    columns = left[:, None] + torch.where(flip[:, None], width - 1 - across, across) - padding
    if mode in _MIRRORS:
        if padding >= min(height, width):
            raise ConfigError(f"padding {padding} cannot mirror {height}×{width} images; it must be smaller")
        mirror = _MIRRORS[mode]
        rows, columns = mirror(rows, height), mirror(columns, width)
    elif mode != "zero":
        raise ConfigError(f"padding mode {mode!r} is not known; it is zero, {' or '.join(_MIRRORS)}")
    pixels = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
    pixels = pixels.view(batch, 1, height * width).expand(batch, channels, height * width)
    cropped = images.flatten(2).gather(2, pixels).view(batch, channels, height, width)
    if mode in _MIRRORS:
        return cropped
    beside = _outside(rows, height)[:, :, None] | _outside(columns, width)[:, None, :]
    return cropped.masked_fill(beside[:, None], 0)


def _reflect(positions: Tensor, size: int) -> Tensor:
    """Mirror positions beyond an edge; the edge itself is not repeated."""
    return (size - 1) - ((size - 1) - positions.abs()).abs()


def _repeat_edge(positions: Tensor, size: int) -> Tensor:
    """Mirror positions beyond an edge; the edge itself is repeated."""
    folded = torch.where(positions < 0, -1 - positions, positions)
    return torch.where(folded >= size, 2 * size - 1 - folded, folded)


_MIRRORS = {"reflect": _reflect, "symmetric": _repeat_edge}


def _outside(positions: Tensor, size: int) -> Tensor:
    return (positions < 0) | (positions >= size)
