"""Every claim holds in the paper's numbers or in curves drawn as its text says; each can be contradicted."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace

import pytest

from skipinit.paper.claims import CLAIMS, about_batches, about_depth
from skipinit.paper.claims.claim import Claim, Finding, MeasurementSet, all_of, decided, missing
from skipinit.paper.exhibits import EXHIBITS, BestRate, Place
from support.measurement_sets import as_the_paper_says, contradicting_sets, published, result, rows_by_theory
from support.paper_source import PAPER, needs_paper

TABLE_CLAIMS = {**about_depth.DEPTH, **about_depth.IMAGENET}
# The text states these, no table prints their numbers.
UNPRINTED = {"imagenet-biases-help-skipinit", "either-fixup-component-suffices"}

every_claim = pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)


@every_claim
def test_holds_where_all_is_as_the_paper_says(claim: Claim) -> None:
    found = claim.check(as_the_paper_says())
    assert found.state == "holds", found.words


@every_claim
def test_can_be_contradicted(claim: Claim) -> None:
    states = [claim.check(measured).state for measured in contradicting_sets()]
    assert "does not hold" in states


@every_claim
def test_nothing_measured_decides_nothing(claim: Claim) -> None:
    found = claim.check(MeasurementSet())
    assert found.state == "not decided yet"
    assert found.words.startswith("missing: ")


def test_the_published_numbers_bear_out_the_text() -> None:
    """Of their own claims the tables answer all but those on networks that they leave out; no figure does."""
    states = {name: claim.check(MeasurementSet(published())).state for name, claim in CLAIMS.items()}
    expected = set(TABLE_CLAIMS) - UNPRINTED
    assert {name for name, state in states.items() if state == "holds"} == expected
    assert set(states.values()) == {"holds", "not decided yet"}


@pytest.mark.parametrize("name", sorted(TABLE_CLAIMS.keys() - UNPRINTED))
def test_every_cell_of_a_claim_counts(name: str) -> None:
    """Without it the claim is open; with another result in its place it can be contradicted."""
    claim, results = CLAIMS[name], published()
    read = []
    for place in results:
        rest = {other: found for other, found in results.items() if other != place}
        if claim.check(MeasurementSet(rest)).state == "holds":
            continue
        read.append(place)
        assert claim.check(MeasurementSet(rest)).state == "not decided yet"
        others = [result(place.metric, value, 2.0**-9) for value in (None, 11.0, 99.0)]
        states = [claim.check(MeasurementSet(rest | {place: other})).state for other in others]
        assert "does not hold" in states, place
    assert {place.exhibit for place in read} == set(claim.exhibits)


@needs_paper
def test_sections_exist() -> None:
    main, appendix = PAPER.read_text(encoding="utf-8").split(r"\appendix")
    known = set()
    for text, names in ((main, "123456789"), (appendix, "ABCDEFGHI")):
        section, subsection = -1, 0
        for command in re.findall(r"^\\((?:sub)?section)\{", text, re.MULTILINE):
            section, subsection = (section + 1, 0) if command == "section" else (section, subsection + 1)
            known.add(f"{names[section]}.{subsection}" if subsection else names[section])
    assert known >= {claim.section for claim in CLAIMS.values()}
    assert known >= {exhibit.section for exhibit in EXHIBITS.values()}


def test_every_table_and_figure_is_claimed() -> None:
    """The caption of Table 6 repeats that of Table 5; every other one supports a statement of its own."""
    claimed = {exhibit for claim in CLAIMS.values() for exhibit in claim.exhibits}
    only_probed = {"figure2"}
    assert claimed == (set(EXHIBITS) - {"table6"} - only_probed) | set(rows_by_theory())


def test_ids_are_unique() -> None:
    subjects = (
        about_depth.INITIALIZATION,
        about_depth.DEPTH,
        about_batches.BATCH_SIZE,
        about_batches.REGULARIZATION,
        about_depth.IMAGENET,
    )
    assert len(CLAIMS) == sum(map(len, subjects))


def test_evidence_is_in_numbers() -> None:
    found = CLAIMS["skipinit-slightly-below-batchnorm"].check(MeasurementSet(published()))
    assert "; batchnorm 93.5 ± 0.1 against skipinit 93.3 ± 0.1 at depth 16; " in found.words
    assert found.words.count("Table 1") == 1
    failing = published() | {Place("table1", "skipinit", 1000): result("test_accuracy", None)}
    found = CLAIMS["skipinit-trains-at-any-depth"].check(MeasurementSet(failing))
    assert found.state == "does not hold"
    assert found.words.startswith("Table 1: skipinit failed at 15 rates from 2^-13 to 2^1 at depth 1000. As")


def test_a_criterion_says_where_it_must_be_so() -> None:
    loss = CLAIMS["skipinit-lower-training-loss"].criterion
    assert loss == (
        "Figure 3 (loss), every batch size measured from 1 to 512: skipinit has a lower loss than batchnorm"
    )
    slightly = CLAIMS["skipinit-slightly-below-batchnorm"].criterion
    assert slightly == (
        "Table 1, depth 16, 100, 1000: batchnorm has a higher accuracy than skipinit alpha=1/sqrt(d), by at "
        "most 1.5 points; batchnorm has a higher accuracy than skipinit, by at most 1.5 points"
    )


@pytest.mark.parametrize(
    ("claim", "method"),
    [
        ("small-batch-rate-proportional", "none"),
        ("small-batch-rates-similar", "none"),
        ("large-batch-rate-constant", "skipinit"),
        ("large-batch-batchnorm-uses-larger-rates", "skipinit"),
    ],
)
def test_best_rates_for_the_loss_count_as_those_for_the_accuracy(claim: str, method: str) -> None:
    """Section 3 speaks of Figures 3c and 3d alike."""
    measured = as_the_paper_says()
    for metric in ("test_accuracy", "train_loss"):
        changed = {
            place: replace(found, rate=BestRate(8.0 * place.at**2, 8.0 * place.at**2, 8.0 * place.at**2))
            for place, found in measured.results.items()
            if (place.exhibit, place.method, place.metric) == ("figure3", method, metric)
        }
        assert changed
        found = CLAIMS[claim].check(MeasurementSet({**measured.results, **changed}))
        assert found.state == "does not hold"


def test_both_starts_of_skipinit_are_slightly_below_batch_norm() -> None:
    for start in ("skipinit", "skipinit alpha=1/sqrt(d)"):
        ahead = {Place("table1", start, 100): result("test_accuracy", 95.0)}
        found = CLAIMS["skipinit-slightly-below-batchnorm"].check(MeasurementSet(published() | ahead))
        assert found.state == "does not hold"


def test_findings_combine() -> None:
    good, bad, gone = decided(True, "good"), decided(False, "bad"), missing("one")
    assert all_of([good, gone, bad]) == Finding("does not hold", "bad. As the paper says: good")
    assert all_of([bad, gone]) == Finding("does not hold", "bad")
    assert all_of([good, gone, gone]) == Finding("not decided yet", "missing: one. As the paper says: good")
    assert all_of([good, good]) == Finding("holds", "good")
    one, two = (Finding("holds", words, "Table 1") for words in "ab")
    other = Finding("holds", "a", "Table 3")
    assert all_of([one, other, two]) == Finding("holds", "Table 1: a; b; Table 3: a")


def test_claims_need_no_torch() -> None:
    code = "import sys, skipinit.paper.claims; print({'torch', 'numpy', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("set()", "")
