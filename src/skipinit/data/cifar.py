"""Reads CIFAR-10 and CIFAR-100 in their official formats: binary or python, unpacked or as an archive.

An archive is not unpacked, so no half-unpacked folder can be taken for data later. A pickle may call any
importable name; the reader here allows only names that build an array of bytes or a bytes object.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import tarfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError
from .catalog import Labelled, check_md5, fetch, find


def _byte_dtype(code: str | bytes, *_layout: Any) -> np.dtype[np.uint8]:
    # The official files were written by Python 2, whose 0 and 1 for "align" and "copy" numpy deprecates.
    if code not in ("u1", b"u1"):
        raise pickle.UnpicklingError(f"holds an array of {code!r}, not of bytes")
    return np.dtype(np.uint8)


def _latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"holds bytes encoded as {encoding!r}")
    return text.encode("latin1")


_reconstruct = np.ndarray(0).__reduce__()[0]


_from_buffer = np.zeros(1).__reduce_ex__(5)[0]


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _byte_dtype,
    ("_codecs", "encode"): _latin1,  # how Python 3 writes bytes in Python 2's protocol
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _reconstruct for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _from_buffer for core in ("core", "_core")},
}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"asks for {module}.{name}, which is not needed to build arrays")
        return _ALLOWED[module, name]


def load_arrays(raw: bytes) -> Any:
    """The value pickled in `raw`: byte arrays, bytes, numbers, strings, lists, tuples and dicts."""
    return _ArraysOnly(io.BytesIO(raw), encoding="bytes").load()


PIXELS = 3 * 32 * 32


BASE_URL = "https://www.cs.toronto.edu/~kriz/"


@dataclass(frozen=True)
class Form:
    """One official format of a CIFAR data set."""

    archive: str
    md5: str
    folder: str
    suffix: str
    """Suffix of the files: ".bin" for records of bytes, "" for pickles."""


@dataclass(frozen=True)
class Cifar:
    """One of the two data sets: its formats (the first is the one to download) and their contents."""

    num_classes: int
    train: Mapping[str, int]
    """Files of the training split, without suffix, and how many images are in each."""
    test: Mapping[str, int]
    label_keys: tuple[str, ...]
    """Labels of an image in the order of a binary record; the last is the class."""
    forms: tuple[Form, ...]
    sha256: Mapping[str, str] = field(default_factory=dict)
    """Checksums of each file's classes and pixels, because unpacked folders have none."""


CIFAR10 = Cifar(
    num_classes=10,
    train={f"data_batch_{number}": 10_000 for number in (1, 2, 3, 4, 5)},
    test={"test_batch": 10_000},
    label_keys=("labels",),
    forms=(
        Form("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", "cifar-10-batches-bin", ".bin"),
        Form("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", "cifar-10-batches-py", ""),
    ),
    sha256={
        "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
)


CIFAR100 = Cifar(
    num_classes=100,
    train={"train": 50_000},
    test={"test": 10_000},
    label_keys=("coarse_labels", "fine_labels"),
    forms=(
        Form("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", "cifar-100-binary", ".bin"),
        Form("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", "cifar-100-python", ""),
    ),
    sha256={
        "train": "103e455a52a1259c4e338e7117c3041c6fb2334ddc738ff84120fad5cdf22e11",
        "test": "0ae4d4bc17deeb930f09b05f97b4c66b6e5c58cadd6bd9366d5d3f90bb4a6b3e",
    },
)


def read_cifar(cifar: Cifar) -> tuple[Labelled, Labelled]:
    """Training and test split: images uint8 (N, 3, 32, 32) and labels, every file checked."""
    names = [name for form in cifar.forms for name in (form.folder, form.archive)]
    source = find(*names) or fetch(BASE_URL + cifar.forms[0].archive, cifar.forms[0].md5)
    form = next(form for form in cifar.forms if source.name in (form.folder, form.archive))
    wanted = [name + form.suffix for name in (*cifar.train, *cifar.test)]
    raw = _read_folder(source, wanted) if source.is_dir() else _read_archive(source, form, wanted)
    parse = _parse_python if form.suffix == "" else _parse_binary

    def split(files: Mapping[str, int]) -> Labelled:
        parts = []
        for name, count in files.items():
            path = source / (name + form.suffix)
            parts.append(parse(cifar, raw[path.name], count, path))
            _check(cifar, name, parts[-1], path)
        images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return Labelled(images.reshape(-1, 3, 32, 32), labels)

    return split(cifar.train), split(cifar.test)


def _read_folder(folder: Path, wanted: Collection[str]) -> dict[str, bytes]:
    try:
        return {name: (folder / name).read_bytes() for name in wanted}
    except OSError as error:
        raise DataError(f"{error.filename}: {error.strerror}; unpack the whole archive again") from error


def _read_archive(archive: Path, form: Form, wanted: Collection[str]) -> dict[str, bytes]:
    check_md5(archive, form.md5)
    raw = {}
    with tarfile.open(archive, "r:gz") as members:
        for member in members:
            name = member.name.removeprefix(f"{form.folder}/")
            if name in wanted and (file := members.extractfile(member)):
                raw[name] = file.read()
    return raw


def _parse_binary(cifar: Cifar, raw: bytes, count: int, path: Path) -> Labelled:
    columns = len(cifar.label_keys)
    size = count * (columns + PIXELS)
    if len(raw) != size:
        raise DataError(f"{path}: {len(raw):,} bytes, not {size:,}; it is truncated or foreign")
    records = np.frombuffer(raw, np.uint8).reshape(count, columns + PIXELS)
    return Labelled(records[:, columns:], records[:, columns - 1].astype(np.int64))


def _parse_python(cifar: Cifar, raw: bytes, count: int, path: Path) -> Labelled:
    try:
        entries = load_arrays(raw).items()
        # Keys are bytes in the official files, which Python 2 wrote, and may be strings in copies.
        batch = {key.decode() if isinstance(key, bytes) else key: value for key, value in entries}
        pixels, labels = batch["data"], np.array(batch[cifar.label_keys[-1]])
    except Exception as error:  # a damaged pickle can fail in any way
        raise DataError(f"{path}: not a readable CIFAR batch ({error}); it is damaged or foreign") from error
    whole = isinstance(pixels, np.ndarray) and pixels.shape == (count, PIXELS)
    if not whole or labels.shape != (count,) or labels.dtype.kind != "i":
        raise DataError(f"{path}: does not hold {count} images of {PIXELS} bytes with a label each")
    return Labelled(pixels, labels.astype(np.int64))


def _check(cifar: Cifar, name: str, part: Labelled, path: Path) -> None:
    """Refuse labels that are not valid, and contents with a wrong checksum."""
    pixels, labels = part
    for odd in labels[(labels < 0) | (labels >= cifar.num_classes)]:
        raise DataError(f"{path}: label {odd} is not in 0 … {cifar.num_classes - 1}; the file is damaged")
    if expected := cifar.sha256.get(name):
        records = np.concatenate([labels.astype(np.uint8)[:, None], pixels], axis=1)
        found = hashlib.sha256(records.data).hexdigest()
        if found != expected:
            raise DataError(f"{path}: sha256 of its records is {found}, not {expected}; it is damaged")
