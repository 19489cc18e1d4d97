"""What every reader of a data set hands back, for the training and the test split."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Labelled(NamedTuple):
    """Images (N, C, H, W) and the class of each (N,)."""

    images: NDArray[Any]
    labels: NDArray[np.int64]
