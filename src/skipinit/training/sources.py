"""The data of a pack of runs: training batches for each run, and both splits to score on.

A source has a host side, `begin` and `fetch`, and a device side, `batch`, which only reads and writes
tensors that stay where they are, so that a CUDA graph can replay it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from ..config import TrainConfig
from ..data.augment import crop_flip, epoch_plan, standardize
from ..data.catalog import DataSet, describe
from ..data.images import ImageSet, load
from ..data.photographs import CentreCrop, ImageFolder, RandomCrop, Split, folder_batches, open_folder
from ..errors import ConfigError
from ..nets.architectures import find_architecture
from .run import Run, summed_cross_entropy
from .world import World

Batch = tuple[Tensor, Tensor]


class Source(Protocol):
    """The training batches of one run; every process of a world gets its part of each batch."""

    steps_per_epoch: int

    def begin(self, epoch: int, step: int) -> None:
        """Prepare to serve an epoch from a step on."""

    def fetch(self) -> None:
        """Bring the next batch to the device; nothing where it lives there."""

    def batch(self, step: Tensor) -> Batch:
        """Standardized, augmented images and their labels at a step of the run."""


def steps_per_epoch(examples: int, config: TrainConfig) -> int:
    """Whole batches only: the last partial one is dropped in training."""
    if config.batch_size > examples:
        raise ConfigError(
            f"batch_size {config.batch_size} is larger than the {examples} training examples of {config.data}"
        )
    return examples // config.batch_size


def _check_fit(config: TrainConfig, channels: int, classes: int) -> None:
    """A label beyond the classifier would end the run in an index error, or the device in an assertion."""
    model = config.model
    outputs = model.num_classes or find_architecture(model.name).num_classes
    if model.in_channels != channels:
        raise ConfigError(
            f"in_channels {model.in_channels} does not fit {config.data}; it must be {channels}"
        )
    if outputs < classes:
        raise ConfigError(f"num_classes {outputs} is too few for {config.data}; it must be {classes} or more")


class DeviceSource:
    """Batches gathered from images that live on the device, by the plan of the epoch."""

    def __init__(self, data: ImageSet, entry: DataSet, config: TrainConfig, world: World) -> None:
        _check_fit(config, entry.shape[0], entry.num_classes)
        self.images, self.labels = data.train_images, data.train_labels
        self.steps_per_epoch = steps_per_epoch(len(self.labels), config)
        self.config = config
        self.padding, self.flips = (entry.padding, entry.flip) if config.augment else (0, False)
        device = self.images.device
        self.plan = torch.zeros(4, len(self.labels), dtype=torch.int64, device=device)
        self.places = world.share(torch.arange(config.batch_size, device=device))
        # On a GPU the dozen small operations of `_gather` become two kernels.
        self._take = torch.compile(self._gather, dynamic=False) if device.type == "cuda" else self._gather

    def begin(self, epoch: int, step: int) -> None:
        """Draw the epoch's order, crops and flips."""
        plan = epoch_plan(self.config.seed, epoch, len(self.labels), self.padding, self.flips)
        self.plan.copy_(torch.stack([tensor.long() for tensor in plan]))

    def fetch(self) -> None:
        """The images are here already."""

    def batch(self, step: Tensor) -> Batch:
        """Gather, standardize, crop, flip."""
        return self._take(step)

    def _gather(self, step: Tensor) -> Batch:
        place = step % self.steps_per_epoch
        order, top, left, flip = self.plan[:, place * self.config.batch_size + self.places].unbind()
        images = standardize(self.images[order])
        if self.padding or self.flips:
            mode = self.config.crop_padding
            images = crop_flip(images, top, left, flip.bool(), padding=self.padding, mode=mode)
        return _as_device_likes(images), self.labels[order]


class FolderSource:
    """Batches of photographs, decoded by worker processes ahead of the device."""

    def __init__(self, data: ImageFolder, config: TrainConfig, world: World) -> None:
        _check_fit(config, 3, data.num_classes)
        self.data, self.config, self.world = data, config, world
        self.steps_per_epoch = steps_per_epoch(len(data.train), config)
        self.arriving: Iterator[Batch] = iter(())
        local = config.batch_size // world.size
        shape = (local, 3, 224, 224)
        self.images = torch.zeros(shape, dtype=torch.uint8, device=world.device)
        self.labels = torch.zeros(local, dtype=torch.int64, device=world.device)

    def begin(self, epoch: int, step: int) -> None:
        """Start decoding this epoch's batches from a step on."""
        size = self.config.batch_size
        order = epoch_plan(self.config.seed, epoch, len(self.data.train)).order
        rows = [
            self.world.share(order[first * size : (first + 1) * size]).tolist()
            for first in range(step, self.steps_per_epoch)
        ]
        crops = RandomCrop(self.config.seed, epoch) if self.config.augment else CentreCrop()
        on_gpu = self.world.device.type == "cuda"
        self.arriving = folder_batches(self.data.train, rows, crops, pin_memory=on_gpu)

    def fetch(self) -> None:
        """Copy the next decoded batch to the device."""
        images, labels = next(self.arriving)
        self.images.copy_(images, non_blocking=True)
        self.labels.copy_(labels, non_blocking=True)

    def batch(self, step: Tensor) -> Batch:
        """The photographs come cropped and flipped."""
        return _as_device_likes(standardize(self.images)), self.labels


def _as_device_likes(images: Tensor) -> Tensor:
    """A GPU's tensor cores read channels last."""
    return images.contiguous(memory_format=torch.channels_last) if images.is_cuda else images


_BATCH = 2000


_FOLDER_BATCH = 100


def score_images(run: Run, images: Tensor, labels: Tensor) -> Tensor:
    """Summed cross entropy and number of right answers, over images on the device; capturable."""
    share = run.world.share
    run.prepare_weights()
    score = torch.zeros(2, device=labels.device, dtype=torch.float64)
    for some, their_labels in zip(share(images).split(_BATCH), share(labels).split(_BATCH), strict=True):
        score += _score(run, some, their_labels)
    return score


def score_folder(run: Run, split: Split) -> Tensor:
    """The same over image files: the whole picture's centre."""
    device = run.world.device
    run.prepare_weights()
    rows = run.world.share(torch.arange(len(split))).split(_FOLDER_BATCH)
    score = torch.zeros(2, device=device, dtype=torch.float64)
    for images, labels in folder_batches(split, [row.tolist() for row in rows], CentreCrop()):
        score += _score(run, images.to(device), labels.to(device))
    return score


@torch.no_grad()
def _score(run: Run, images: Tensor, labels: Tensor) -> Tensor:
    prepared = standardize(images)
    if prepared.is_cuda:
        prepared = prepared.contiguous(memory_format=torch.channels_last)
    with run.arithmetic():
        logits = run.model(prepared).float()
    loss = summed_cross_entropy(logits, labels)
    right = (logits.argmax(1) == labels).sum()
    return torch.stack([loss, right.to(loss.dtype)])


class DeviceData:
    """Images that live on the device."""

    on_device = True

    def __init__(self, name: str, device: torch.device) -> None:
        self.entry = describe(name)
        self.micro_batch = self.entry.micro_batch
        self.images = load(name, device)
        self.train_size, self.test_size = len(self.images.train_labels), len(self.images.test_labels)

    def source(self, config: TrainConfig, world: World) -> DeviceSource:
        """Training batches of one run."""
        return DeviceSource(self.images, self.entry, config, world)

    def score_test(self, run: Run) -> Tensor:
        """Summed loss and right answers over the test set."""
        return score_images(run, self.images.test_images, self.images.test_labels)

    def score_train(self, run: Run) -> Tensor:
        """Summed loss and right answers over the training set, unaugmented."""
        return score_images(run, self.images.train_images, self.images.train_labels)


class FolderData:
    """Photographs in folders."""

    on_device = False

    def __init__(self, name: str) -> None:
        self.folder = open_folder(name)
        self.micro_batch = describe(name).micro_batch
        self.train_size, self.test_size = len(self.folder.train), len(self.folder.test)

    def source(self, config: TrainConfig, world: World) -> FolderSource:
        """Training batches of one run."""
        return FolderSource(self.folder, config, world)

    def score_test(self, run: Run) -> Tensor:
        """Summed loss and right answers over the validation folder."""
        return score_folder(run, self.folder.test)

    def score_train(self, run: Run) -> Tensor:
        """Summed loss and right answers over the training folder, unaugmented."""
        return score_folder(run, self.folder.train)


Data = DeviceData | FolderData


def open_data(name: str, device: torch.device) -> Data:
    """A data set by name, or a folder of photographs by path."""
    return DeviceData(name, device) if describe(name).in_memory else FolderData(name)
