"""Batch statistics of batches that several processes share: outputs and running averages of batch norm are
those of one process.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..nets.merges import GhostBatchNorm2d
from .world import World


def ghost_of(norm: _BatchNorm) -> int | None:
    """Examples per group of batch statistics; None means the whole batch, as in torch's batch norm."""
    return norm.ghost_batch if isinstance(norm, GhostBatchNorm2d) else None


def by_batch_at_test(norm: _BatchNorm) -> bool:
    """Whether a test batch is normalized by its own statistics: by choice, or without running averages."""
    return norm.running_mean is None or getattr(norm, "batch_statistics_at_test", False)


def share_statistics(model: nn.Module, world: World) -> None:
    """Make batch norms use the statistics of the batch of all processes together, also of a test batch.

    torch's SyncBatchNorm works on GPUs only, and averages the unbiased variance.
    """
    # Not compiled: a graph break, because it waits for the other processes.
    eagerly = torch.compiler.disable(_normalize_together)
    for norm in model.modules():
        if isinstance(norm, _BatchNorm) and (ghost_of(norm) is None or by_batch_at_test(norm)):
            norm.forward = functools.partial(eagerly, norm, world)  # type: ignore[method-assign]


def _normalize_together(norm: _BatchNorm, world: World, x: Tensor) -> Tensor:
    """The forward pass of a batch norm whose batch is distributed over the processes."""
    joined = ghost_of(norm) is None if norm.training else by_batch_at_test(norm)
    if not joined:
        out: Tensor = type(norm).forward(norm, x)
        return out
    norm._check_input_dim(x)
    values = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    here = values.numel() // values.shape[1]
    # Parts of a batch are equal in training; those of a test batch may differ by an example.
    count = here * world.size if norm.training else int(world.sum(torch.tensor(here, device=x.device)))
    along_channels = (-1, *[1] * (values.dim() - 2))
    others = (0, *range(2, values.dim()))
    mean = _sum(values.sum(others)) / count
    centred = values - mean.view(along_channels)
    variance = _sum(centred.square().sum(others)) / count
    out = centred * (variance + norm.eps).rsqrt().view(along_channels)
    if norm.affine:
        out = out * norm.weight.view(along_channels) + norm.bias.view(along_channels)
    if norm.training and norm.running_mean is not None:
        _average(norm, mean, variance, count)
    return out.to(x.dtype)


@torch.no_grad()
def _average(norm: _BatchNorm, mean: Tensor, variance: Tensor, count: int) -> None:
    """r <- (1 - m) r + m s, with the variance of our batch norm (biased) or of torch's (unbiased)."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    momentum = norm.momentum
    if not isinstance(norm, GhostBatchNorm2d):
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked += 1
        momentum = 1 / float(norm.num_batches_tracked) if momentum is None else momentum
        variance = variance * (count / (count - 1))
    assert momentum is not None
    norm.running_mean.lerp_(mean, momentum)
    norm.running_var.lerp_(variance, momentum)


class _Sum(torch.autograd.Function):
    """The sum over all processes. Each summand is in the losses of all, so its gradient is a sum as well."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        total = part.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _Sum.forward(ctx, gradient)


def _sum(part: Tensor) -> Tensor:
    total: Tensor = _Sum.apply(part)  # type: ignore[no-untyped-call]
    return total


class RunningStatistics:
    """The running averages of ghost batches as one vector. Does nothing without ghosts or in one process."""

    def __init__(self, model: nn.Module, world: World, batch_size: int) -> None:
        self.world = world
        norms = [norm for norm in model.modules() if isinstance(norm, GhostBatchNorm2d) and norm.ghost_batch]
        averages = [average for norm in norms for average in (norm.running_mean, norm.running_var)]
        self.averages = [average for average in averages if average is not None]
        self.active = bool(norms) and world.size > 1
        if self.active:
            momentum, ghost = norms[0].momentum, norms[0].ghost_batch
            assert momentum is not None
            assert ghost is not None
            self.keep = 1 - momentum
            self.ghosts = batch_size // world.size // ghost

    def remember(self) -> Tensor | None:
        """The averages before a step."""
        return self._flat() if self.active else None

    @torch.no_grad()
    def join(self, before: Tensor | None) -> None:
        """Set the averages to those of one process that started at `before` and saw all ghosts."""
        if before is None:
            return
        own = self._flat() - self.keep**self.ghosts * before
        later = self.world.size - 1 - self.world.rank
        joined = self.world.sum(own * self.keep ** (self.ghosts * later))
        joined += self.keep ** (self.ghosts * self.world.size) * before
        for average, value in zip(
            self.averages, joined.split([a.numel() for a in self.averages]), strict=True
        ):
            average.copy_(value)

    def _flat(self) -> Tensor:
        return torch.cat(self.averages)
