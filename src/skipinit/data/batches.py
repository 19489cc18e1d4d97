"""Batches of photographs decoded by worker processes, in the order asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..errors import DataError
from .decode import SIZE, CropRule, read_image
from .folder import Split

Batch = tuple[Tensor, Tensor]


def folder_batches(
    split: Split,
    rows: Sequence[Sequence[int]],
    rule: CropRule,
    workers: int | None = None,
    pin_memory: bool = False,
) -> Iterator[Batch]:
    """For each entry of `rows`, those images, uint8 (B, 3, 224, 224), channels last, and their labels.

    `rows` is the whole order of service: to resume, leave out the batches that were had; to share an
    epoch among processes, give each its own part of every batch. The images do not depend on `workers`,
    by default as many as there are cores for this process; 0 decodes in the process itself.
    """
    loader = DataLoader(
        _Decoded(split, rule),
        batch_size=None,  # an item is a whole batch: the sampler says which images are in it
        sampler=rows,
        num_workers=_cores() if workers is None else workers,
        collate_fn=_as_is,
        pin_memory=pin_memory,
        generator=torch.Generator(),  # else it would draw from the global one
    )
    for batch in loader:
        if isinstance(batch, DataError):
            raise batch
        images, labels = batch
        yield images, labels


class _Decoded(Dataset[Batch | DataError]):
    """Batches by the numbers of their images. An unreadable image makes the error the batch's value: raised
    in a worker, it would reach the user wrapped in that process's traceback."""

    def __init__(self, split: Split, rule: CropRule) -> None:
        self.split = split
        self.rule = rule

    def __getitem__(self, row: Sequence[int]) -> Batch | DataError:
        images = np.empty((len(row), SIZE, SIZE, 3), dtype=np.uint8)
        try:
            for place, index in enumerate(row):
                images[place] = read_image(self.split.path(index), index, self.rule)
        except DataError as error:
            return error
        labels = self.split.labels[np.asarray(row, dtype=np.int64)]
        return torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(labels)


def _as_is(batch: Any) -> Any:
    return batch


def _cores() -> int:
    """The cores this process may use, shared with the other processes that torchrun started here."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, usable // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
