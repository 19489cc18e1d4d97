"""scikit-learn's 1,797 digits: real 8×8 images, values 0 … 16, that are there without a download.

Zero padding drains the signal of deep networks on small feature maps; for those there are the same digits at
twice the size.
"""

from __future__ import annotations

import numpy as np

from .labelled import Labelled


def read_digits() -> tuple[Labelled, Labelled]:
    """Training and test split, 1,442 and 355 images: of each class, every fifth image is for testing.

    The split is by position in the file, so that no library's random numbers can change it. It is by class
    because the file counts 0, 1, …, 9, 0, 1, … for long stretches: every fifth image would be a 4 or a 9.
    """
    from sklearn.datasets import load_digits  # slow to load; other data sets need not wait

    bundled = load_digits()
    images = bundled.images.astype(np.uint8)[:, None]
    labels = bundled.target.astype(np.int64)
    for_test = np.zeros(len(labels), dtype=bool)
    for digit in range(10):
        for_test[np.flatnonzero(labels == digit)[4::5]] = True
    return Labelled(images[~for_test], labels[~for_test]), Labelled(images[for_test], labels[for_test])


def read_large_digits() -> tuple[Labelled, Labelled]:
    """The same digits in 16×16: each pixel as a square of four."""
    train, test = read_digits()
    return _enlarge(train), _enlarge(test)


def _enlarge(part: Labelled) -> Labelled:
    return Labelled(part.images.repeat(2, axis=2).repeat(2, axis=3), part.labels)
