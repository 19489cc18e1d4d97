"""The table of data sets, where they are on this machine, and how missing ones are downloaded.

Nothing here imports torch: the command line shows the table, and defaults come from it. A data set is given
by its name, or by the path of an .npz file or of a folder laid out like ImageNet's.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import DataError, unknown_name

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class DataSet:
    """A data set, described without reading it."""

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
    """Where it comes from, in one line."""
    in_memory: bool = True
    """Whether it is one tensor on the device (`load`) or a folder of files (`open_folder`)."""

    @property
    def micro_batch(self) -> int:
        """The most examples at once; more would only take more memory."""
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
        from .photographs import open_folder  # it needs numpy, which the table does not

        folder = open_folder(name)
        return replace(
            DATA_SETS["imagenet"],
            name=name,
            num_classes=len(folder.classes),
            train_size=len(folder.train),
            test_size=len(folder.test),
            origin="the folder itself",
        )
    if os.sep in name or os.path.exists(name):
        raise DataError(
            f"{name}: no such folder; a path is an .npz file or a folder with train/ and val/ inside"
        )
    raise unknown_name(f"no folder {name!r} is here, and data set", name, DATA_SETS)


class Labelled(NamedTuple):
    """A split: images (N, C, H, W) and their classes (N,)."""

    images: NDArray[Any]
    labels: NDArray[np.int64]


def search_path() -> list[Path]:
    """The folders that are searched, in order; downloads go into the first."""
    import platformdirs  # of the extra `lab`, which the table does not need

    given = os.environ.get("SKIPINIT_DATA")
    cache = platformdirs.user_cache_path("skipinit")
    return [Path(os.path.expanduser(given)), cache] if given else [cache]


def find(*names: str) -> Path | None:
    """The first of `names` in the first folder of the search path that has any of them."""
    for place in search_path():
        for name in names:
            if (place / name).exists():
                return place / name
    return None


def fetch(url: str, md5: str) -> Path:
    """Download the file at `url`; it gets its name when it is complete and its checksum is right."""
    import pooch  # it imports an HTTP client, which is only needed here

    name, place = url.rsplit("/", 1)[-1], search_path()[0]
    try:
        return Path(pooch.retrieve(url, known_hash=f"md5:{md5}", fname=name, path=place))
    except ValueError as error:
        raise DataError(f"{url}: what came does not have md5 {md5}; nothing was kept; try again") from error
    except OSError as error:
        looked = " or ".join(map(str, search_path()))
        raise DataError(
            f"{name} is not in {looked} and could not be fetched ({type(error).__name__}); "
            f"download {url} where there is a connection and put it into {place}"
        ) from error


def check_md5(path: Path, md5: str) -> None:
    """Refuse a file whose checksum is not `md5`."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "md5").hexdigest()
    if found != md5:
        raise DataError(f"{path}: md5 is {found}, not {md5}; it is damaged: delete it and try again")
