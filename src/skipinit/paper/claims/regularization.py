"""Claims about batch norm as a regularizer: statistics of the full batch (Figures 4, 6 and 8)."""

from __future__ import annotations

from .claim import Claim
from .points import Span, leads, similar_rates
from .series import loss_falls, loss_rises, peaks, steady

ACCURACY, LOSS, CIFAR100 = "figure4-accuracy", "figure4-loss", "figure8"
METHODS = ("batchnorm", "skipinit", "regularized-skipinit")

TINY = Span(high=4)
SMALL = Span(high=64, fewest=3)

CLAIMS = (
    Claim(
        "batchnorm-accuracy-peaks-at-intermediate-batch",
        "4",
        "With full-batch statistics the accuracy of batch norm is highest at a batch of about 64.",
        (peaks(ACCURACY, "batchnorm", 32, 128),),
    ),
    Claim(
        "batchnorm-loss-rises-from-1-to-2",
        "4",
        "The training loss of batch norm rises from a batch of 1 to a batch of 2.",
        (loss_rises(LOSS, "batchnorm", (1, 2)),),
    ),
    Claim(
        "batchnorm-loss-falls-from-2",
        "4",
        "From a batch of 2 up the training loss of batch norm falls consistently.",
        (loss_falls(LOSS, "batchnorm", Span(low=2, fewest=3)),),
    ),
    Claim(
        "skipinit-independent-of-small-batches",
        "4",
        "SkipInit, regularized or not, does not depend on the batch size while that is small.",
        tuple(steady(ACCURACY, method, SMALL) for method in METHODS[1:]),
    ),
    Claim(
        "regularized-skipinit-better-at-tiny-batches",
        "4",
        "At very small batch sizes Regularized SkipInit is more accurate than batch norm.",
        (leads(ACCURACY, "regularized-skipinit", "batchnorm", TINY),),
    ),
    Claim(
        "regularization-narrows-the-gap",
        "3",
        "Extra regularization raises the accuracy of SkipInit at small batch sizes.",
        (leads(ACCURACY, "regularized-skipinit", "skipinit", SMALL),),
    ),
    Claim(
        "full-batch-rates-similar",
        "D.3",
        "While the batch is small, best rates of batch norm, SkipInit and Regularized SkipInit are similar.",
        (similar_rates(ACCURACY, METHODS, SMALL), similar_rates(LOSS, METHODS, SMALL)),
    ),
    Claim(
        "cifar100-batchnorm-accuracy-peaks-at-16",
        "E",
        "On CIFAR-100 the accuracy of batch norm peaks at a batch of 16 and decays to either side.",
        (peaks(CIFAR100, "batchnorm", 8, 32),),
    ),
    Claim(
        "cifar100-regularized-skipinit-better-at-tiny-batches",
        "E",
        "On CIFAR-100, too, Regularized SkipInit is more accurate than batch norm at very small batches.",
        (leads(CIFAR100, "regularized-skipinit", "batchnorm", TINY),),
    ),
    Claim(
        "cifar100-regularized-skipinit-competitive-at-moderate-batches",
        "E",
        "On CIFAR-100 Regularized SkipInit is competitive with batch norm at moderately large batches.",
        (leads(CIFAR100, "regularized-skipinit", "batchnorm", Span(low=64, high=256), over=-1.5),),
    ),
)
