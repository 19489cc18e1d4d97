"""Claims about networks at initialization: Figures 2 and 5, and the initial loss."""

from __future__ import annotations

from ...probing.theory import (
    normalized_branch_share,
    normalized_variance,
    relu_moving_variance,
    relu_squared_moving_mean,
    unnormalized_variance,
)
from .claim import Claim
from .laws import below, equals, follows, proportional


def _one(depth: float) -> float:
    return 1.0


CLAIMS = (
    Claim(
        "unnormalized-variance-doubles",
        "2.1",
        "Without normalization the variance on the skip path doubles from block to block.",
        (follows("figure2a", "skip_variance", unnormalized_variance, "2^(l-1)"),),
    ),
    Claim(
        "unnormalized-branch-equals-skip",
        "2.1",
        "Without normalization branch and skip contribute equally: the block is far from the identity.",
        (equals("figure2a", "branch_variance", "skip_variance"),),
    ),
    Claim(
        "normalized-variance-is-depth",
        "2.1",
        "With batch norm on the branch the variance on the skip path of block l is about l.",
        (follows("figure2b", "skip_variance", normalized_variance, "l"),),
    ),
    Claim(
        "normalized-branch-variance-is-one",
        "2.1",
        "With batch norm every residual branch ends with a variance of about 1.",
        (follows("figure2b", "branch_variance", _one, "1"),),
    ),
    Claim(
        "normalization-divides-by-root-depth",
        "2.1",
        "The moving variance of block l is about l: batch norm scales the branch down by the root of l.",
        (follows("figure2b", "moving_variance", normalized_variance, "l"),),
    ),
    Claim(
        "normalized-branch-share",
        "2.1",
        "The branch of block l gives only 1/(l+1) of the output variance: deep blocks are near the identity.",
        (follows("figure2b", "branch_share", normalized_branch_share, "1/(l+1)"),),
    ),
    Claim(
        "linear-moving-mean-is-zero",
        "2.1",
        "In the linear normalized network the squared moving mean is close to zero.",
        (below("figure2b", "squared_moving_mean", "moving_variance", ratio=0.01),),
    ),
    Claim(
        "convolutional-variance-grows-with-depth",
        "2.1",
        "In the convolutional ReLU network the skip variance is proportional to depth, a little below it.",
        (proportional("figure2c", "skip_variance", low=0.75, high=1.0),),
    ),
    Claim(
        "convolutional-moving-variance-is-smaller",
        "2.1",
        "There the moving variance is proportional to depth too, and smaller than the skip variance.",
        (
            proportional("figure2c", "moving_variance"),
            below("figure2c", "moving_variance", "skip_variance"),
        ),
    ),
    Claim(
        "convolutional-moving-mean-grows",
        "C",
        "There the squared moving mean grows in proportion to depth.",
        (proportional("figure2c", "squared_moving_mean"),),
    ),
    Claim(
        "relu-variances-as-derived",
        "C",
        "With ReLUs, too, the skip variance of block l is about l and its branch variance about 1.",
        (
            follows("figure5", "skip_variance", normalized_variance, "l"),
            follows("figure5", "branch_variance", _one, "1"),
        ),
    ),
    Claim(
        "relu-moving-variance",
        "C",
        "ReLUs correlate the examples: the moving variance of block l is about l (1 - 1/π).",
        (follows("figure5", "moving_variance", relu_moving_variance, "l (1 - 1/π)"),),
    ),
    Claim(
        "relu-moving-mean",
        "C",
        "The rest of the variance is between channels: the squared moving mean of block l is about l/π.",
        (follows("figure5", "squared_moving_mean", relu_squared_moving_mean, "l/π"),),
    ),
    Claim(
        "l2-dominates-the-initial-loss",
        "2.3",
        "At initialization the L2 term is the larger part of a deep network's loss.",
        (below("initial-loss", "cross_entropy", "l2_term", fewest=1),),
    ),
)
