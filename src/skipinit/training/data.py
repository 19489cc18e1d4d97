"""The data of a pack of runs, opened once: training batches for each run, and both splits to score on."""

from __future__ import annotations

import torch
from torch import Tensor

from ..config import TrainConfig
from ..data.catalog import describe
from ..data.folder import open_folder
from ..data.images import load
from .batches import DeviceSource, FolderSource
from .evaluate import score_folder, score_images
from .run import Run
from .world import World


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
