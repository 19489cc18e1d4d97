"""Batch norm's running averages over the ghosts of all processes, as one process would have them.

A process that starts a step at r and sees g ghosts ends it at k^g r + c, where k = 1 - momentum and c
depends on its ghosts alone. With the ghosts of rank 0 first, then rank 1, and so on, the averages of the
whole batch are k^(g N) r + sum over ranks of k^(g (N - 1 - rank)) c: one all-reduce.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..nets.norm import GhostBatchNorm2d
from .world import World


class RunningStatistics:
    """All running averages of a network as one vector; without norms or alone, nothing is done."""

    def __init__(self, model: nn.Module, world: World, batch_size: int) -> None:
        self.world = world
        norms = [module for module in model.modules() if isinstance(module, GhostBatchNorm2d)]
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
        """Bring the averages after a step to what all ghosts together make of `before`."""
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
