"""Where a run's training batches come from.

A source has a host side, `begin` and `fetch`, and a device side, `batch`, which only reads and writes
tensors that stay where they are, so that a CUDA graph can replay it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from ..config import TrainConfig
from ..data.augment import crop_flip, standardize
from ..data.batches import folder_batches
from ..data.catalog import DataSet
from ..data.decode import CentreCrop, RandomCrop
from ..data.folder import ImageFolder
from ..data.images import ImageSet
from ..data.plan import epoch_plan
from ..errors import ConfigError
from ..nets.architectures import find_architecture
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
