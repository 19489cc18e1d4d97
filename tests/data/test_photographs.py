"""A folder of photographs: what is listed, which part is shown, how batches arrive, what is refused."""

import io
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, JpegImagePlugin

from skipinit.data import CentreCrop, RandomCrop, describe, folder_batches, open_folder
from skipinit.data.photographs import Crop, read_image
from skipinit.errors import DataError
from support.photographs import draw_folder, photograph

SAMPLE = Path(os.environ.get("SKIPINIT_DATA", "")) / "imagenet-sample"
needs_photographs = pytest.mark.skipif(
    not (os.environ.get("SKIPINIT_DATA") and SAMPLE.is_dir()), reason="no imagenet-sample under SKIPINIT_DATA"
)

# From Python 3.12 on, forking the workers warns wherever torch has started threads of its own.
pytestmark = pytest.mark.filterwarnings(r"ignore:.*use of fork\(\) may lead to deadlocks:DeprecationWarning")


@pytest.fixture
def root(tmp_path):
    """Two classes, 5 + 4 images to train on and 2 + 1 to test."""
    return draw_folder(tmp_path, {"train": (5, 4), "val": (2, 1)})


def every_batch(split, rows, rule, workers=0):
    return list(folder_batches(split, rows, rule, workers))


def test_listing_is_sorted_and_skips_what_is_no_image(root):
    (root / "train" / "cat" / "notes.txt").write_text("no image")
    (root / "train" / "cat" / "._0.JPEG").write_text("no image either")
    (root / "train" / ".cache").mkdir()
    (root / "train" / "readme").write_text("not a class")
    photograph(230, 230).save(root / "train" / "cat" / "é.png")
    folder = open_folder(str(root))
    assert folder.classes == ("cat", "dog")
    names = [str(folder.train.path(index).relative_to(root / "train")) for index in range(len(folder.train))]
    assert names == [f"cat/{n}.JPEG" for n in range(5)] + ["cat/é.png"] + [f"dog/{n}.JPEG" for n in range(4)]
    assert folder.train.labels.tolist() == [0] * 6 + [1] * 4
    assert folder.test.labels.tolist() == [0, 0, 1]


def test_path_is_a_data_set_like_a_named_one(root, monkeypatch):
    entry = describe(str(root))
    assert (entry.num_classes, entry.train_size, entry.test_size, entry.in_memory) == (2, 9, 3, False)
    (root / "data").mkdir()
    (root / "data" / "imagenet").symlink_to(root)
    monkeypatch.setenv("SKIPINIT_DATA", str(root / "data"))
    assert len(open_folder("imagenet").train) == 9
    monkeypatch.setenv("SKIPINIT_DATA", str(root / "elsewhere"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(root / "cache"))
    with pytest.raises(DataError, match=f"imagenet is not at {root}/elsewhere/imagenet or {root}/cache"):
        open_folder("imagenet")


def test_val_may_have_fewer_classes_with_the_same_numbers(root):
    for file in (root / "val" / "cat").iterdir():
        file.unlink()
    (root / "val" / "cat").rmdir()
    assert open_folder(str(root)).test.labels.tolist() == [1]


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("train/bird", "train/bird: no images"),
        ("val/bird", "val/bird: no such class in"),
    ],
)
def test_empty_and_odd_classes_are_named(root, split, message):
    (root / split).mkdir()
    with pytest.raises(DataError, match=f"{root}/{message}"):
        open_folder(str(root))


def test_one_class_alone_is_refused(root):
    """As where a folder between split and classes was forgotten: every answer would be right."""
    for split in ("train", "val"):
        (root / "deeper" / split).mkdir(parents=True)
        (root / split).rename(root / "deeper" / split / "images")
    for number in range(2):
        photograph(230, 230).save(root / "deeper" / "train" / "images" / f"{number}.JPEG")
    with pytest.raises(DataError, match=f"{root}/deeper/train: one class alone, images; a classifier needs"):
        open_folder(str(root / "deeper"))


def test_folders_without_the_layout_are_named(root, tmp_path):
    with pytest.raises(DataError, match=f"{root}/train/train: no such folder"):
        open_folder(str(root / "train"))
    (root / "val").rename(root / "classes")
    (root / "val").mkdir()
    photograph(230, 230).save(root / "val" / "flat.JPEG")
    with pytest.raises(DataError, match=f"{root}/val: no class folders"):
        open_folder(str(root))


@pytest.mark.parametrize(("width", "height"), [(500, 375), (333, 500), (224, 224), (64, 40)])
def test_random_crops_have_the_stated_area_ratio_and_place(width, height):
    crops = [RandomCrop(seed=0, epoch=0)(index, width, height) for index in range(4000)]
    left, top, right, bottom, flip = (np.array(column) for column in zip(*crops, strict=True))
    w, h = right - left, bottom - top
    assert (left >= 0).all()
    assert (top >= 0).all()
    assert (right <= width).all()
    assert (bottom <= height).all()
    rounding = (1 + 0.5 / w) * (1 + 0.5 / h)
    area, ratio = w * h / (width * height), w / h
    assert (area >= 0.08 / rounding - 1e-12).all()
    assert area.min() < 0.09
    assert (ratio >= 3 / 4 / rounding).all()
    assert (ratio <= 4 / 3 * rounding).all()
    assert ratio.min() < 0.77
    assert ratio.max() > 1.30
    assert abs(flip.mean() - 0.5) < 5 * 0.5 / math.sqrt(4000)
    slack = (width - w) > 0
    assert abs((left / np.maximum(width - w, 1))[slack].mean() - 0.5) < 0.05, "no side is favoured"


def test_random_crop_of_a_ribbon_is_its_centre():
    crop = RandomCrop(0, 0)(0, 1000, 60)
    assert crop[:4] == (460, 0, 540, 60)
    crop = RandomCrop(0, 0)(0, 60, 1000)
    assert crop[:4] == (0, 460, 60, 540)


def test_random_crop_depends_on_seed_epoch_and_image():
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    crops = [RandomCrop(seed, epoch)(index, 500, 400) for seed, epoch, index in keys]
    assert len(set(crops)) == 4
    assert crops == [RandomCrop(seed, epoch)(index, 500, 400) for seed, epoch, index in keys]


@pytest.mark.parametrize(("width", "height"), [(512, 512), (512, 768), (1024, 512)])
def test_centre_crop_is_resize_256_then_cut_224(width, height, tmp_path):
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))
    picture.save(tmp_path / "noise.png")
    short = min(width, height)
    resized = picture.resize((width * 256 // short, height * 256 // short), Image.Resampling.BILINEAR)
    left, top = (resized.width - 224) // 2, (resized.height - 224) // 2
    expected = np.asarray(resized.crop((left, top, left + 224, top + 224)))
    assert np.array_equal(read_image(tmp_path / "noise.png", 0, CentreCrop()), expected)


@pytest.mark.parametrize("flip", [False, True])
def test_large_jpeg_is_decoded_small_and_looks_the_same(flip, tmp_path, monkeypatch):
    path = tmp_path / "large.jpg"
    photograph(2001, 1503).save(path, quality=95)
    box = (101, 57, 1801, 1403)
    whole = Image.open(path)
    whole.load()
    expected = whole.resize((224, 224), Image.Resampling.BILINEAR, box=box)
    expected = expected.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else expected
    scales = []
    draft = JpegImagePlugin.JpegImageFile.draft

    def noted(image, *request):
        result = draft(image, *request)
        scales.append(image.decoderconfig[0])
        return result

    monkeypatch.setattr(JpegImagePlugin.JpegImageFile, "draft", noted)
    found = read_image(path, 0, lambda *_: Crop(*box, flip))
    assert scales == [4], "1700×1346 at a quarter still has 224 pixels each way; at an eighth it has not"
    assert abs(found.astype(int) - np.asarray(expected)).max() <= 4
    assert abs(found.astype(int) - np.asarray(expected)[:, ::-1]).max() > 50, "the picture is not symmetric"


@pytest.mark.parametrize("mode", ["L", "CMYK", "P", "RGBA"])
def test_other_colour_modes_become_rgb(mode, tmp_path):
    path = tmp_path / f"image.{'jpg' if mode in ('L', 'CMYK') else 'png'}"
    picture = photograph(300, 280).convert(mode)
    picture.save(path)
    found = read_image(path, 0, CentreCrop())
    assert found.shape == (224, 224, 3)
    whole = (
        Image.open(path)
        .convert("RGB")
        .resize((224, 224), Image.Resampling.BILINEAR, box=CentreCrop()(0, 300, 280)[:4])
    )
    assert np.array_equal(found, np.asarray(whole))


def test_sixteen_bits_of_grey_look_like_eight(tmp_path):
    grey = np.asarray(photograph(300, 280).convert("L"))
    Image.fromarray(grey).save(tmp_path / "8.png")
    Image.fromarray(grey * np.uint16(257)).save(tmp_path / "16.png")  # 255 becomes 65535
    found, expected = (read_image(tmp_path / name, 0, CentreCrop()) for name in ("16.png", "8.png"))
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("mode", ["I", "F"])
def test_grey_of_no_known_range_is_refused_with_its_path(mode, tmp_path):
    path = tmp_path / "measured.png"
    photograph(300, 280).convert(mode).save(path, "TIFF")
    with pytest.raises(DataError) as caught:
        read_image(path, 0, CentreCrop())
    assert str(caught.value).startswith(f"{path}: not a readable image (its pixels are of mode {mode}, ")


def test_batches_come_in_the_order_asked_for_whatever_the_workers(root):
    train = open_folder(str(root)).train
    rows = [[8, 0, 3], [1, 1], [7], [2, 4, 5, 6]]
    rule = RandomCrop(seed=1, epoch=2)
    alone = every_batch(train, rows, rule)
    assert [len(images) for images, _ in alone] == [3, 2, 1, 4]
    for row, (images, labels) in zip(rows, alone, strict=True):
        assert images.dtype == torch.uint8
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert labels.tolist() == [0 if index < 5 else 1 for index in row]
        for image, index in zip(images, row, strict=True):
            expected = read_image(train.path(index), index, rule)
            assert np.array_equal(image.permute(1, 2, 0).numpy(), expected)
    for workers in (1, 2):
        for (images, labels), (others, other_labels) in zip(
            alone, every_batch(train, rows, rule, workers), strict=True
        ):
            assert torch.equal(images, others)
            assert torch.equal(labels, other_labels)


def test_resuming_and_sharing_serve_the_same_images(root):
    train = open_folder(str(root)).train
    rule = RandomCrop(0, 0)
    rows = [[3, 1, 4, 0], [5, 2, 6, 7]]
    whole = every_batch(train, rows, rule)
    resumed = every_batch(train, rows[1:], rule, workers=1)
    assert torch.equal(resumed[0][0], whole[1][0])
    ranks = [every_batch(train, [row[rank * 2 : rank * 2 + 2] for row in rows], rule) for rank in (0, 1)]
    for step in (0, 1):
        assert torch.equal(torch.cat([rank[step][0] for rank in ranks]), whole[step][0])


@pytest.mark.parametrize("workers", [0, 1])
def test_global_randomness_is_neither_used_nor_moved(root, workers):
    train = open_folder(str(root)).train
    torch.manual_seed(5)
    before = torch.get_rng_state()
    every_batch(train, [[0]], RandomCrop(0, 0), workers)
    assert torch.equal(torch.get_rng_state(), before)


def broken(kind):
    whole = io.BytesIO()
    photograph(400, 300).save(whole, "JPEG")
    raw = whole.getvalue()
    return {"empty": b"", "text": b"not an image", "truncated": raw[: len(raw) // 2], "header": raw[:30]}[
        kind
    ]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["empty", "text", "truncated", "header"])
def test_corrupt_image_is_named_in_one_line_from_a_worker_too(root, kind, workers):
    folder = open_folder(str(root))
    bad = root / "train" / "dog" / "2.JPEG"
    bad.write_bytes(broken(kind))
    batches = folder_batches(folder.train, [[0, 1], [6, 7], [2, 3]], RandomCrop(0, 0), workers)
    assert len(next(batches)[0]) == 2, "what comes before is served"
    with pytest.raises(DataError) as caught:
        next(batches)
    assert str(caught.value).startswith(f"{bad}: not a readable image (")
    assert "\n" not in str(caught.value)


@needs_photographs
def test_real_photographs():
    folder = open_folder(str(SAMPLE))
    assert (len(folder.classes), len(folder.train), len(folder.test)) == (10, 400, 100)
    assert folder.classes[0] == "n01440764", "the tench comes first in ImageNet"
    assert np.bincount(folder.train.labels).tolist() == [40] * 10
    rows = torch.arange(100).split(20)
    served = every_batch(folder.test, [row.tolist() for row in rows], CentreCrop(), workers=2)
    assert torch.cat([labels for _, labels in served]).tolist() == folder.test.labels.tolist()
    images = torch.cat([images for images, _ in served]).double()
    assert images.shape == (100, 3, 224, 224)
    # ImageNet's well-known channel means, 0.485 0.456 0.406, within what 100 photographs can say.
    means = images.mean((0, 2, 3)) / 255
    spread = images.mean((2, 3)).std(0) / 255
    expected = torch.tensor([0.485, 0.456, 0.406]).double()
    assert ((means - expected).abs() < 4 * spread / 10).all()
