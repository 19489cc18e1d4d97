"""The table of data sets, the sets that need no files, and the plan of an epoch."""

import hashlib
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from skipinit import data
from skipinit.data.images import mix, read_digits
from skipinit.errors import ConfigError, DataError


def test_table_is_read_without_torch_or_numpy():
    script = (
        "import sys, skipinit.data as data; assert data.describe('cifar10').num_classes == 10; "
        "print([name for name in ('torch', 'numpy', 'sklearn', 'PIL') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", data.__all__)
def test_every_public_name_is_there(name):
    assert getattr(data, name) is not None
    assert name in dir(data)


@pytest.mark.parametrize("name", ["digits", "digits16", "gaussian"])
def test_table_tells_what_load_gives(name):
    entry, loaded = data.describe(name), data.load(name)
    assert loaded.train_images.shape == (entry.train_size, *entry.shape)
    assert loaded.test_images.shape == (entry.test_size, *entry.shape)
    assert loaded.train_labels.shape == (entry.train_size,)
    assert loaded.test_labels.shape == (entry.test_size,)
    assert loaded.num_classes == entry.num_classes
    assert loaded.train_labels.unique().tolist() == list(range(entry.num_classes))
    assert loaded.train_labels.dtype == loaded.test_labels.dtype == torch.int64
    for images in (loaded.train_images, loaded.test_images):
        assert images.stride() == torch.empty(images.shape).stride(), "of an ordinary contiguous tensor"


def test_other_names_are_not_there():
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        data.lode  # noqa: B018


def test_unknown_names_are_refused_with_the_nearest(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"no folder 'cifr10' is here.*did you mean cifar10"):
        data.load("cifr10")
    with pytest.raises(DataError, match="nowhere/photos: no such folder"):
        data.describe("nowhere/photos")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images.npy").touch()
    with pytest.raises(DataError, match=r"images\.npy: no such folder; a path is an \.npz file or"):
        data.describe("images.npy")
    with pytest.raises(ConfigError, match=r"imagenet.*open_folder"):
        data.load("imagenet")


def test_digits_are_scikit_learns_split_once_and_for_all():
    digits, bundled = data.load("digits"), load_digits()
    assert digits.train_images.dtype == torch.uint8
    assert digits.train_images.max() == 16
    found = torch.cat([digits.train_images, digits.test_images]).flatten(1).numpy()
    labels = torch.cat([digits.train_labels, digits.test_labels]).numpy()
    assert sorted(map(bytes, found)) == sorted(map(bytes, bundled.data.astype(np.uint8)))
    # By hand: walk through the file, counting each digit; the fifth, tenth, … one is for testing.
    seen, test = dict.fromkeys(range(10), 0), []
    for position, digit in enumerate(bundled.target):
        seen[digit] += 1
        if seen[digit] % 5 == 0:
            test.append(position)
    assert np.array_equal(labels[-len(test) :], bundled.target[test])
    assert np.array_equal(found[-len(test) :], bundled.data[test])


def test_digits_are_the_same_where_the_file_is_not_at_its_place(monkeypatch):
    expected = read_digits()
    monkeypatch.setattr("skipinit.data.images.find_spec", lambda _: SimpleNamespace(origin="/elsewhere/x.py"))
    for part, other in zip(expected, read_digits(), strict=True):
        assert (part.images == other.images).all()
        assert (part.labels == other.labels).all()


def test_digits_are_read_without_importing_scikit_learn():
    code = "import sys; from skipinit.data import load; load('digits'); print('sklearn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("False", "")


def test_large_digits_are_the_same_digits():
    small, large = data.load("digits"), data.load("digits16")
    assert torch.equal(large.test_labels, small.test_labels)
    for corner in (large.train_images[..., i::2, j::2] for i in (0, 1) for j in (0, 1)):
        assert torch.equal(corner, small.train_images)


def test_gaussian_is_standard_normal_and_always_the_same():
    one, two = data.load("gaussian"), data.load("gaussian")
    assert one.train_images.dtype == torch.float32
    assert torch.equal(one.train_images, two.train_images)
    assert torch.equal(one.test_labels, two.test_labels)
    values = one.train_images.double()
    standard_error = values.numel() ** -0.5
    assert abs(values.mean()) < 5 * standard_error
    assert abs(values.var() - 1) < 5 * 2**0.5 * standard_error
    assert not torch.equal(one.train_images[:1024], one.test_images)


def test_plan_serves_every_image_once_with_uniform_choices():
    order, top, left, flip = data.epoch_plan(seed=3, epoch=7, n=90_000, padding=4, flip=True)
    assert torch.equal(order.sort().values, torch.arange(90_000))
    for offsets in (top, left):
        counts = offsets.bincount(minlength=9)
        assert len(counts) == 9
        assert (counts - 10_000).abs().max() < 5 * 10_000**0.5
    assert abs(flip.sum() - 45_000) < 5 * 22_500**0.5
    agreement = (top == left).float().mean()
    assert abs(agreement - 1 / 9) < 0.01, "rows and columns are drawn apart"


def test_plan_depends_on_seed_and_epoch_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    plan = data.epoch_plan(0, 1, 1000, padding=4, flip=True)
    assert torch.equal(torch.get_rng_state(), before), "the global generator is not touched"
    torch.manual_seed(1)
    again = data.epoch_plan(0, 1, 1000, padding=4, flip=True)
    assert all(torch.equal(a, b) for a, b in zip(plan, again, strict=True))
    plain = data.epoch_plan(0, 1, 1000)
    assert torch.equal(plain.order, plan.order), "the order does not depend on the augmentation"
    assert not any(choice.any() for choice in plain[1:])
    others = [data.epoch_plan(*key, 1000).order for key in [(0, 1), (1, 0), (0, 0), (1, 1), (0, 11), (1, 2)]]
    assert len({tuple(order.tolist()) for order in others}) == 6


def test_mixed_seeds_do_not_collide():
    seeds = {mix("epoch", seed, epoch) & 0xFFFFFFFF for seed in range(100) for epoch in range(100)}
    assert len(seeds) > 9_995, "torch's CPU generator takes 32 bits of the seed"
    assert mix(1, 23) != mix(12, 3)
    digest = hashlib.blake2b(b"epoch/0/1", digest_size=8).hexdigest()
    assert mix("epoch", 0, 1) == int(digest, 16) // 2
