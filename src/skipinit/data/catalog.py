"""The data sets there are, as plain data: what the command line shows and defaults are made from.

Nothing here imports torch. A data set is named, or it is the path of an .npz file, or of a folder laid out
like ImageNet's.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import DataError, unknown_name

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class DataSet:
    """What there is to know of a data set before reading it."""

    name: str
    num_classes: int
    shape: tuple[int, int, int]
    """Channels, height and width, as the network sees an image."""
    train_size: int
    test_size: int
    padding: int
    """Border of the random crop, in pixels on each side; 0 means that images are not cropped."""
    flip: bool
    """Whether the mirror image of a member is one too."""
    origin: str
    """Where it comes from, in a line."""
    in_memory: bool = True
    """Whether it lives on the device as one tensor (`load`) or as files (`open_folder`)."""

    @property
    def micro_batch(self) -> int:
        """Examples at once, at most: larger batches only cost memory."""
        return 1024 if self.in_memory else 128


_CIFAR_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html, fetched on first use"


DATA_SETS: dict[str, DataSet] = {
    entry.name: entry
    for entry in (
        # A crop of 8×8 digits shifts by one pixel at most, and a mirrored digit is another shape.
        DataSet("digits", 10, (1, 8, 8), 1442, 355, 1, False, "bundled with scikit-learn"),
        DataSet("digits16", 10, (1, 16, 16), 1442, 355, 2, False, "digits, each pixel as a square of four"),
        DataSet("cifar10", 10, (3, 32, 32), 50_000, 10_000, 4, True, _CIFAR_PAGE),
        DataSet("cifar100", 100, (3, 32, 32), 50_000, 10_000, 4, True, _CIFAR_PAGE),
        DataSet("gaussian", 10, (3, 32, 32), 4096, 1024, 0, False, "drawn: N(0, 1) values, random labels"),
        DataSet(
            "imagenet",
            1000,
            (3, 224, 224),
            1_281_167,
            50_000,
            0,
            True,
            "https://image-net.org, laid out by you: imagenet/{train,val}/<class>/*.JPEG",
            in_memory=False,
        ),
    )
}


def describe(name: str) -> DataSet:
    """The entry of a named data set, or one made from the file or folder at the path `name`."""
    if name in DATA_SETS:
        return DATA_SETS[name]
    if name.endswith(".npz"):
        from .arrays import describe_arrays

        return describe_arrays(name)
    if os.path.isdir(os.path.expanduser(name)):
        from .photographs import open_folder  # it needs numpy, which a look at the table does not

        folder = open_folder(name)
        return replace(
            DATA_SETS["imagenet"],
            name=name,
            num_classes=len(folder.classes),
            train_size=len(folder.train),
            test_size=len(folder.test),
            origin="the folder itself",
        )
    if os.sep in name:
        raise DataError(
            f"{name}: no such folder; a path is an .npz file or a folder with train/ and val/ inside"
        )
    raise unknown_name("data set", name, DATA_SETS)


class Labelled(NamedTuple):
    """What a reader hands back for a split: images (N, C, H, W) and the class of each (N,)."""

    images: NDArray[Any]
    labels: NDArray[np.int64]
