"""Claims about batch size: when large rates help (Figures 3 and 7), and batch norm as a regularizer (4, 6
and 8).

The figures show no numbers, so small and large are read from the text: its examples of small are far below
1024, and its curves bend near there.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from ...sweeping.summary import Metric
from .claim import Rule, claim
from .points import Span, larger_rates, leads, similar_rates
from .series import (
    FLAT_THEN_FALLING,
    LOSS_FALLING,
    LOSS_RISING,
    NEVER_RISING,
    STEADY,
    constant_rate,
    far_from_unstable,
    has_shape,
    larger_stable_rate,
    larger_threshold,
    peaks,
    proportional_rate,
)

METHODS = ("batchnorm", "skipinit", "none")
"""Of Figure 3, by their largest stable rate."""
BOTH: tuple[Metric, ...] = ("test_accuracy", "train_loss")
"""The best rates for accuracy and for loss: Figures 3c and 3d, and the two of Figure 6."""
SKIPINIT = ("skipinit", "regularized-skipinit")
NORMALIZED_OR_SKIPINIT = ("batchnorm", *SKIPINIT)
EVERY = Span(fewest=3)
SMALL = Span(high=128)
LARGE = Span(low=2048)
TINY = Span(high=4)
SMALL_FULL = Span(high=64, fewest=3)
"""Small batches with the statistics of the full batch (Figures 4, 6 and 8)."""


def _proportional(exhibit: str, methods: tuple[str, ...], metric: Metric = "test_accuracy") -> Iterator[Rule]:
    for method in methods:
        # With batch norm no batch is smaller than the ghost batch, and rates are stable for longer.
        end = 256 if method == "batchnorm" else 128
        yield proportional_rate(exhibit, method, Span(high=end, fewest=2), metric)


BATCH_SIZE = {
    "batchnorm-better-at-every-batch-size": claim(
        "3",
        "Batch norm is better than no normalization at every batch size, on test set and training set.",
        leads("figure3", "batchnorm", "none", EVERY),
        leads("figure3", "batchnorm", "none", EVERY, metric="train_loss"),
    ),
    "accuracy-flat-then-falling": claim(
        "3",
        "With and without batch norm, accuracy is the same at small batch sizes and falls past a threshold.",
        *(has_shape("figure3", method, EVERY, FLAT_THEN_FALLING) for method in ("batchnorm", "none")),
    ),
    "batchnorm-scales-to-larger-batches": claim(
        "3",
        "With batch norm accuracy falls only past a significantly larger batch size than without.",
        larger_threshold("figure3", "batchnorm", "none", EVERY),
    ),
    "skipinit-narrows-the-gap": claim(
        "3",
        "At small and moderate batch sizes SkipInit narrows the gap between no normalization and batch norm.",
        leads("figure3", "skipinit", "none", Span(high=512, fewest=2)),
    ),
    "skipinit-lower-training-loss": claim(
        "3",
        "SkipInit reaches lower training losses than batch norm up to batch sizes of about 1024.",
        leads("figure3", "skipinit", "batchnorm", Span(high=512, fewest=2), metric="train_loss"),
    ),
    "skipinit-worse-at-large-batches": claim(
        "3",
        "At very large batch sizes SkipInit is worse than batch norm.",
        leads("figure3", "batchnorm", "skipinit", LARGE),
    ),
    "small-batch-rate-proportional": claim(
        "3",
        "At small batch sizes the best rates of all three methods are proportional to the batch size.",
        *(rule for metric in BOTH for rule in _proportional("figure3", METHODS, metric)),
    ),
    "small-batch-rates-similar": claim(
        "3",
        "At small batch sizes the best rates of all three methods are similar.",
        *(similar_rates("figure3", METHODS, SMALL, metric) for metric in BOTH),
    ),
    "small-batch-rates-far-from-unstable": claim(
        "3",
        "At small batch sizes large rates do not help: the best is far below the largest stable one.",
        *(far_from_unstable("figure3", method, EVERY, metric) for metric in BOTH for method in METHODS),
    ),
    "large-batch-rate-constant": claim(
        "3",
        "At large batch sizes the best rate does not depend on the batch size.",
        *(
            constant_rate("figure3", method, Span(low=2048, fewest=2), metric)
            for metric in BOTH
            for method in METHODS
        ),
    ),
    "large-batch-batchnorm-uses-larger-rates": claim(
        "3",
        "At large batch sizes batch norm uses larger rates than the others, SkipInit than no normalization.",
        *(
            larger_rates("figure3", larger, smaller, LARGE, metric)
            for metric in BOTH
            for larger, smaller in combinations(METHODS, 2)
        ),
    ),
    "largest-stable-rates": claim(
        "3",
        "Batch norm has the largest stable rate, then SkipInit, then no normalization.",
        larger_stable_rate("figure3", "batchnorm", "skipinit", EVERY),
        larger_stable_rate("figure3", "skipinit", "none", EVERY),
    ),
    "accuracy-never-rises-with-batch-size": claim(
        "3",
        "For a fixed number of epochs no method gains accuracy from a larger batch.",
        *(has_shape("figure3", method, EVERY, NEVER_RISING) for method in METHODS),
    ),
    "cifar100-batchnorm-better-at-every-batch-size": claim(
        "E",
        "On CIFAR-100 batch norm is more accurate than SkipInit, regularized or not, at every batch size.",
        *(leads("figure7", "batchnorm", method, EVERY) for method in SKIPINIT),
    ),
    "cifar100-unnormalized-not-competitive": claim(
        "E",
        "Without batch norm and without SkipInit, WRN-28-10 does not reach a competitive accuracy.",
        leads("figure7", "skipinit", "none", EVERY, over=2.0),
    ),
    "cifar100-small-batch-rate-proportional": claim(
        "E",
        "On CIFAR-100, too, the best rates are proportional to the batch size while it is small.",
        *_proportional("figure7", NORMALIZED_OR_SKIPINIT),
    ),
    "cifar100-small-batch-rates-similar": claim(
        "E",
        "On CIFAR-100, too, the best rates of all three methods are about equal at small batch sizes.",
        similar_rates("figure7", NORMALIZED_OR_SKIPINIT, SMALL),
    ),
    "cifar100-batchnorm-largest-stable-rate": claim(
        "E",
        "On CIFAR-100, too, batch norm has the largest stable rate.",
        *(larger_stable_rate("figure7", "batchnorm", method, EVERY) for method in SKIPINIT),
    ),
}


REGULARIZATION = {
    "batchnorm-accuracy-peaks-at-intermediate-batch": claim(
        "4",
        "With full-batch statistics the accuracy of batch norm is highest at a batch size of about 64.",
        peaks("figure4", "batchnorm", 32, 128),
    ),
    "batchnorm-loss-rises-from-1-to-2": claim(
        "4",
        "With full-batch statistics the training loss of batch norm rises from a batch size of 1 to 2.",
        has_shape("figure4", "batchnorm", (1, 2), LOSS_RISING),
    ),
    "batchnorm-loss-falls-from-2": claim(
        "4",
        "With full-batch statistics the training loss of batch norm falls from a batch size of 2 on.",
        has_shape("figure4", "batchnorm", Span(low=2, fewest=3), LOSS_FALLING),
    ),
    "skipinit-independent-of-small-batches": claim(
        "4",
        "The accuracy of SkipInit, regularized or not, does not depend on small batch sizes.",
        *(has_shape("figure4", method, SMALL_FULL, STEADY) for method in SKIPINIT),
    ),
    "regularized-skipinit-better-at-tiny-batches": claim(
        "4",
        "At very small batch sizes Regularized SkipInit is more accurate than batch norm.",
        leads("figure4", "regularized-skipinit", "batchnorm", TINY),
    ),
    "regularization-narrows-the-gap": claim(
        "3",
        "Extra regularization raises the accuracy of SkipInit at small batch sizes.",
        leads("figure4", "regularized-skipinit", "skipinit", SMALL_FULL),
    ),
    "full-batch-rates-similar": claim(
        "D.3",
        "At small batches the best rates of batch norm, SkipInit and Regularized SkipInit are similar.",
        *(similar_rates("figure6", NORMALIZED_OR_SKIPINIT, SMALL_FULL, metric) for metric in BOTH),
    ),
    "cifar100-batchnorm-accuracy-peaks-at-16": claim(
        "E",
        "On CIFAR-100 the accuracy of batch norm peaks at a batch size of 16 and is lower to either side.",
        peaks("figure8", "batchnorm", 8, 32),
    ),
    "cifar100-regularized-skipinit-better-at-tiny-batches": claim(
        "E",
        "On CIFAR-100, too, Regularized SkipInit is more accurate than batch norm at very small batches.",
        leads("figure8", "regularized-skipinit", "batchnorm", TINY),
    ),
    "cifar100-regularized-skipinit-competitive-at-moderate-batches": claim(
        "E",
        "On CIFAR-100 Regularized SkipInit is competitive with batch norm at moderately large batches.",
        leads("figure8", "regularized-skipinit", "batchnorm", Span(low=64, high=256), over=-1.5),
    ),
}
