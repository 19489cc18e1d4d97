"""The variance of a tensor, as a whole and split by channel, reduced at once to three numbers."""

from __future__ import annotations

import torch
from torch import Tensor

_CHUNK_ON_CPU = 1 << 18
"""Values converted to float64 at a time: 2 MiB, which fits into a cache."""
_CHUNK_ELSEWHERE = 1 << 24
"""Larger, because launching a kernel costs more than its work."""
_STACK = 256
"""Entries of a buffer that become one tensor."""


def channel_statistics(values: Tensor, channel_axis: int) -> Tensor:
    """(mean over channels of the variance, variance of the channel means, mean of the squared channel means).

    The first two add up to the variance over all values. Variances are biased and computed in two passes in
    float64, so that float32 activations of any finite size neither overflow nor cancel. The tensor is
    converted chunk by chunk; its variance is the mean variance within chunks plus the variance of their
    means. The result stays on the device: nothing waits for it. Real and imaginary parts are channels.
    """
    if values.is_complex():
        values = torch.cat([values.real, values.imag], channel_axis)
    chunks = _split(values.detach(), channel_axis)
    means, variances = torch.stack([_moments(chunk) for chunk in chunks]).unbind(1)
    counts = torch.tensor([chunk[0].numel() for chunk in chunks], dtype=torch.float64, device=values.device)
    weights = (counts / counts.sum())[:, None]
    mean = (weights * means).sum(0)
    variance = (weights * (variances + (means - mean).square())).sum(0)
    return torch.stack([variance.mean(), mean.var(correction=0), mean.square().mean()])


def _split(values: Tensor, channel_axis: int) -> tuple[Tensor, ...]:
    """Views with channels first, split along the longest of the other axes."""
    view = values.movedim(channel_axis, 0)
    axis = 1 + max(range(view.dim() - 1), key=lambda i: view.shape[1 + i])
    chunk = _CHUNK_ON_CPU if values.device.type == "cpu" else _CHUNK_ELSEWHERE
    chunks: tuple[Tensor, ...] = view.split(max(1, chunk * view.shape[axis] // max(1, view.numel())), axis)
    return chunks


def _moments(chunk: Tensor) -> Tensor:
    """Mean and variance of each channel."""
    wide, others = chunk.to(torch.float64, copy=True), tuple(range(1, chunk.dim()))
    means = wide.mean(dim=others, keepdim=True)
    return torch.stack([means.flatten(), wide.sub_(means).square_().mean(dim=others)])


class StatisticsBuffer:
    """The statistics of many tensors, kept on the device until all are read at once.

    Entries are stacked 256 at a time: thousands of tiny tensors need more memory than the numbers in them.
    """

    def __init__(self) -> None:
        self._stacks: list[Tensor] = []
        self._latest: list[Tensor] = []
        self._length = 0

    def append(self, statistics: Tensor) -> int:
        """Add an entry; returns its index."""
        self._latest.append(statistics)
        if len(self._latest) == _STACK:
            self._stack_latest()
        self._length += 1
        return self._length - 1

    def tolist(self) -> list[list[float]]:
        """All entries, in order."""
        entries: list[list[float]] = self.stacked().tolist()
        return entries

    def stacked(self) -> Tensor:
        """All entries as rows of one tensor, on the device of the first."""
        if self._latest:
            self._stack_latest()
        if not self._stacks:
            return torch.empty(0, 3)
        return torch.cat([stack.to(self._stacks[0].device) for stack in self._stacks])

    def _stack_latest(self) -> None:
        # A model may be spread over devices.
        device = self._latest[0].device
        self._stacks.append(torch.stack([entry.to(device) for entry in self._latest]))
        self._latest.clear()
