"""Folders of drawn photographs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image


def photograph(width: int, height: int, seed: int = 0) -> Image.Image:
    """A smooth picture, as JPEG likes them."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def draw_folder(root: Path, sizes: Mapping[str, Sequence[int]]) -> Path:
    """The classes `cat` and `dog` with so many JPEGs each in every split, no two alike."""
    seed = 0
    for split, counts in sizes.items():
        for name, count in zip(("cat", "dog"), counts, strict=True):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                seed += 1
                photograph(260 + 10 * seed, 300, seed).save(root / split / name / f"{number}.JPEG")
    return root
