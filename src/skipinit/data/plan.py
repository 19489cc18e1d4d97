"""The random choices of an epoch, drawn at once on the CPU: any process and any device sees the same ones."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .seeds import mix


class EpochPlan(NamedTuple):
    """`order[k]` is the k-th image to serve; `top[k]`, `left[k]`, `flip[k]` are what happens to it."""

    order: Tensor
    top: Tensor
    left: Tensor
    flip: Tensor


def epoch_plan(seed: int, epoch: int, n: int, padding: int = 0, flip: bool = False) -> EpochPlan:
    """The plan of epoch `epoch` of the run `seed` over `n` images.

    A function of its arguments alone, so that a resumed run goes on with the plan it had. Offsets are
    uniform over 0 … 2·padding. The order does not depend on `padding` and `flip`.
    """
    generator = torch.Generator().manual_seed(mix("epoch", seed, epoch))
    order = torch.randperm(n, generator=generator)
    top, left = torch.randint(0, 2 * padding + 1, (2, n), generator=generator)
    mirrored = torch.randint(0, 2 if flip else 1, (n,), generator=generator).bool()
    return EpochPlan(order, top, left, mirrored)
