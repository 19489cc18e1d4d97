"""Claims about ResNet50 on ImageNet: batch norm, SkipInit and Fixup (Tables 2 and 7)."""

from __future__ import annotations

from .claim import Claim
from .points import leads, trains

SMALL = (256, 1024)
STANDARD = (256,)
LARGEST = (4096,)
EVERY = (256, 1024, 4096)

SAME = 0.5
"""Points of accuracy that one run cannot tell apart."""
SLIGHTLY = 1.5
CONSIDERABLY = 2.0

V2, V1 = "table2", "table7"

CLAIMS = (
    Claim(
        "imagenet-all-match-at-256",
        "5",
        "At the usual batch of 256 SkipInit and Fixup match batch norm.",
        tuple(leads(V2, "batchnorm", other, STANDARD, -SAME, SAME) for other in ("skipinit", "fixup")),
    ),
    Claim(
        "imagenet-batchnorm-best-at-large-batch",
        "5",
        "At a very large batch batch norm is best: SkipInit and Fixup are worse, with Dropout or without.",
        tuple(
            leads(V2, "batchnorm", other, LARGEST)
            for other in ("skipinit", "fixup", "fixup-dropout", "regularized-skipinit")
        ),
    ),
    Claim(
        "imagenet-regularized-beat-batchnorm",
        "5",
        "With Dropout both SkipInit and Fixup are more accurate than batch norm at small batches.",
        tuple(leads(V2, other, "batchnorm", SMALL) for other in ("fixup-dropout", "regularized-skipinit")),
    ),
    Claim(
        "imagenet-biases-help-skipinit",
        "5",
        "Biases in the convolutions give SkipInit a small gain.",
        (leads(V2, "skipinit", "skipinit without biases", STANDARD, up_to=SLIGHTLY),),
    ),
    Claim(
        "imagenet-fixup-ahead-at-large-batch",
        "6",
        "SkipInit and Fixup are alike at small batches; at a large one Fixup is ahead.",
        (leads(V2, "fixup", "skipinit", SMALL, -SAME, SAME), leads(V2, "fixup", "skipinit", LARGEST)),
    ),
    Claim(
        "either-fixup-component-suffices",
        "6",
        "Fixup's component 1 or 2 alone is enough to train ResNet-V2.",
        (trains(V2, "fixup component 1", STANDARD), trains(V2, "fixup component 2", STANDARD)),
    ),
    Claim(
        "v1-fixup-slightly-worse-at-small-batch",
        "F",
        "On ResNet50-V1 Fixup is slightly worse than batch norm at small batches.",
        (leads(V1, "batchnorm", "fixup", SMALL, up_to=SLIGHTLY),),
    ),
    Claim(
        "v1-fixup-considerably-worse-at-large-batch",
        "F",
        "On ResNet50-V1 Fixup is considerably worse than batch norm at a large batch.",
        (leads(V1, "batchnorm", "fixup", LARGEST, over=CONSIDERABLY),),
    ),
    Claim(
        "v1-skipinit-needs-identity-skips",
        "F",
        "On ResNet50-V1, which has no identity skip, Regularized SkipInit is far below batch norm and Fixup.",
        (
            leads(V1, "batchnorm", "regularized-skipinit", EVERY, CONSIDERABLY),
            leads(V1, "fixup", "regularized-skipinit", EVERY, CONSIDERABLY),
        ),
    ),
    Claim(
        "v1-scalar-bias-helps",
        "F",
        "One scalar bias per block, before its last ReLU, improves Regularized SkipInit considerably there.",
        (leads(V1, "regularized-skipinit scalar bias", "regularized-skipinit", EVERY, CONSIDERABLY),),
    ),
    Claim(
        "v1-scalar-bias-closes-the-gap-to-fixup",
        "F",
        "With that bias nothing is left of its gap to Fixup at small batches.",
        (leads(V1, "regularized-skipinit scalar bias", "fixup", SMALL, over=-SAME),),
    ),
)
