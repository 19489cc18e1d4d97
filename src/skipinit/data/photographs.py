"""A folder of photographs, train/<class>/… and val/<class>/…: lists its files, chooses crops, and decodes
batches in worker processes.

Training takes a random crop, testing the centre. A crop is a box in the pixels of the photograph.
"""

from __future__ import annotations

import math
import os
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from ..errors import DataError, one_line
from ..provenance import usable_cores
from .catalog import find, search_path
from .images import mix

EXTENSIONS = (".jpeg", ".jpg", ".png")


@dataclass(frozen=True, eq=False)
class Split:
    """The files of one split, sorted by class and name, and the class number of each."""

    root: Path
    files: NDArray[np.bytes_]
    """`class/name`. One array: a million Python strings would be copied into every worker process."""
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.files)

    def path(self, index: int) -> Path:
        """The file of image `index`."""
        return self.root / os.fsdecode(self.files[index])


@dataclass(frozen=True, eq=False)
class ImageFolder:
    """A data set of image files. Classes are numbered in the order of their sorted names in train/."""

    name: str
    classes: tuple[str, ...]
    train: Split
    test: Split

    @property
    def num_classes(self) -> int:
        """How many classes train/ has."""
        return len(self.classes)


def open_folder(name: str = "imagenet") -> ImageFolder:
    """List the images of `imagenet`, found on the search path, or of the folder at the path `name`."""
    root = find("imagenet") if name == "imagenet" else Path(os.path.expanduser(name))
    if root is None:
        looked = " or ".join(str(place / "imagenet") for place in search_path())
        raise DataError(
            f"imagenet is not at {looked}; lay it out there as train/<class>/*.JPEG and val/<class>/*.JPEG, "
            "or give the path of such a folder"
        )
    classes = _class_names(root / "train")
    tested = _class_names(root / "val")
    for odd in sorted(set(tested) - set(classes)):
        raise DataError(f"{root / 'val' / odd}: no such class in {root / 'train'}; remove it or add that")
    if len(classes) < 2:
        raise DataError(f"{root / 'train'}: one class alone, {classes[0]}; a classifier needs two or more")
    numbers = {name: number for number, name in enumerate(classes)}
    train, test = _list_split(root / "train", classes, numbers), _list_split(root / "val", tested, numbers)
    return ImageFolder(name, tuple(classes), train, test)


def _class_names(split: Path) -> list[str]:
    if not split.is_dir():
        raise DataError(f"{split}: no such folder; a data set of images has train/<class>/ and val/<class>/")
    with os.scandir(split) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise DataError(f"{split}: no class folders inside; sort its images into {split.name}/<class>/")
    return names


def _list_split(root: Path, classes: Sequence[str], numbers: dict[str, int]) -> Split:
    files: list[bytes] = []
    labels: list[int] = []
    for name in classes:
        with os.scandir(root / name) as entries:
            images = sorted(entry.name for entry in entries if _is_image(entry.name))
        if not images:
            raise DataError(f"{root / name}: no images ({' '.join(EXTENSIONS)}) inside; fill it or remove it")
        files += [os.fsencode(f"{name}/{image}") for image in images]
        labels += [numbers[name]] * len(images)
    return Split(root, np.array(files), np.array(labels, dtype=np.int64))


def _is_image(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS) and not name.startswith(".")


SIZE = 224


class Crop(NamedTuple):
    """A box in the pixels of a photograph, and whether to mirror it."""

    left: float
    top: float
    right: float
    bottom: float
    flip: bool


CropRule = Callable[[int, int, int], Crop]
"""From an image's number, width and height to its crop."""


@dataclass(frozen=True)
class RandomCrop:
    """Training: 8–100 % of the area at a ratio of 3/4–4/3, anywhere, mirrored half the time.

    The crop only depends on (seed, epoch, image), not on the number of worker processes or on where a run was
    resumed.
    """

    seed: int
    epoch: int

    def __call__(self, index: int, width: int, height: int) -> Crop:
        """The crop of image `index` in this epoch."""
        uniform = random.Random(mix("crop", self.seed, self.epoch, index)).random
        flip = uniform() < 0.5
        for _ in range(10):
            area = (0.08 + 0.92 * uniform()) * width * height
            ratio = (3 / 4) ** (1 - 2 * uniform())  # log-uniform between 3/4 and 4/3
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                left, top = int(uniform() * (width - w + 1)), int(uniform() * (height - h + 1))
                return Crop(left, top, left + w, top + h, flip)
        # Too long and thin for any crop so far: take the largest centred one of an allowed ratio.
        return _centred(width, height, min(width, height * 4 / 3), min(height, width * 4 / 3), flip)


@dataclass(frozen=True)
class CentreCrop:
    """Testing: the shorter side brought to 256, the central 224×224 of that."""

    def __call__(self, index: int, width: int, height: int) -> Crop:
        """The same for every image of that width and height."""
        side = min(width, height) * SIZE / 256
        return _centred(width, height, side, side, flip=False)


def _centred(width: int, height: int, w: float, h: float, flip: bool) -> Crop:
    return Crop((width - w) / 2, (height - h) / 2, (width + w) / 2, (height + h) / 2, flip)


def read_image(path: Path, index: int, rule: CropRule) -> NDArray[np.uint8]:
    """Image `index` of a data set, at `path`, cropped by `rule`: uint8 (224, 224, 3)."""
    try:
        with Image.open(path) as photograph:
            crop = rule(index, *photograph.size)
            pixels = np.asarray(_show(photograph, crop))
    except (OSError, SyntaxError, ValueError, struct.error, Image.DecompressionBombError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path}: not a readable image ({reason}); replace or remove it") from error
    return pixels


def _show(photograph: Image.Image, crop: Crop) -> Image.Image:
    width, height = photograph.size
    # A JPEG decodes at 1/2, 1/4 or 1/8 of its size for less work. Ask for the smallest size at which the
    # crop still has 224 pixels each way; formats other than JPEG ignore the request.
    least = (
        math.ceil(width * SIZE / (crop.right - crop.left)),
        math.ceil(height * SIZE / (crop.bottom - crop.top)),
    )
    drafted = photograph.draft("RGB", least)
    shrink = drafted[1][2] / width if drafted else 1.0
    box = (crop.left * shrink, crop.top * shrink, crop.right * shrink, crop.bottom * shrink)
    shown = _colours(photograph).resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box)
    return shown.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if crop.flip else shown


def _colours(photograph: Image.Image) -> Image.Image:
    """A photograph in RGB; of 16-bit grey the upper 8 bits, as Pillow does for 16-bit colours."""
    mode = photograph.mode
    # Pillow would clip values above 8 bits. A PNG has at most 16, which older Pillows store in 32.
    if mode.startswith("I;16") or (mode == "I" and photograph.format == "PNG"):
        photograph = Image.fromarray((np.asarray(photograph) >> 8).astype(np.uint8))
    elif mode in ("I", "F"):
        raise ValueError(f"its pixels are of mode {mode}, whose range is not known")
    return photograph if photograph.mode == "RGB" else photograph.convert("RGB")


Batch = tuple[Tensor, Tensor]


def folder_batches(
    split: Split,
    rows: Sequence[Sequence[int]],
    rule: CropRule,
    workers: int | None = None,
    pin_memory: bool = False,
) -> Iterator[Batch]:
    """For each entry of `rows`, those images, uint8 (B, 3, 224, 224), channels last, and their labels.

    To resume, leave out the `rows` of batches that are done; to share an epoch among processes, give each
    process its part of every batch. The images do not depend on `workers`, which is the number of cores for
    this process by default; 0 decodes in the process itself.
    """
    loader = DataLoader(
        _Decoded(split, rule),
        batch_size=None,  # an item is a whole batch: the sampler says which images are in it
        sampler=rows,
        num_workers=_cores() if workers is None else workers,
        pin_memory=pin_memory,
        generator=torch.Generator(),  # otherwise it would draw from the global one
    )
    for batch in loader:
        if isinstance(batch, DataError):
            raise batch
        images, labels = batch
        yield images, labels


class _Decoded(Dataset[Batch | DataError]):
    """Batches by the numbers of their images. For an unreadable image the batch is the error: if a worker
    raised it, the user would see that process's traceback."""

    def __init__(self, split: Split, rule: CropRule) -> None:
        self.split = split
        self.rule = rule

    def __getitem__(self, row: Sequence[int]) -> Batch | DataError:
        try:
            images = _shared(torch.empty((len(row), SIZE, SIZE, 3), dtype=torch.uint8))
            labels = _shared(torch.from_numpy(self.split.labels[np.asarray(row, dtype=np.int64)]))
            pixels = images.numpy()
            for place, index in enumerate(row):
                pixels[place] = read_image(self.split.path(index), index, self.rule)
        except DataError as error:
            return error
        return images.permute(0, 3, 1, 2), labels


def _shared(tensor: Tensor) -> Tensor:
    """In a worker process, the tensor in shared memory.

    If the loader found no room for it there, as with the 64 MB of a container, it would wait for ever.
    """
    if get_worker_info() is None:
        return tensor
    try:
        shared: Tensor = tensor.share_memory_()
    except RuntimeError as error:
        raise DataError(
            f"/dev/shm: no room for images that worker processes decode ({one_line(error)}); make it larger, "
            "as by docker run --shm-size=8g, or use fewer cores (taskset)"
        ) from error
    return shared


def _cores() -> int:
    """The cores for this process: those of the machine divided by the processes that torchrun started."""
    return max(1, usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
