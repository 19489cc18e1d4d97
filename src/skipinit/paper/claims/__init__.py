"""The statements of the paper that measurements can contradict, as data; each one knows how to be checked.

One file per subject holds the claims. Their rules are in `points` (method against method), `series` (along
depth or batch size) and `laws` (networks at initialization).
"""

from __future__ import annotations

from collections.abc import Mapping

from ..measured import Measurements
from . import batch_size, depth, imagenet, initialization, regularization
from .claim import Claim, Verdict

_ALL = (
    *initialization.CLAIMS,
    *depth.CLAIMS,
    *batch_size.CLAIMS,
    *regularization.CLAIMS,
    *imagenet.CLAIMS,
)

CLAIMS: Mapping[str, Claim] = {claim.id: claim for claim in _ALL}


def check_all(measurements: Measurements) -> dict[str, Verdict]:
    """The verdict on every claim, in the paper's order of subjects."""
    return {name: claim.check(measurements) for name, claim in CLAIMS.items()}
