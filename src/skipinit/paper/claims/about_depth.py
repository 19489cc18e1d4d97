"""Claims about networks at initialization, about depth, and about ResNet50 on ImageNet."""

from __future__ import annotations

from ...probing.laws import (
    normalized_branch_share,
    normalized_variance,
    relu_moving_variance,
    relu_squared_moving_mean,
    unnormalized_variance,
)
from .claim import below, claim, equals, follows, proportional
from .points import fails, leads, similar_losses, trains
from .series import constant_rate

INITIALIZATION = {
    "unnormalized-variance-doubles": claim(
        "2.1",
        "Without normalization the variance on the skip path doubles from block to block.",
        follows("figure2a", "skip_variance", unnormalized_variance, "2^(ℓ-1)"),
    ),
    "unnormalized-branch-equals-skip": claim(
        "2.1",
        "Without normalization branch and skip contribute equally: the block is far from the identity.",
        equals("figure2a", "branch_variance", "skip_variance"),
    ),
    "normalized-variance-is-depth": claim(
        "2.1",
        "With batch norm on the branch the variance on the skip path of block ℓ is about ℓ.",
        follows("figure2b", "skip_variance", normalized_variance, "ℓ"),
    ),
    "normalized-branch-variance-is-one": claim(
        "2.1",
        "With batch norm every residual branch ends with a variance of about 1.",
        follows("figure2b", "branch_variance", lambda _: 1.0, "1"),
    ),
    "normalization-divides-by-root-depth": claim(
        "2.1",
        "The moving variance of block ℓ is about ℓ: batch norm divides the branch by the square root of ℓ.",
        follows("figure2b", "moving_variance", normalized_variance, "ℓ"),
    ),
    "normalized-branch-share": claim(
        "2.1",
        "With batch norm the branch of block ℓ gives only 1/(ℓ+1) of the block's output variance.",
        follows("figure2b", "branch_share", normalized_branch_share, "1/(ℓ+1)"),
    ),
    "linear-moving-mean-is-zero": claim(
        "2.1",
        "In the linear normalized network the squared moving mean is close to zero.",
        # Of 1000 examples, the mean of values without one squares to a thousandth of their variance.
        below("figure2b", "squared_moving_mean", "moving_variance", ratio=0.01),
    ),
    "convolutional-variance-grows-with-depth": claim(
        "2.1",
        "In the convolutional ReLU network the skip variance is proportional to depth, slightly below it.",
        proportional("figure2c", "skip_variance", low=0.75, high=1.0),
    ),
    "convolutional-moving-variance-is-smaller": claim(
        "2.1",
        "In the convolutional ReLU network the moving variance is proportional to depth, below the skip's.",
        proportional("figure2c", "moving_variance"),
        below("figure2c", "moving_variance", "skip_variance"),
    ),
    "convolutional-moving-mean-grows": claim(
        "C",
        "In the convolutional ReLU network the squared moving mean grows in proportion to depth.",
        proportional("figure2c", "squared_moving_mean"),
    ),
    "relu-variances-as-derived": claim(
        "C",
        "With batch norm and ReLUs the skip variance of block ℓ is about ℓ and its branch variance about 1.",
        follows("figure5", "skip_variance", normalized_variance, "ℓ"),
        follows("figure5", "branch_variance", lambda _: 1.0, "1"),
    ),
    "relu-moving-variance": claim(
        "C",
        "ReLUs correlate the examples of a batch: the moving variance of block ℓ is about ℓ (1 - 1/π).",
        follows("figure5", "moving_variance", relu_moving_variance, "ℓ (1 - 1/π)"),
    ),
    "relu-moving-mean": claim(
        "C",
        "With ReLUs the squared moving mean of block ℓ is about ℓ/π.",
        follows("figure5", "squared_moving_mean", relu_squared_moving_mean, "ℓ/π"),
    ),
    "l2-dominates-the-initial-loss": claim(
        "2.3",
        "At initialization the L2 term is the larger part of a deep network's loss.",
        below("initial-loss", "cross_entropy", "l2_term", fewest=1),
    ),
}


SAME = 0.5
"""Points of accuracy that the scatter of single runs can explain."""
SLIGHTLY = 1.5
"""Points up to which a difference is slight; the paper calls 1.2 so (Fixup on ResNet50-V1)."""
CONSIDERABLY = 2.0
"""Points above which it is considerable; the paper calls 2.6 so (the scalar bias at batch size 4096)."""

DEPTHS = (16, 100, 1000)
DEEP = (100, 1000)
DEEPEST = (1000,)
SKIPINIT = ("skipinit alpha=1/sqrt(d)", "skipinit")
"""The starts from which SkipInit trains at any depth."""


DEPTH = {
    "batchnorm-trains-at-any-depth": claim(
        "2.3",
        "With batch norm, networks of 16 to 1000 layers can be trained.",
        trains("table1", "batchnorm", DEPTHS),
    ),
    "batchnorm-rate-hardly-depends-on-depth": claim(
        "2.3",
        "The best rate with batch norm depends only weakly on depth.",
        constant_rate("table1", "batchnorm", DEPTHS),
    ),
    "skipinit-trains-at-any-depth": claim(
        "2.3",
        "Without normalization, SkipInit trains 1000 layers from α = 1/√d or less, 0 included.",
        *(trains("table1", start, DEPTHS) for start in SKIPINIT),
    ),
    "skipinit-rate-hardly-depends-on-depth": claim(
        "2.3",
        "The best rate with SkipInit is almost independent of depth.",
        *(constant_rate("table1", start, DEPTHS) for start in SKIPINIT),
    ),
    "skipinit-slightly-below-batchnorm": claim(
        "2.3",
        "SkipInit is slightly below batch norm on the test set at every depth.",
        *(leads("table1", "batchnorm", start, DEPTHS, up_to=SLIGHTLY) for start in SKIPINIT),
    ),
    "alpha-one-fails-deep": claim(
        "2.3",
        "Deep networks cannot be trained with SkipInit from α = 1.",
        fails("table1", "skipinit alpha=1", DEEP),
    ),
    "stable-forward-pass-is-not-enough": claim(
        "2.3",
        "A stable forward pass is not enough: 1000 layers with blocks divided by √2 cannot be trained.",
        fails("table1", "divide-sqrt2", DEEPEST),
    ),
    "l2-is-not-necessary": claim(
        "2.3",
        "SkipInit trains 16 to 1000 layers without L2 regularization.",
        trains("table1", "skipinit without L2", DEPTHS),
    ),
    "skipinit-matches-training-loss": claim(
        "D.1",
        "SkipInit and batch norm reach similar training losses after the same number of epochs.",
        *(similar_losses("table3", "batchnorm", start, DEPTHS) for start in SKIPINIT),
    ),
    "batchnorm-variants-fail-deep": claim(
        "D.2",
        "Batch norm does not train 1000 layers if it does not downscale the branch relative to the skip: "
        "blocks divided by √2, a norm at the end of each block, a final norm only.",
        fails("table4", "batchnorm-divide-sqrt2", DEEPEST),
        fails("table4", "batchnorm-block-end", DEEPEST),
        fails("table4", "batchnorm-final-only", DEEPEST),
    ),
    "skipinit-helps-shallow-networks": claim(
        "7",
        "SkipInit, started at zero, often makes shallow networks more accurate, too.",
        *(leads(table, "skipinit", "skipinit alpha=1", (16,)) for table in ("table1", "table5")),
    ),
    "cifar100-batchnorm-and-skipinit-train-deep": claim(
        "E",
        "Batch norm and SkipInit train very deep networks on CIFAR-100.",
        *(trains("table5", method, DEPTHS) for method in ("batchnorm", *SKIPINIT)),
    ),
    "cifar100-unscaled-branches-fail-deep": claim(
        "E",
        "On CIFAR-100, too, 1000 layers cannot be trained if the branch is not downscaled.",
        *(fails("table5", method, DEEPEST) for method in ("skipinit alpha=1", "divide-sqrt2")),
    ),
}


STANDARD = (256,)
SMALL = (256, 1024)
LARGEST = (4096,)
EVERY = (256, 1024, 4096)
V2, V1 = "table2", "table7"


IMAGENET = {
    "imagenet-all-match-at-256": claim(
        "5",
        "At the usual batch size of 256 SkipInit and Fixup match batch norm.",
        *(leads(V2, "batchnorm", other, STANDARD, -SAME, SAME) for other in ("skipinit", "fixup")),
    ),
    "imagenet-batchnorm-best-at-large-batch": claim(
        "5",
        "At a batch of 4096 batch norm is best: SkipInit and Fixup are worse, with Dropout or without.",
        *(
            leads(V2, "batchnorm", other, LARGEST)
            for other in ("skipinit", "fixup", "fixup-dropout", "regularized-skipinit")
        ),
    ),
    "imagenet-regularized-beat-batchnorm": claim(
        "5",
        "With Dropout both SkipInit and Fixup are more accurate than batch norm at small batches.",
        *(leads(V2, other, "batchnorm", SMALL) for other in ("fixup-dropout", "regularized-skipinit")),
    ),
    "imagenet-biases-help-skipinit": claim(
        "5",
        "Biases in the convolutions give SkipInit a small gain.",
        leads(V2, "skipinit", "skipinit without biases", STANDARD, up_to=SLIGHTLY),
    ),
    "imagenet-fixup-ahead-at-large-batch": claim(
        "6",
        "SkipInit and Fixup are similar at small batches; at a large batch Fixup is ahead.",
        leads(V2, "fixup", "skipinit", SMALL, -SAME, SAME),
        leads(V2, "fixup", "skipinit", LARGEST),
    ),
    "either-fixup-component-suffices": claim(
        "6",
        "Fixup's component 1 or 2 alone is enough to train ResNet-V2.",
        *(trains(V2, f"fixup component {number}", STANDARD) for number in (1, 2)),
    ),
    "v1-fixup-slightly-worse-at-small-batch": claim(
        "F",
        "On ResNet50-V1 Fixup is slightly worse than batch norm at small batches.",
        leads(V1, "batchnorm", "fixup", SMALL, up_to=SLIGHTLY),
    ),
    "v1-fixup-considerably-worse-at-large-batch": claim(
        "F",
        "On ResNet50-V1 Fixup is considerably worse than batch norm at a large batch.",
        leads(V1, "batchnorm", "fixup", LARGEST, over=CONSIDERABLY),
    ),
    "v1-skipinit-needs-identity-skips": claim(
        "F",
        "On ResNet50-V1, which has no identity skip, Regularized SkipInit is far below batch norm and Fixup.",
        leads(V1, "batchnorm", "regularized-skipinit", EVERY, CONSIDERABLY),
        leads(V1, "fixup", "regularized-skipinit", EVERY, CONSIDERABLY),
    ),
    "v1-scalar-bias-helps": claim(
        "F",
        "On ResNet50-V1 a scalar bias before each last ReLU improves Regularized SkipInit considerably.",
        leads(V1, "regularized-skipinit scalar bias", "regularized-skipinit", EVERY, CONSIDERABLY),
    ),
    "v1-scalar-bias-closes-the-gap-to-fixup": claim(
        "F",
        "With such biases Regularized SkipInit is as accurate as Fixup on ResNet50-V1 at small batches.",
        leads(V1, "regularized-skipinit scalar bias", "fixup", SMALL, over=-SAME),
    ),
}
