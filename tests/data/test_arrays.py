"""Data of the user's own in an .npz file: what it becomes, and what is refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

from skipinit.data import describe, load
from skipinit.data.arrays import keep_arrays, read_arrays
from skipinit.errors import DataError
from skipinit.training.protocol import name_data

Arrays = dict[str, Any]


class _Dataset:
    """Map-style, as of torch.utils.data: a length, and pairs by their number."""

    def __init__(self, images: list[Any], labels: Any) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.images[index], int(self.labels[index])


def _arrays(channels: int = 3) -> Arrays:
    generator = np.random.default_rng(0)
    return {
        "train_images": generator.integers(256, size=(12, channels, 16, 24), dtype=np.uint8),
        "train_labels": np.arange(12, dtype=np.uint8) % 4,
        "test_images": generator.integers(256, size=(5, channels, 16, 24), dtype=np.uint8),
        "test_labels": np.array([0, 1, 6, 3, 0], dtype=np.int32),
    }


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_file_is_a_data_set_like_a_named_one(
    tmp_path: Path, channels: int, save: Callable[..., None]
) -> None:
    path, arrays = tmp_path / "mine.npz", _arrays(channels)
    save(path, **arrays, comment="what else is there does not matter")
    entry, images = describe(str(path)), load(str(path))
    assert (entry.shape, entry.num_classes) == ((channels, 16, 24), 7)
    assert (entry.train_size, entry.test_size, entry.padding) == (12, 5, 2)
    for name, array in arrays.items():
        assert np.array_equal(getattr(images, name).numpy(), array)


def test_a_file_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    path, arrays = tmp_path / "mine.npz", _arrays()
    np.savez(path, **arrays)
    assert describe(str(path)).num_classes == 7
    np.savez(path, **arrays | {"test_labels": np.zeros(5, dtype=np.int64)}, more=0)
    assert describe(str(path)).num_classes == 4


def _without(name: str) -> Callable[[Arrays], Arrays]:
    return lambda arrays: {key: value for key, value in arrays.items() if key != name}


def _with(name: str, change: Callable[[Any], Any]) -> Callable[[Arrays], Arrays]:
    return lambda arrays: arrays | {name: change(arrays[name])}


REFUSED: dict[str, Callable[[Arrays], Arrays]] = {
    "there is no array test_labels; it must hold train_images,": _without("test_labels"),
    "train_images is float32 of shape (12, 3, 16, 24); it must be uint8": _with(
        "train_images", lambda images: images.astype(np.float32)
    ),
    "test_images is uint8 of shape (5, 16, 24); it must be uint8 of shape (N, C, H, W)": _with(
        "test_images", lambda images: images[:, 0]
    ),
    "train_images is of shape (12, 16, 24, 3); it must be (N, C, H, W): transpose(0, 3, 1, 2)": _with(
        "train_images", lambda images: images.transpose(0, 2, 3, 1)
    ),
    "test_images is empty, of shape (0, 3, 16, 24)": _with("test_images", lambda images: images[:0]),
    "training and test images are of different shapes, (3, 16, 24) and (3, 16, 23)": _with(
        "test_images", lambda images: images[..., :23]
    ),
    "train_labels is float64 of shape (12,); it must be whole numbers": _with(
        "train_labels", lambda labels: labels.astype(float)
    ),
    "train_labels is uint8 of shape (12, 1)": _with("train_labels", lambda labels: labels[:, None]),
    "test_labels is of length 4; it must be as long as test_images, 5": _with(
        "test_labels", lambda labels: labels[:4]
    ),
    "test_labels is -1 at the least; it must be classes counted from 0": _with(
        "test_labels", lambda labels: labels - 1
    ),
    "train_labels is -1 at the least": _with(
        "train_labels", lambda labels: (labels.astype(np.int64) - 1).astype(np.uint64)
    ),
    "train_labels are all 2; a classifier needs two classes or more": _with(
        "train_labels", lambda labels: 0 * labels + 2
    ),
    "not an .npz file of plain arrays (Object arrays cannot be loaded": _with(
        "train_labels", lambda labels: labels.astype(object)
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_anything_else_is_refused_in_one_line(tmp_path: Path, message: str) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, **REFUSED[message](_arrays()))
    with pytest.raises(DataError) as caught:
        describe(str(path))
    assert str(caught.value).startswith(f"{path}: {message}")


class _Trap:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.mark,)


def test_a_file_that_hides_code_is_refused_and_not_run(tmp_path: Path) -> None:
    path, mark = tmp_path / "mine.npz", tmp_path / "mark"
    np.savez(path, **{**_arrays(), "test_labels": np.array([_Trap(mark)], dtype=object)})
    with pytest.raises(DataError, match=r"not an \.npz file of plain arrays"):
        read_arrays(str(path))
    assert not mark.exists()
    np.load(path, allow_pickle=True)["test_labels"]
    assert mark.exists()  # the trap works


def test_a_file_that_is_damaged_or_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    with pytest.raises(DataError, match=r"mine\.npz: cannot be read \(No such file"):
        describe(str(path))
    path.mkdir()
    with pytest.raises(DataError, match=r"mine\.npz: cannot be read \(Is a directory"):
        describe(str(path))
    path.rmdir()
    np.savez(path, **_arrays())
    content = path.read_bytes()
    middle = len(content) // 4  # within the training images
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    for damaged in (b"", b"text", content[: len(content) // 2], flipped):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"mine\.npz: not an \.npz file of plain arrays"):
            describe(str(path))


def _in_memory(form: str, arrays: Arrays) -> list[Any]:
    """Training and test split, as users have them."""
    splits: list[Any] = []
    for part in ("train", "test"):
        images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
        if form == "arrays":
            splits.append((images, labels))
        elif form == "tensors":
            splits.append((torch.from_numpy(images), torch.from_numpy(labels)))
        elif form == "TensorDataset":
            splits.append(TensorDataset(torch.from_numpy(images).float() / 255, torch.from_numpy(labels)))
        else:
            pictures = [Image.fromarray(image.transpose(1, 2, 0)) for image in images]
            splits.append(_Dataset(pictures, labels))
    return splits


def test_a_damaged_byte_is_one_line_or_does_not_matter(tmp_path: Path) -> None:
    """It may be in the archive's table, where it can ask for a password or for a place before the start."""
    path, labels = tmp_path / "own.npz", np.arange(2)
    images = np.arange(8, dtype=np.uint8).reshape(2, 1, 2, 2)
    np.savez(path, train_images=images, train_labels=labels, test_images=images + 8, test_labels=labels)
    whole, refused = path.read_bytes(), set()
    for place, byte in enumerate(whole):
        path.write_bytes(whole[:place] + bytes([byte ^ 1]) + whole[place + 1 :])
        try:
            train, test = read_arrays(str(path))
        except DataError as error:
            refused.add(str(error).partition(":")[0])
        else:
            assert np.array_equal(train.images, images)
            assert np.array_equal(test.images, images + 8)
            assert np.array_equal([train.labels, test.labels], [labels, labels])
    assert refused == {str(path)}


@pytest.mark.parametrize("form", ["arrays", "tensors", "TensorDataset", "pictures"])
def test_what_is_in_memory_becomes_a_file_named_by_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setenv("SKIPINIT_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    arrays = _arrays()
    name = keep_arrays(*_in_memory(form, arrays))
    assert name == keep_arrays(*_in_memory("arrays", arrays)), "however it was handed over"
    assert [path.name for path in (tmp_path / "data").iterdir()] == [name]
    images = load(name)
    for key, array in arrays.items():
        assert np.array_equal(getattr(images, key).numpy(), array)
    arrays["test_labels"][0] = 1
    assert keep_arrays(*_in_memory(form, arrays)) != name


def test_pictures_with_a_palette_are_their_colours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKIPINIT_DATA", str(tmp_path))
    colours = [Image.new("RGB", (8, 8), colour) for colour in ((10, 20, 30), (200, 100, 0))]
    palettes = [picture.convert("P", palette=Image.Palette.ADAPTIVE) for picture in colours]
    assert not np.asarray(palettes[1]).any(), "the index of its only colour"
    plain, indexed = (_Dataset(pictures, [0, 1]) for pictures in (colours, palettes))
    assert keep_arrays(indexed, indexed) == keep_arrays(plain, plain)


def test_what_in_memory_cannot_be_data_is_refused_and_nothing_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKIPINIT_DATA", str(tmp_path))
    test = (np.zeros((2, 1, 8, 8), np.uint8), np.array([0, 1]))
    normal, odd = torch.randn(2, 1, 8, 8), [torch.zeros(1, 8, 8), torch.zeros(1, 8, 9)]
    refused: dict[str, Any] = {
        "data: train is a generator; it must be (images, labels), or a Dataset that has a length": (
            x for x in "ab"
        ),
        "data: train is a Tensor; it must be (images, labels), or a Dataset that has a length": normal,
        "data: train is a dict; it must be (images, labels), or a Dataset that has a length": dict(
            zip(("images", "labels"), test, strict=True)
        ),
        "data: train is a DataLoader; it must be (images, labels), or a Dataset that has a length; give its "
        "dataset": DataLoader(_Dataset(test[0], test[1])),
        "data: train cannot be read; its examples must be images of one shape, each with its class (Got": (
            normal.bfloat16(),
            test[1],
        ),
        "data: train_images are float32 that are no pixels k / 255; give uint8": (normal, test[1]),
        "data: train_images are float64 that are no pixels k / 255; give uint8": (
            normal.double() / 0,
            test[1],
        ),
        "data: train_images are float16 that are no pixels k / 255; give uint8": (
            test[0] + np.half(300),
            test[1],
        ),
        "data: train cannot be read; its examples must be images of one shape": _Dataset(odd, test[1]),
        "data: train_images is empty, of shape (0, 1, 8, 8)": (normal[:0], test[1][:0]),
        "data: train_labels is of length 3; it must be as long as train_images, 2": (test[0], np.arange(3)),
        "data: training and test images are of different shapes": (test[0][..., :7], test[1]),
    }
    for message, train in refused.items():
        with pytest.raises(DataError) as caught:
            keep_arrays(train, test)
        assert str(caught.value).startswith(message)
    with pytest.raises(DataError, match=r"data is a Tensor; it must be a name, a path, or \(train, test\)"):
        name_data(normal)
    assert not list(tmp_path.iterdir())
