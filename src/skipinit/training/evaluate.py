"""Loss and accuracy over a whole split."""

from __future__ import annotations

import torch
from torch import Tensor

from ..data.augment import standardize
from ..data.batches import folder_batches
from ..data.decode import CentreCrop
from ..data.folder import Split
from .run import Run, summed_cross_entropy

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
