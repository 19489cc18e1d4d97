"""Each claim reads what its sentence is about, and takes words such as `slightly` as the paper does."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skipinit.paper.claims import CLAIMS, about_depth
from skipinit.paper.claims.claim import MeasurementSet
from skipinit.paper.exhibits import Place
from support.measurement_sets import as_the_paper_says, result, rows_by_theory
from support.paper_source import PAPER, needs_paper

SENTENCES = tomllib.loads(Path(__file__).with_name("sentences.toml").read_text(encoding="utf-8"))

every_sentence = pytest.mark.parametrize(("name", "facts"), SENTENCES.items(), ids=SENTENCES)


def places(facts: dict[str, Any]) -> set[Place]:
    """What a sentence is about, of the made-up curves."""
    sizes = {method: range(low, high + 1) for method, (low, high) in facts["sizes"].items()}
    return {
        place
        for place in as_the_paper_says().results
        if place.exhibit in facts["exhibits"] and place.metric in facts["metrics"]
        if place.at in sizes.get(place.method, ())
    }


def test_every_claim_about_trained_networks_has_its_sentence() -> None:
    assert SENTENCES.keys() == CLAIMS.keys() - about_depth.INITIALIZATION.keys()


@needs_paper
@every_sentence
def test_sentences_are_the_papers(name: str, facts: dict[str, Any]) -> None:
    assert " ".join(facts["sentence"].split()) in " ".join(PAPER.read_text(encoding="utf-8").split()), name


@every_sentence
def test_a_claim_reads_what_its_sentence_is_about(name: str, facts: dict[str, Any]) -> None:
    """And no more: what it reads leaves it open if it is missing, or of other data where numbers count."""
    claim, read = CLAIMS[name], set()
    assert [*claim.exhibits] == facts["exhibits"]
    measured = {
        place: r for place, r in as_the_paper_says().results.items() if place.exhibit in claim.exhibits
    }
    for place, found in measured.items():
        without = {other: each for other, each in measured.items() if other != place}
        reserved = {**measured, place: replace(found, reservation="of other data")}
        states = [claim.check(MeasurementSet(results)).state for results in (without, reserved)]
        if "not decided yet" in states:
            read.add(place)
    assert read == places(facts)


@every_sentence
def test_a_claim_needs_enough_batch_sizes(name: str, facts: dict[str, Any]) -> None:
    sizes = {method: sorted({p.at for p in places(facts) if p.method == method}) for method in facts["sizes"]}
    few = {
        place: found
        for place, found in as_the_paper_says().results.items()
        if place.at in sizes.get(place.method, [])[: facts.get("fewest", 0) - 1]
    }
    assert CLAIMS[name].check(MeasurementSet(few)).state == "not decided yet"


@pytest.mark.parametrize("peak", [2**n for n in range(11)])
@pytest.mark.parametrize(
    ("claim", "exhibit", "published"),
    [
        ("batchnorm-accuracy-peaks-at-intermediate-batch", "figure4", 64),
        ("cifar100-batchnorm-accuracy-peaks-at-16", "figure8", 16),
    ],
)
def test_a_peak_is_within_a_factor_of_two_of_the_papers(
    claim: str, exhibit: str, published: int, peak: int
) -> None:
    curve = {
        Place(exhibit, "batchnorm", at): result("test_accuracy", 95 - abs(math.log2(at / peak)))
        for at in (2**n for n in range(11))
    }
    near = published / 2 <= peak <= published * 2
    assert CLAIMS[claim].check(MeasurementSet(curve)).state == ("holds" if near else "does not hold")


# Differences in points, and what the paper calls them.
NO_MATCH = 0.6  # Regularized SkipInit against batch norm on ResNet50-V2 at 256: "higher"
SLIGHT = 1.2  # Fixup against batch norm on ResNet50-V1 at 256: "slightly worse"
CONSIDERABLE = 2.6  # the scalar bias on ResNet50-V1 at 4096: "improves considerably"


@pytest.mark.parametrize(
    ("claim", "exhibit", "first", "second", "at", "lead", "expected"),
    [
        ("imagenet-all-match-at-256", "table2", "batchnorm", "fixup", 256, NO_MATCH, "does not hold"),
        ("imagenet-all-match-at-256", "table2", "batchnorm", "skipinit", 256, -NO_MATCH, "does not hold"),
        (
            "imagenet-fixup-ahead-at-large-batch",
            "table2",
            "fixup",
            "skipinit",
            256,
            NO_MATCH,
            "does not hold",
        ),
        (
            "imagenet-biases-help-skipinit",
            "table2",
            "skipinit",
            "skipinit without biases",
            256,
            SLIGHT,
            "holds",
        ),
        (
            "imagenet-biases-help-skipinit",
            "table2",
            "skipinit",
            "skipinit without biases",
            256,
            CONSIDERABLE,
            "does not hold",
        ),
        ("skipinit-slightly-below-batchnorm", "table1", "batchnorm", "skipinit", 16, SLIGHT, "holds"),
        (
            "skipinit-slightly-below-batchnorm",
            "table1",
            "batchnorm",
            "skipinit",
            16,
            CONSIDERABLE,
            "does not hold",
        ),
        (
            "v1-fixup-slightly-worse-at-small-batch",
            "table7",
            "batchnorm",
            "fixup",
            256,
            CONSIDERABLE,
            "does not hold",
        ),
        (
            "v1-fixup-considerably-worse-at-large-batch",
            "table7",
            "batchnorm",
            "fixup",
            4096,
            SLIGHT,
            "does not hold",
        ),
        (
            "v1-skipinit-needs-identity-skips",
            "table7",
            "fixup",
            "regularized-skipinit",
            256,
            SLIGHT,
            "does not hold",
        ),
        (
            "v1-scalar-bias-helps",
            "table7",
            "regularized-skipinit scalar bias",
            "regularized-skipinit",
            256,
            SLIGHT,
            "does not hold",
        ),
        (
            "v1-scalar-bias-closes-the-gap-to-fixup",
            "table7",
            "fixup",
            "regularized-skipinit scalar bias",
            256,
            NO_MATCH,
            "does not hold",
        ),
        ("cifar100-unnormalized-not-competitive", "figure7", "skipinit", "none", 32, CONSIDERABLE, "holds"),
        ("cifar100-unnormalized-not-competitive", "figure7", "skipinit", "none", 32, SLIGHT, "does not hold"),
        (
            "cifar100-regularized-skipinit-competitive-at-moderate-batches",
            "figure8",
            "batchnorm",
            "regularized-skipinit",
            64,
            SLIGHT,
            "holds",
        ),
        (
            "cifar100-regularized-skipinit-competitive-at-moderate-batches",
            "figure8",
            "batchnorm",
            "regularized-skipinit",
            64,
            CONSIDERABLE,
            "does not hold",
        ),
    ],
)
def test_words_of_degree_are_the_papers(
    claim: str, exhibit: str, first: str, second: str, at: int, lead: float, expected: str
) -> None:
    measured = as_the_paper_says().results
    behind = Place(exhibit, second, at)
    value = measured[Place(exhibit, first, at)].value - lead
    found = CLAIMS[claim].check(MeasurementSet({**measured, behind: result("test_accuracy", value)}))
    assert found.state == expected, found.words


@pytest.mark.parametrize(
    ("claim", "figure", "column", "law", "expected"),
    [
        # Zeros around 8 x 8 maps take 2 of 24 inputs of a 3 x 3 kernel along each axis: (22/24)^2 is left.
        ("convolutional-variance-grows-with-depth", "figure2c", "skip_variance", lambda n: 0.84 * n, True),
        ("convolutional-variance-grows-with-depth", "figure2c", "skip_variance", float, False),
        ("convolutional-variance-grows-with-depth", "figure2c", "skip_variance", lambda n: 0.6 * n, False),
        (
            "convolutional-moving-variance-is-smaller",
            "figure2c",
            "moving_variance",
            lambda n: 0.95 * n,
            False,
        ),
        (
            "convolutional-moving-variance-is-smaller",
            "figure2c",
            "moving_variance",
            lambda n: n / (n + 9),
            False,
        ),
        # Squared moving mean over moving variance with ReLUs, (1/π) / (1 - 1/π) = 0.47, is not close to zero.
        ("linear-moving-mean-is-zero", "figure2b", "squared_moving_mean", lambda n: 0.47 * n, False),
        ("normalization-divides-by-root-depth", "figure2b", "moving_variance", lambda n: 0.68 * n, False),
        ("relu-variances-as-derived", "figure5", "branch_variance", lambda _: 0.5, False),
        ("relu-variances-as-derived", "figure5", "skip_variance", lambda n: 0.68 * n, False),
        ("l2-dominates-the-initial-loss", "initial-loss", "l2_term", lambda _: 2.31, True),
        ("l2-dominates-the-initial-loss", "initial-loss", "l2_term", lambda _: 2.29, False),
    ],
)
def test_laws_at_initialization(
    claim: str, figure: str, column: str, law: Callable[[float], float], expected: bool
) -> None:
    """Cross entropy starts at ln 10 = 2.303."""
    rows = rows_by_theory()
    rows[figure] = [{**row, column: law(row["depth"])} for row in rows[figure]]
    found = CLAIMS[claim].check(MeasurementSet(rows=rows))
    assert found.state == ("holds" if expected else "does not hold"), found.words
