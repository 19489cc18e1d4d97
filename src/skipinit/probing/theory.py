"""What the paper derives for residual networks at initialization (section 2 and appendix C), as functions.

Depth is counted in residual blocks: l = 1 for the first. Inputs have mean 0 and variance 1.
"""

from __future__ import annotations

import math


def unnormalized_variance(depth: float) -> float:
    """Var(x^l) = 2^(l-1): the branch repeats the variance of the skip, each block doubles it."""
    return math.pow(2, depth - 1)


def normalized_variance(depth: float) -> float:
    """Var(x^l) = l: each branch starts from variance 1 again."""
    return float(depth)


def scaled_variance(depth: float, alpha: float) -> float:
    """Var(x^l) = (1 + alpha^2)^(l-1): an unnormalized branch times alpha."""
    return math.pow(1 + alpha**2, depth - 1)


def relu_moving_variance(depth: float) -> float:
    """l (1 - 1/pi): the mean moving variance of batch norm where ReLUs correlate the examples."""
    return depth * (1 - 1 / math.pi)


def relu_squared_moving_mean(depth: float) -> float:
    """l / pi: the mean squared moving mean; with `relu_moving_variance` it adds up to l."""
    return depth / math.pi


def normalized_branch_share(depth: float) -> float:
    """1 / (l + 1): the branch's fraction of the output variance of a normalized block."""
    return 1 / (depth + 1)


def scaled_branch_share(alpha: float) -> float:
    """alpha^2 / (1 + alpha^2): one half for the plain unnormalized block, alpha = 1."""
    return alpha**2 / (1 + alpha**2)
