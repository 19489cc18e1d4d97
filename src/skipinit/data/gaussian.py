"""Images that are noise, with labels that mean nothing: for probing and for timing."""

from __future__ import annotations

import numpy as np

from .catalog import DATA_SETS
from .labelled import Labelled


def draw_gaussian(seed: int = 0) -> tuple[Labelled, Labelled]:
    """Training and test split of independent N(0, 1) values, float32, and uniform labels."""
    entry = DATA_SETS["gaussian"]
    generator = np.random.default_rng(seed)

    def draw(size: int) -> Labelled:
        images = generator.standard_normal((size, *entry.shape), dtype=np.float32)
        return Labelled(images, generator.integers(entry.num_classes, size=size))

    return draw(entry.train_size), draw(entry.test_size)
