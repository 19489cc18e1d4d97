"""Claims about depth: which networks can be trained, how well, at which rates (Tables 1, 3, 4 and 5)."""

from __future__ import annotations

from .claim import Claim
from .points import fails, leads, similar_losses, trains
from .series import constant_rate

DEPTHS = (16, 100, 1000)
DEEP = (100, 1000)
DEEPEST = (1000,)

CLAIMS = (
    Claim(
        "batchnorm-trains-at-any-depth",
        "2.3",
        "With batch norm, networks of 16 to 1000 layers can be trained.",
        (trains("table1", "batchnorm", DEPTHS),),
    ),
    Claim(
        "batchnorm-rate-hardly-depends-on-depth",
        "2.3",
        "The best rate with batch norm depends only weakly on depth.",
        (constant_rate("table1", "batchnorm", DEPTHS),),
    ),
    Claim(
        "skipinit-trains-at-any-depth",
        "2.3",
        "Without normalization, SkipInit trains 1000 layers from α = 1/√d or less, 0 included.",
        (
            trains("table1", "skipinit alpha=1/sqrt(d)", DEPTHS),
            trains("table1", "skipinit", DEPTHS),
        ),
    ),
    Claim(
        "skipinit-rate-hardly-depends-on-depth",
        "2.3",
        "The best rate with SkipInit is almost independent of depth.",
        (
            constant_rate("table1", "skipinit alpha=1/sqrt(d)", DEPTHS),
            constant_rate("table1", "skipinit", DEPTHS),
        ),
    ),
    Claim(
        "skipinit-slightly-below-batchnorm",
        "2.3",
        "SkipInit is slightly below batch norm on the test set at every depth.",
        (leads("table1", "batchnorm", "skipinit", DEPTHS, over=0.0, up_to=1.5),),
    ),
    Claim(
        "alpha-one-fails-deep",
        "2.3",
        "Deep networks cannot be trained with SkipInit from α = 1.",
        (fails("table1", "skipinit alpha=1", DEEP),),
    ),
    Claim(
        "stable-forward-pass-is-not-enough",
        "2.3",
        "That activations do not explode is not enough: 1000 layers of blocks divided by √2 do not train.",
        (fails("table1", "divide-sqrt2", DEEPEST),),
    ),
    Claim(
        "l2-is-not-necessary",
        "2.3",
        "SkipInit trains at every depth without L2 regularization.",
        (trains("table1", "skipinit without L2", DEPTHS),),
    ),
    Claim(
        "skipinit-matches-training-loss",
        "D.1",
        "SkipInit reaches training losses like those of batch norm after as many epochs.",
        (
            similar_losses("table3", "batchnorm", "skipinit alpha=1/sqrt(d)", DEPTHS),
            similar_losses("table3", "batchnorm", "skipinit", DEPTHS),
        ),
    ),
    Claim(
        "batchnorm-variants-fail-deep",
        "D.2",
        "Batch norm that does not scale the branch down against the skip cannot train 1000 layers: "
        "blocks divided by √2, a norm at the block's end, a last norm only.",
        (
            fails("table4", "batchnorm-divide-sqrt2", DEEPEST),
            fails("table4", "batchnorm-block-end", DEEPEST),
            fails("table4", "batchnorm-final-only", DEEPEST),
        ),
    ),
    Claim(
        "skipinit-helps-shallow-networks",
        "7",
        "Starting the branch at zero often helps shallow networks too.",
        (
            leads("table1", "skipinit", "skipinit alpha=1", (16,)),
            leads("table5", "skipinit", "skipinit alpha=1", (16,)),
        ),
    ),
    Claim(
        "cifar100-batchnorm-and-skipinit-train-deep",
        "E",
        "Batch norm and SkipInit train very deep networks on CIFAR-100.",
        (
            trains("table5", "batchnorm", DEPTHS),
            trains("table5", "skipinit alpha=1/sqrt(d)", DEPTHS),
            trains("table5", "skipinit", DEPTHS),
        ),
    ),
    Claim(
        "cifar100-unscaled-branches-fail-deep",
        "E",
        "On CIFAR-100, too, 1000 layers cannot be trained unless the branch is scaled down.",
        (
            fails("table5", "skipinit alpha=1", DEEPEST),
            fails("table5", "divide-sqrt2", DEEPEST),
        ),
    ),
)
