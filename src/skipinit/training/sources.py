"""The data of a pack of runs, on the device or in folders: training batches of each run, scores of a split.

A source of batches has a host side, `begin` and `fetch`, and a device side, `batch`, which reads and writes
the same tensors each time, so that a CUDA graph can replay it. Each process gets its part of each batch. A
score is the summed cross entropy over a split and the number of correct predictions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from ..config import TrainConfig
from ..data.catalog import DataSet, describe
from ..data.images import ImageSet, crop_flip, epoch_plan, load, standardize
from ..data.photographs import SIZE, Batch, CentreCrop, RandomCrop, Split, folder_batches, open_folder
from .protocol import check_fit, steps_per_epoch
from .world import World

if TYPE_CHECKING:
    from .run import Run

_TEST_BATCH = 2000
_TEST_PHOTOGRAPHS = 100
"""The most examples scored at once. A micro-batch lowers it, unless a test batch has batch statistics."""


def open_data(name: str, device: torch.device) -> Data:
    """A data set by name, or a folder of photographs by path."""
    entry = describe(name)
    return DeviceImages(entry, load(name, device)) if entry.in_memory else Photographs(entry)


class DeviceImages:
    """Images on the device: a CUDA graph can capture their scoring."""

    on_device = True

    def __init__(self, entry: DataSet, images: ImageSet) -> None:
        self.entry, self.images, self.micro_batch = entry, images, entry.micro_batch
        self.num_classes = entry.num_classes
        self.train_size, self.test_size = len(images.train_labels), len(images.test_labels)

    def source(self, config: TrainConfig, world: World) -> DeviceSource:
        """Batches in the order of the epoch's plan."""
        return DeviceSource(self, config, world)

    def score_test(self, run: Run) -> Tensor:
        """The score of the test split."""
        return self._score(run, self.images.test_images, self.images.test_labels)

    def score_train(self, run: Run) -> Tensor:
        """The score of the training split."""
        return self._score(run, self.images.train_images, self.images.train_labels)

    def _score(self, run: Run, images: Tensor, labels: Tensor) -> Tensor:
        mine = (_test_batches(run, tensor, _TEST_BATCH) for tensor in (images, labels))
        return _score(run, zip(*mine, strict=True))


class Photographs:
    """Image files in folders, decoded by worker processes."""

    on_device = False

    def __init__(self, entry: DataSet) -> None:
        self.folder, self.micro_batch = open_folder(entry.name), entry.micro_batch
        self.num_classes = self.folder.num_classes
        self.train_size, self.test_size = len(self.folder.train), len(self.folder.test)

    def source(self, config: TrainConfig, world: World) -> DecodedSource:
        """Batches that worker processes decode in advance."""
        return DecodedSource(self, config, world)

    def score_test(self, run: Run) -> Tensor:
        """The score of the validation folder, at the centre of each picture."""
        return self._score(run, self.folder.test)

    def score_train(self, run: Run) -> Tensor:
        """The score of the training folder."""
        return self._score(run, self.folder.train)

    def _score(self, run: Run, split: Split) -> Tensor:
        rows = _test_batches(run, torch.arange(len(split)), _TEST_PHOTOGRAPHS)
        return _score(run, folder_batches(split, [row.tolist() for row in rows], CentreCrop()))


def _test_batches(run: Run, split: Tensor, most: int) -> Sequence[Tensor]:
    """This process's part of a split, in batches.

    If scores depend on the batch, the processes share each batch, so that batches are those of one process.
    """
    if run.scores_by_batch:
        return [run.world.share(batch) for batch in _evenly(split, most)]
    return _evenly(run.world.share(split), min(most, run.at_once))


def _evenly(split: Tensor, most: int) -> Sequence[Tensor]:
    """Parts whose sizes differ by at most 1: a last part of one image would have no batch statistics."""
    parts: Sequence[Tensor] = split.tensor_split(max(1, math.ceil(len(split) / most)))
    return parts


@torch.no_grad()
def _score(run: Run, batches: Iterator[Batch]) -> Tensor:
    """Summed cross entropy and number of correct predictions over this process's part of a split."""
    device = run.world.device
    run.prepare_weights()
    score = torch.zeros(2, device=device, dtype=torch.float64)
    for images, labels in batches:
        if not len(labels) and not run.scores_by_batch:
            continue  # More processes than images, and not every model takes an empty batch.
        with run.arithmetic(), run.randomness():
            logits = run.model(run.world.lay_out(standardize(images.to(device)))).float()
        here = labels.to(device)
        loss = summed_cross_entropy(logits, here)
        right = (logits.argmax(1) == here).sum()
        score += torch.stack([loss, right.to(loss.dtype)])
    return score


def summed_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The summed loss, in float32 for a network of any precision."""
    return F.cross_entropy(logits.float(), labels, reduction="sum")


class DeviceSource:
    """Batches of images on the device, in the order of the epoch's plan."""

    def __init__(self, data: DeviceImages, config: TrainConfig, world: World) -> None:
        self.images, self.labels = data.images.train_images, data.images.train_labels
        self.shape = data.entry.shape
        check_fit(config, data.entry.shape[0], data.entry.num_classes)
        self.steps_per_epoch = steps_per_epoch(data.train_size, config)
        self.config, self.world = config, world
        self.padding, self.flips = (data.entry.padding, data.entry.flip) if config.augment else (0, False)
        device = self.images.device
        self.plan = torch.zeros(4, len(self.labels), dtype=torch.int64, device=device)
        self.places = world.share(torch.arange(config.batch_size, device=device))
        # On a GPU the dozen small operations of `_gather` become two kernels. A method of this object would
        # be a reference to itself: the images would stay on the device until Python's collector comes.
        gather = DeviceSource._gather
        self._take = torch.compile(gather, dynamic=False) if device.type == "cuda" else gather

    def begin(self, epoch: int, step: int) -> None:
        """Draw the epoch's order, crops and flips."""
        plan = epoch_plan(self.config.seed, epoch, len(self.labels), self.padding, self.flips)
        self.plan.copy_(torch.stack([tensor.long() for tensor in plan]))

    def fetch(self) -> None:
        """Nothing to do: the images are on the device."""

    def batch(self, step: Tensor) -> Batch:
        """Gather, standardize, crop, flip."""
        return self._take(self, step)

    def _gather(self, step: Tensor) -> Batch:
        place = step % self.steps_per_epoch
        order, top, left, flip = self.plan[:, place * self.config.batch_size + self.places].unbind()
        images = standardize(self.images[order])
        if self.padding or self.flips:
            mode = self.config.crop_padding
            images = crop_flip(images, top, left, flip.bool(), padding=self.padding, mode=mode)
        return self.world.lay_out(images), self.labels[order]


class DecodedSource:
    """Batches of photographs, which worker processes decode in advance."""

    shape = (3, SIZE, SIZE)

    def __init__(self, data: Photographs, config: TrainConfig, world: World) -> None:
        self.split, self.config, self.world = data.folder.train, config, world
        check_fit(config, 3, data.folder.num_classes)
        self.steps_per_epoch = steps_per_epoch(data.train_size, config)
        self.arriving: Iterator[Batch] = iter(())
        local = config.batch_size // world.size
        self.images = torch.zeros((local, *self.shape), dtype=torch.uint8, device=world.device)
        self.labels = torch.zeros(local, dtype=torch.int64, device=world.device)

    def begin(self, epoch: int, step: int) -> None:
        """Start to decode this epoch's batches, from `step` on."""
        size = self.config.batch_size
        order = epoch_plan(self.config.seed, epoch, len(self.split)).order
        rows = [
            self.world.share(order[first * size : (first + 1) * size]).tolist()
            for first in range(step, self.steps_per_epoch)
        ]
        crops = RandomCrop(self.config.seed, epoch) if self.config.augment else CentreCrop()
        on_gpu = self.world.device.type == "cuda"
        self.arriving = folder_batches(self.split, rows, crops, pin_memory=on_gpu)

    def fetch(self) -> None:
        """Copy the next decoded batch to the device."""
        images, labels = next(self.arriving)
        self.images.copy_(images, non_blocking=True)
        self.labels.copy_(labels, non_blocking=True)

    def batch(self, step: Tensor) -> Batch:
        """Standardize; the worker processes have cropped and flipped."""
        return self.world.lay_out(standardize(self.images)), self.labels


Source = DeviceSource | DecodedSource
"""The training batches of one run."""
Data = DeviceImages | Photographs
"""A data set, opened once for all runs of a pack."""
