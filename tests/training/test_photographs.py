"""The ImageNet pipeline: training on a few photographs, drawn ones and, with ResNet-50, real ones."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from skipinit.config import ModelConfig, TrainConfig
from skipinit.data.catalog import describe
from skipinit.data.images import epoch_plan
from skipinit.data.photographs import CentreCrop, RandomCrop, read_image
from skipinit.errors import DataError
from skipinit.sweeping.results import watched
from skipinit.sweeping.single import train
from skipinit.sweeping.trained import evaluate
from skipinit.training.control import Stop
from skipinit.training.protocol import make_train_config, settle
from skipinit.training.sources import Photographs
from skipinit.training.world import World
from support.own_models import for_photographs
from support.photographs import draw_folder

_SAMPLE = Path(os.environ.get("SKIPINIT_DATA", "")) / "imagenet-sample"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes, four photographs of each to train on and two to test."""
    return draw_folder(tmp_path / "photographs", {"train": (4, 4), "val": (2, 2)})


@pytest.fixture
def real_folder(tmp_path: Path) -> Path:
    """The same of photographs that were taken."""
    for split, count in (("train", 4), ("val", 2)):
        for place in sorted((_SAMPLE / split).iterdir())[:2]:
            target = tmp_path / "photographs" / split / place.name
            target.mkdir(parents=True)
            for photograph in sorted(place.iterdir())[:count]:
                shutil.copy(photograph, target)
    return tmp_path / "photographs"


def _config(folder: Path) -> TrainConfig:
    model = ModelConfig("resnet50_v2", "skipinit", num_classes=2)
    return TrainConfig(model, str(folder), lr=0.01, batch_size=4, epochs=1, l2=1e-4, schedule="imagenet")


class _AtOnce(Stop):
    @property
    def requested(self) -> bool:
        return True


@pytest.mark.skipif(
    not (os.environ.get("SKIPINIT_DATA") and _SAMPLE.is_dir()),
    reason="needs the photographs imagenet-sample under SKIPINIT_DATA",
)
def test_resnet50_trains_an_epoch_and_goes_on_within_it(real_folder: Path, tmp_path: Path) -> None:
    config = _config(real_folder)
    stopped = train(config, tmp_path / "run", device="cpu", progress=False, stop=_AtOnce())
    assert (stopped.state, stopped.step) == ("stopped", 1)
    result = train(config, tmp_path / "run", device="cpu", progress=False)
    whole = train(config, device="cpu", progress=False)
    assert (result.state, result.step) == ("finished", 2)
    for name in ("train_loss", "test_loss", "test_accuracy"):
        assert asdict(result.final)[name] == asdict(whole.final)[name]
    found = evaluate(tmp_path / "run", device="cpu")
    measured = (found.test_accuracy, found.test_loss)
    assert measured == pytest.approx((result.final.test_accuracy, result.final.test_loss))


def test_a_model_of_the_users_own_trains_on_a_folder_and_goes_on_within_an_epoch(
    folder: Path, tmp_path: Path
) -> None:
    config = make_train_config(for_photographs, folder, batch_size=4, epochs=1, watch=1)
    stopped = train(config, tmp_path / "run", device="cpu", progress=False, stop=_AtOnce())
    assert (stopped.state, stopped.step) == ("stopped", 1)
    result = train(config, tmp_path / "run", device="cpu", progress=False)
    whole = train(replace(config, watch=None), device="cpu", progress=False)
    assert replace(result.final, images_per_second=0) == replace(whole.final, images_per_second=0)
    assert [report.steps for report in watched(tmp_path / "run").values()] == [(0, 1)]
    assert evaluate(tmp_path / "run", device="cpu").test_loss == pytest.approx(result.final.test_loss)


@pytest.mark.parametrize("augment", [True, False])
def test_batches_are_the_plans_photographs_standardized(folder: Path, augment: bool) -> None:
    config = settle(replace(_config(folder), augment=augment))
    photographs = Photographs(describe(str(folder)))
    data = photographs.folder
    parts: list[Sequence[torch.Tensor]] = []
    for rank in range(2):
        source = photographs.source(config, World(torch.device("cpu"), rank, 2))
        source.begin(epoch=3, step=1)
        source.fetch()
        parts.append(source.batch(torch.tensor(1)))
    images, labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    chosen = epoch_plan(config.seed, 3, 8).order[4:8].tolist()
    rule = RandomCrop(config.seed, 3) if augment else CentreCrop()
    for image, label, number in zip(images, labels, chosen, strict=True):
        pixels = read_image(data.train.path(number), number, rule).astype(np.float64).transpose(2, 0, 1)
        expected = (pixels - pixels.mean()) / pixels.std()
        np.testing.assert_allclose(image, expected, rtol=0, atol=1e-4)
        assert int(label) == data.train.labels[number]


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_corrupt_photograph_is_named(folder: Path, tmp_path: Path, split: str) -> None:
    victim = sorted((folder / split).rglob("*.*"))[-1]
    victim.write_bytes(victim.read_bytes()[:2000])
    config = make_train_config(for_photographs, folder, batch_size=8, epochs=1)
    with pytest.raises(DataError, match=f"^{victim}: not a readable image"):
        train(config, tmp_path / "run", device="cpu", progress=False)
