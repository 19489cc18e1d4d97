"""A data set of the user's own in one .npz file, as `numpy.savez` writes it. Data in memory becomes one.

It holds `train_images`, `train_labels`, `test_images` and `test_labels`: images (N, C, H, W) of uint8, and
their classes (N,) as whole numbers from 0.
"""

from __future__ import annotations

import errno
import hashlib
import os
import zipfile
import zlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, one_line, system_error
from ..files import write_whole
from .catalog import DataSet, Labelled, find, search_path

_ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
_CHANNELS = (1, 3, 4)
_DAMAGED = (ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""RuntimeError: the archive's table says that a file has a password, or a format of the future."""


def describe_arrays(path: str) -> DataSet:
    """The entry of a file. A random crop shifts by at most an eighth of the side, as for CIFAR."""
    try:
        status = os.stat(_locate(path))
        return _describe(path, status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise system_error(error, path, "read") from error


@lru_cache(maxsize=16)
def _describe(path: str, size: int, changed: int) -> DataSet:
    train, test = read_arrays(path)
    shape = train.images.shape[1:]
    return DataSet(
        path,
        num_classes=int(max(train.labels.max(), test.labels.max())) + 1,
        shape=(shape[0], shape[1], shape[2]),
        train_size=len(train.labels),
        test_size=len(test.labels),
        padding=min(shape[1:]) // 8,
        flip=True,
        origin="the file itself",
    )


def _locate(path: str) -> Path:
    """A file by its path. A bare name is also searched for where other data sets are."""
    given = Path(os.path.expanduser(path))
    return given if given.exists() or given.name != path else find(path) or given


def keep_arrays(train: Any, test: Any) -> str:
    """Write splits that are in memory to a file among the other data sets, named by a hash of its content.

    A split is images and labels, as tensors or arrays, or a `torch.utils.data.Dataset` of such pairs. A
    dataset is read once, so its transforms must not be random.
    """
    given = (*_split(train, "train"), *_split(test, "test"))
    splits = _labelled_splits("data", dict(zip(_ARRAYS, given, strict=True)))
    arrays = dict(zip(_ARRAYS, (*splits[0], *splits[1]), strict=True))
    digest = hashlib.sha256()
    for array in arrays.values():
        digest.update(f"{array.shape}".encode() + array.tobytes())
    name = f"{digest.hexdigest()[:16]}.npz"
    if find(name) is None:
        write_whole(search_path()[0] / name, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]
    return name


def _split(split: Any, part: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Images and labels of a split."""
    together = isinstance(split, tuple | list) and len(split) == 2
    has_items = hasattr(split, "__getitem__") and hasattr(split, "__len__")
    if not has_items or isinstance(split, str | Mapping) or hasattr(split, "dtype"):  # as a lone tensor has
        hint = "; give its dataset" if hasattr(split, "dataset") else ""  # as a DataLoader has
        raise DataError(
            f"data: {part} is a {type(split).__name__}; it must be (images, labels), or a Dataset that has a "
            f"length{hint}"
        )
    pairs = [] if together else [split[index] for index in range(len(split))]
    try:
        if together:
            images, labels = map(_array, split)
        else:
            images, labels = (np.stack([_array(pair[place]) for pair in pairs]) for place in (0, 1))
    except (ValueError, TypeError, IndexError, KeyError) as error:
        reason = f"its examples must be images of one shape, each with its class ({one_line(error)})"
        raise DataError(f"data: {part} cannot be read; {reason}") from error
    return _pixels(images, part), labels


def _array(value: Any) -> NDArray[Any]:
    if hasattr(value, "getbands"):  # PIL images have their channels last
        # Of a palette the colours, not the indices.
        pixels = np.asarray(value.convert("RGB") if value.mode in ("P", "PA") else value)
        return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def _pixels(images: NDArray[Any], part: str) -> NDArray[Any]:
    """The images as uint8; floats, if each is k / 255, as torchvision's `ToTensor` makes them."""
    if not np.issubdtype(images.dtype, np.floating):
        return images
    if not images.size:  # refused later
        return images.astype(np.uint8)
    with np.errstate(over="ignore", invalid="ignore"):  # numbers that are not finite are no pixels, either
        pixels: NDArray[Any] = np.rint(255 * images)
        exact = bool((np.abs(255 * images - pixels) < 1e-3).all())
    if not exact or pixels.min() < 0 or pixels.max() > 255:
        raise DataError(
            f"data: {part}_images are {images.dtype} that are no pixels k / 255; give uint8: images are "
            "standardized one by one in any case"
        )
    return pixels.astype(np.uint8)


def read_arrays(path: str) -> tuple[Labelled, Labelled]:
    """Training and test split; DataError, with the file and the array, if they are not valid."""
    return _labelled_splits(path, _read(path))


def _labelled_splits(path: str, arrays: dict[str, NDArray[Any]]) -> tuple[Labelled, Labelled]:
    if missing := [name for name in _ARRAYS if name not in arrays]:
        raise DataError(f"{path}: there is no array {missing[0]}; it must hold {', '.join(_ARRAYS)}")
    train, test = (_labelled(path, part, arrays) for part in ("train", "test"))
    if train.images.shape[1:] != test.images.shape[1:]:
        shapes = f"{train.images.shape[1:]} and {test.images.shape[1:]}"
        raise DataError(f"{path}: training and test images are of different shapes, {shapes}")
    if (only := train.labels.min()) == train.labels.max():
        raise DataError(f"{path}: train_labels are all {only}; a classifier needs two classes or more")
    return train, test


def _read(path: str) -> dict[str, NDArray[Any]]:
    try:
        with open(_locate(path), "rb") as stream:
            if not zipfile.is_zipfile(stream):
                raise ValueError("it is no zip archive, or not all of one")
            stream.seek(0)
            # Pickled objects could run code as they are read.
            with np.load(stream, allow_pickle=False) as file:
                return {name: file[name] for name in _ARRAYS if name in file}
    except (*_DAMAGED, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # as for a place before the start
            raise
        raise DataError(
            f"{path}: not an .npz file of plain arrays ({one_line(error)}); write it by numpy.savez"
        ) from error


def _labelled(path: str, part: str, arrays: dict[str, NDArray[Any]]) -> Labelled:
    images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]

    def refuse(name: str, given: str, allowed: str) -> None:
        raise DataError(f"{path}: {part}_{name} is {given}; it must be {allowed}")

    if images.dtype != np.uint8 or images.ndim != 4:
        refuse("images", f"{images.dtype} of shape {images.shape}", "uint8 of shape (N, C, H, W)")
    if images.shape[3] in _CHANNELS and images.shape[1] not in _CHANNELS:
        refuse(
            "images", f"of shape {images.shape}", "(N, C, H, W): transpose(0, 3, 1, 2) puts channels first"
        )
    if 0 in images.shape:
        refuse("images", f"empty, of shape {images.shape}", "one image or more")
    if not np.issubdtype(labels.dtype, np.integer) or labels.ndim != 1:
        refuse("labels", f"{labels.dtype} of shape {labels.shape}", "whole numbers of shape (N,)")
    if len(labels) != len(images):
        refuse("labels", f"of length {len(labels)}", f"as long as {part}_images, {len(images)}")
    classes = labels.astype(np.int64)  # in which a -1 that became 2^64 - 1 is -1 again
    if classes.min() < 0:
        refuse("labels", f"{classes.min()} at the least", "classes counted from 0")
    return Labelled(np.ascontiguousarray(images), classes)
