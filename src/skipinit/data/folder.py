"""A folder of photographs, train/<class>/… and val/<class>/…: which files there are and what they show."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from .fetch import find, search_path

EXTENSIONS = (".jpeg", ".jpg", ".png")


@dataclass(frozen=True, eq=False)
class Split:
    """The files of one split, sorted by class and name, and the class number of each."""

    root: Path
    files: NDArray[np.bytes_]
    """`class/name`. One array, because a million Python strings would be copied into every worker process."""
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.files)

    def path(self, index: int) -> Path:
        """Where image `index` lies."""
        return self.root / os.fsdecode(self.files[index])


@dataclass(frozen=True, eq=False)
class ImageFolder:
    """A data set of image files; a class's number is its place among the sorted names of train/."""

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
    root = find("imagenet") if name == "imagenet" else Path(name).expanduser()
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
