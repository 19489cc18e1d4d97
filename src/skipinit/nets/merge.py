"""How skip and branch become a block's output: the paper's subject, one class per equation."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .norm import GhostBatchNorm2d


class Add(nn.Module):
    """skip + branch"""

    def forward(self, skip: Tensor, branch: Tensor) -> Tensor:
        """Equal weight to both."""
        return skip + branch


class SkipInit(nn.Module):
    """skip + alpha * branch

    One learnable scalar per branch is all that SkipInit is (section 2.2).
    """

    def __init__(self, alpha: float = 0.0) -> None:
        super().__init__()
        self.start = alpha
        self.alpha = nn.Parameter(torch.tensor(alpha))

    def forward(self, skip: Tensor, branch: Tensor) -> Tensor:
        """One fused operation; the cast keeps autocast from widening a bfloat16 skip path to float32."""
        return torch.addcmul(skip, self.alpha.to(branch.dtype), branch)

    def extra_repr(self) -> str:
        """Show where alpha starts."""
        return f"alpha={self.start:g} at initialization"


class DivideSqrt2(nn.Module):
    """(skip + branch) / sqrt(2)

    The forward pass keeps its variance, yet skip and branch weigh the same (section 2.1).
    """

    def forward(self, skip: Tensor, branch: Tensor) -> Tensor:
        """The block's whole output is scaled."""
        return (skip + branch) * math.sqrt(0.5)


class NormalizeOutput(nn.Module):
    """BN(skip + branch)

    Table 4: a norm on the skip path scales the skip down as much as the branch.
    """

    def __init__(self, norm: GhostBatchNorm2d) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, skip: Tensor, branch: Tensor) -> Tensor:
        """Normalize what the block hands on."""
        out: Tensor = self.norm(skip + branch)
        return out


class NormalizeSkip(nn.Module):
    """BN(skip) + branch

    Table 4 read the other way: both operands have variance 1.
    """

    def __init__(self, norm: GhostBatchNorm2d) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, skip: Tensor, branch: Tensor) -> Tensor:
        """Normalize the skip alone."""
        out: Tensor = self.norm(skip) + branch
        return out
