"""The variance of one tensor, whole and split by channel, reduced at once to three numbers."""

from __future__ import annotations

import torch
from torch import Tensor

_CHUNK_ON_CPU = 1 << 18
"""Values widened to float64 at a time: 2 MiB, which a cache holds."""


_CHUNK_ELSEWHERE = 1 << 24
"""Where launching a kernel costs more than its work."""


_PAGE = 256
"""Lines of a ledger that become one tensor."""


def channel_statistics(values: Tensor, channel_axis: int) -> Tensor:
    """(mean over channels of the variance, variance of the channel means, mean of the squared channel means).

    The first two add up to the variance over all values. Biased, two passes in float64: float32 activations
    of any finite size neither overflow nor cancel. Chunk by chunk, so that no wide copy of the whole exists;
    the variance of all is that within the chunks plus that of their means. The result stays on the device, so
    nothing waits for it.
    """
    chunks = _split(values.detach(), channel_axis)
    means, squares = torch.stack([_moments(chunk) for chunk in chunks]).unbind(1)
    counts = torch.tensor([chunk[0].numel() for chunk in chunks], dtype=torch.float64, device=values.device)
    shares = (counts / counts.sum())[:, None]
    mean = (shares * means).sum(0)
    variance = (shares * (squares + (means - mean).square())).sum(0)
    return torch.stack([variance.mean(), mean.var(correction=0), mean.square().mean()])


def _split(values: Tensor, channel_axis: int) -> tuple[Tensor, ...]:
    """Views with channels first, cut along the longest of the other axes."""
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


class Ledger:
    """Numbers of many tensors, on the device until all are read at once.

    A page at a time becomes one tensor: thousands of tiny ones would weigh more than what they hold.
    """

    def __init__(self) -> None:
        self._pages: list[Tensor] = []
        self._open: list[Tensor] = []
        self._lines = 0

    def enter(self, numbers: Tensor) -> int:
        """Write them down; returns the line they are on."""
        self._open.append(numbers)
        if len(self._open) == _PAGE:
            self._turn_page()
        self._lines += 1
        return self._lines - 1

    def read(self) -> list[list[float]]:
        """All lines."""
        if self._open:
            self._turn_page()
        return [line for page in self._pages for line in page.tolist()]

    def _turn_page(self) -> None:
        # Models may be spread over devices.
        self._pages.append(torch.stack([numbers.to(self._open[0].device) for numbers in self._open]))
        self._open.clear()
