"""The paper's laws for residual networks at initialization (section 2 and appendix C), and the prediction
they make for a measured network where their assumptions hold.

Depth is counted in residual blocks: l = 1 for the first. Inputs have mean 0 and variance 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .balance import ProbeReport
    from .residual import ResidualAdd


def unnormalized_variance(depth: float) -> float:
    """Var(x^l) = 2^(l-1): the branch repeats the variance of the skip, each block doubles it."""
    return _power(2, depth - 1)


def normalized_variance(depth: float) -> float:
    """Var(x^l) = l: each branch starts from variance 1 again."""
    return float(depth)


def scaled_variance(depth: float, alpha: float) -> float:
    """Var(x^l) = (1 + alpha^2)^(l-1): an unnormalized branch times alpha."""
    return _power(1 + alpha**2, depth - 1)


def _power(base: float, exponent: float) -> float:
    """Infinity where Python raises OverflowError: deep networks leave the range of numbers."""
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return math.inf


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


@dataclass(frozen=True)
class Prediction:
    """Skip variance, branch variance and branch share of each row."""

    law: str
    skip: tuple[float, ...]
    branch: tuple[float, ...]
    share: tuple[float, ...]


def predict(report: ProbeReport) -> Prediction | None:
    """The prediction of the paper's theory for these rows; None if its assumptions do not hold.

    The assumptions: the skip of each block is the sum of the block before, up to one constant that multiplies
    both paths; branches are normalized, with variance 1, or unnormalized, with one scalar. A projection of a
    normalized tensor restarts the count of blocks, and one of the activated sum of the block before keeps its
    variance. There is no law where a projection maps another tensor, or where every skip is one.
    """
    adds, rows = report.adds, report.rows
    constant = _common_constant(adds)
    projected = [add for add in adds if add.skip_is_projection]
    known = all(_is_stream(add) for add in adds if not add.skip_is_projection)
    if constant is None or not known or any(add.skip_norms for add in adds):
        return None
    anew = all(add.shared_norms for add in projected)
    squared = _common_scale(report)
    unscaled = squared is not None and math.isclose(squared, 1, rel_tol=1e-3)
    if constant == 1 and anew and unscaled and all(row.moving_variance is not None for row in rows):
        positions = {index: depth for run in stages(adds) for depth, index in enumerate(run, start=1)}
        depths = [positions[index] for index in range(len(rows))]
        return Prediction(
            law="normalized branches: variance l, share 1/(l+1), l from the last projection",
            skip=tuple(normalized_variance(depth) for depth in depths),
            branch=(1.0,) * len(rows),
            share=tuple(normalized_branch_share(depth) for depth in depths),
        )
    steady = all(add.projects == before.name for before, add in pairwise(adds) if add.skip_is_projection)
    if squared is None or not steady or len(projected) == len(adds) or any(add.normalized for add in adds):
        return None
    # As one power: of the factors kept^l and (1 + alpha^2)^l, one may vanish and the other overflow.
    first, alpha, rate = rows[0].skip_variance, squared**0.5, constant**2 * (1 + squared)
    skip = tuple(first * _power(rate, row.depth - 1) for row in rows)
    return Prediction(
        law=f"unnormalized branches times {alpha:.3g}: variance times {rate:.3g} a block",
        skip=skip,
        branch=tuple(squared * variance for variance in skip),
        share=(scaled_branch_share(alpha),) * len(rows),
    )


def stages(adds: Sequence[ResidualAdd]) -> list[list[int]]:
    """Row numbers in runs of blocks, each of which continues the one before it in its run.

    A block continues another if its skip is that block's sum, or that sum after an activation or a norm, such
    as the ReLU of ResNet-V1. Any other layer between them may change the variance, and so may a projection
    before a ReLU. If a block and those inside its branch start from one sum, the outer one continues it.
    """
    blocks = {add.name: add for add in adds}
    last: dict[str | None, int] = {
        add.follows: index
        for index, add in enumerate(adds)
        if add.follows and (add.continues or not blocks[add.follows].skip_is_projection)
    }
    runs: list[list[int]] = []
    home: dict[str | None, list[int]] = {}
    for index, add in enumerate(adds):
        if last.get(add.follows) == index:
            run = home[add.follows]
        else:
            runs.append(run := [])
        run.append(index)
        home[add.name] = run
    return runs


def _is_stream(add: ResidualAdd) -> bool:
    """Whether the skip operand is what the branch sees: no gate, pooling or factor on the skip alone."""
    return add.skip_is_multiple and (add.skip_is_identity or add.skip_constant == 1)


def _common_constant(adds: Sequence[ResidualAdd]) -> float | None:
    """The constant that multiplies each sum before the next block; None if there is another operation."""
    pairs = [(before, add) for before, add in pairwise(adds) if add.skip_is_identity or add.continues]
    constants = {add.skip_constant for _, add in pairs} or {1.0}
    return constants.pop() if len(constants) == 1 and all(a.continues == b.name for b, a in pairs) else None


def _common_scale(report: ProbeReport) -> float | None:
    """alpha^2 if it is the same in all blocks; 1 if there is no scalar."""
    ratios = []
    for row in report.rows:
        before = row.branch_variance_before_scalar
        if before is not None and before <= 0:
            return None
        ratios.append(1.0 if before is None else row.branch_variance / before)
    return ratios[0] if max(ratios) - min(ratios) <= 1e-3 * max(ratios) else None
