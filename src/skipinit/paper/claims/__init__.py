"""The statements of the paper that measurements can contradict, as data; each one knows how to be checked.

One file per subject holds the claims. Their rules are in `points` (method against method), `series` (along
depth or batch size) and `laws` (networks at initialization).
"""

from __future__ import annotations

from collections.abc import Mapping

from ..published import Measurements
from .about_batches import BATCH_SIZE as BATCH_SIZE
from .about_batches import REGULARIZATION as REGULARIZATION
from .about_depth import DEPTH as DEPTH
from .about_depth import IMAGENET as IMAGENET
from .about_depth import INITIALIZATION as INITIALIZATION
from .claim import Claim, Verdict

_ALL = (
    *INITIALIZATION,
    *DEPTH,
    *BATCH_SIZE,
    *REGULARIZATION,
    *IMAGENET,
)

CLAIMS: Mapping[str, Claim] = {claim.id: claim for claim in _ALL}


def check_all(measurements: Measurements) -> dict[str, Verdict]:
    """The verdict on every claim, in the paper's order of subjects."""
    return {name: claim.check(measurements) for name, claim in CLAIMS.items()}
