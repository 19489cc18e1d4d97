"""Merges: how skip and branch become the output of a block. One class per equation; and the batch norm of
appendix A, which some of them contain.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import ConfigError


class GhostBatchNorm2d(nn.BatchNorm2d):
    """gamma (x - mu) / sqrt(sigma^2 + eps) + beta, with mu and sigma^2 of each `ghost_batch` examples.

    The running averages are updated as if the ghost batches came one after the other, so that one large batch
    gives the same averages as its ghost batches in turn. They average the *biased* variance, as the paper
    does and torch does not.

    Args:
        num_features: number of channels, the second axis of the input.
        ghost_batch: examples per group of batch statistics; by default the whole batch is one group.
        eps: added to the variance.
        momentum: weight of the new value in the running averages, as in torch.
        batch_statistics_at_test: also normalize by the statistics of the batch in evaluation mode.

    >>> GhostBatchNorm2d(8, ghost_batch=2)(torch.randn(4, 8, 5, 5)).shape
    torch.Size([4, 8, 5, 5])
    """

    def __init__(
        self,
        num_features: int,
        ghost_batch: int | None = None,
        eps: float = 1e-5,
        momentum: float = 0.1,
        batch_statistics_at_test: bool = False,
    ) -> None:
        if ghost_batch is not None and (type(ghost_batch) is not int or ghost_batch < 1):
            raise ConfigError(
                f"ghost_batch {ghost_batch!r} is not allowed; it must be a whole number, 1 or more"
            )
        if momentum is None:
            raise ConfigError("momentum None is not allowed; cumulative averages are not supported")
        super().__init__(num_features, eps=eps, momentum=momentum)
        self.ghost_batch = ghost_batch
        self.batch_statistics_at_test = batch_statistics_at_test
        # torch counts batches for cumulative averages, which this layer does not have. The counter would cost
        # a kernel per layer and step.
        self.register_buffer("num_batches_tracked", None)

    def reset_running_stats(self) -> None:
        """Reset the running averages to mean 0 and variance 1."""
        assert self.running_mean is not None
        assert self.running_var is not None
        self.running_mean.zero_()
        self.running_var.fill_(1)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        # torch's batch norm would add the counter to a dict without metadata; this layer does not have it.
        nn.Module._load_from_state_dict(self, *arguments)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize by batch statistics in training, by the running averages at test time."""
        if not self.training and not self.batch_statistics_at_test:
            return F.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
            )
        batch = x.shape[0]
        ghosts = self._count_ghosts(batch)
        values = x.numel() // max(1, ghosts * self.num_features)
        if values < 2:
            raise ConfigError(
                f"batch norm needs 2 values or more per channel and got {values}; use a larger batch or image"
            )
        statistics = torch.zeros(2, ghosts * self.num_features, device=x.device, dtype=self.weight.dtype)
        mean, unbiased = statistics.unbind()
        # With momentum 1, `mean` and `unbiased` become the statistics of this batch.
        folded, weight, bias = self._fold(x, ghosts)
        out = F.batch_norm(folded, mean, unbiased, weight, bias, training=True, momentum=1.0, eps=self.eps)
        if self.training:
            with torch.no_grad():
                self._average(mean.view(ghosts, -1), unbiased.view(ghosts, -1) * ((values - 1) / values))
        if ghosts == 1:
            return out
        return out.view(batch // ghosts, ghosts, *x.shape[1:]).transpose(0, 1).flatten(0, 1)

    def _fold(self, x: Tensor, ghosts: int) -> tuple[Tensor, Tensor, Tensor]:
        """Turn ghost batches into channels, so that one batch norm normalizes all of them."""
        if ghosts == 1:
            return x, self.weight, self.bias
        folded = x.view(ghosts, x.shape[0] // ghosts, *x.shape[1:]).transpose(0, 1).flatten(1, 2)
        return folded, self.weight.repeat(ghosts), self.bias.repeat(ghosts)

    def _count_ghosts(self, batch: int) -> int:
        if self.ghost_batch is None or not self.training:  # a test batch is always one group
            return 1
        if batch % self.ghost_batch:
            raise ConfigError(f"ghost_batch {self.ghost_batch} does not divide the batch of {batch} examples")
        return batch // self.ghost_batch

    def _average(self, means: Tensor, variances: Tensor) -> None:
        """r <- (1 - m) r + m s for the statistics s of each ghost batch in turn, in closed form."""
        assert self.momentum is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        ghosts = means.shape[0]
        keep = 1 - self.momentum
        if ghosts == 1:
            self.running_mean.lerp_(means[0], self.momentum)
            self.running_var.lerp_(variances[0], self.momentum)
            return
        later = torch.arange(ghosts - 1, -1, -1, device=means.device, dtype=means.dtype)
        weights = self.momentum * keep**later
        self.running_mean.mul_(keep**ghosts).add_(weights @ means)
        self.running_var.mul_(keep**ghosts).add_(weights @ variances)

    def extra_repr(self) -> str:
        """Show the ghost batch, if there is one."""
        ghost = "" if self.ghost_batch is None else f", ghost_batch={self.ghost_batch}"
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}{ghost}"


class Add(nn.Module):
    """skip + branch

    The plain residual add. As in all merges, `forward` takes skip and branch, two tensors of the same shape.

    >>> Add()(torch.ones(3), torch.ones(3))
    tensor([2., 2., 2.])
    """

    def forward(self, skip: Tensor, branch: Tensor) -> Tensor:
        """Return skip + branch."""
        return skip + branch


class SkipInit(nn.Module):
    """skip + alpha * branch

    SkipInit (section 2.2): one learnable scalar at the end of each residual branch. With alpha = 0 every
    block starts as the identity, so that deep networks train without normalization.

    Args:
        alpha: initial value of the scalar.

    >>> merge = SkipInit()
    >>> skip, branch = torch.ones(2, 3), torch.ones(2, 3)
    >>> torch.equal(merge(skip, branch), skip)
    True
    """

    def __init__(self, alpha: float = 0.0) -> None:
        super().__init__()
        self.start = float(alpha)  # torch does not train whole numbers
        self.alpha = nn.Parameter(torch.tensor(self.start))

    def forward(self, skip: Tensor, branch: Tensor) -> Tensor:
        """The skip plus the scaled branch, as one fused operation."""
        # Without the cast, autocast would turn a bfloat16 skip into float32.
        return torch.addcmul(skip, self.alpha.to(branch.dtype), branch)

    def extra_repr(self) -> str:
        """Show the initial value of alpha."""
        return f"alpha={self.start:g} at initialization"


class DivideSqrt2(nn.Module):
    """(skip + branch) / sqrt(2)

    The forward pass keeps its variance, but skip and branch have equal weight (section 2.1).

    >>> DivideSqrt2()(torch.ones(2), torch.ones(2))
    tensor([1.4142, 1.4142])
    """

    def forward(self, skip: Tensor, branch: Tensor) -> Tensor:
        """Return (skip + branch) / sqrt(2)."""
        return (skip + branch) * math.sqrt(0.5)


class NormalizeOutput(nn.Module):
    """BN(skip + branch)

    Table 4: a norm on the skip path makes the skip as small as the branch.

    Args:
        norm: the normalization of the sum.

    >>> NormalizeOutput(GhostBatchNorm2d(8))(torch.randn(4, 8, 5, 5), torch.randn(4, 8, 5, 5)).shape
    torch.Size([4, 8, 5, 5])
    """

    def __init__(self, norm: GhostBatchNorm2d) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, skip: Tensor, branch: Tensor) -> Tensor:
        """Normalize the output of the block."""
        out: Tensor = self.norm(skip + branch)
        return out


class NormalizeSkip(nn.Module):
    """BN(skip) + branch

    The other reading of Table 4: both operands have variance 1.

    Args:
        norm: the normalization of the skip.

    >>> NormalizeSkip(GhostBatchNorm2d(8))(torch.randn(4, 8, 5, 5), torch.randn(4, 8, 5, 5)).shape
    torch.Size([4, 8, 5, 5])
    """

    def __init__(self, norm: GhostBatchNorm2d) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, skip: Tensor, branch: Tensor) -> Tensor:
        """Normalize only the skip."""
        out: Tensor = self.norm(skip) + branch
        return out
