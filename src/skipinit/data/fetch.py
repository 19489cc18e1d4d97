"""Where data sets lie on this machine, and how one that is missing gets there, whole or not at all."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import platformdirs

from ..errors import DataError


def search_path() -> list[Path]:
    """The folders that are searched, in order; what is fetched goes into the first."""
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
    """Download the file at `url`; it gets its name only when it is complete and its checksum right."""
    import pooch  # it brings an HTTP client along, which reading what is there does not need

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
