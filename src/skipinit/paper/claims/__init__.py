"""The statements of the paper that measurements can contradict, as data, with the rules that check them.

One file per subject holds the claims. Their rules are in `points` (method against method), `series` (along
depth or batch size) and `claim` (networks at initialization).
"""

from __future__ import annotations

from collections.abc import Mapping

from .about_batches import BATCH_SIZE, REGULARIZATION
from .about_depth import DEPTH, IMAGENET, INITIALIZATION
from .claim import Claim

CLAIMS: Mapping[str, Claim] = {**INITIALIZATION, **DEPTH, **BATCH_SIZE, **REGULARIZATION, **IMAGENET}
"""By name, in the paper's order of subjects."""
