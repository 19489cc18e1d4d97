"""Every claim holds in the paper's numbers or in curves drawn as its text says; each can be contradicted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from skipinit.paper.claims import CLAIMS, about_batches, about_depth, check_all
from skipinit.paper.claims.claim import Claim, Verdict, all_of, missing, verdict
from skipinit.paper.published import Address, Measurements, exhibits, published_measurements
from support.paper_worlds import as_the_paper_says, contradicting_worlds, outcome, rows_by_theory

PAPER = Path(os.environ.get("SKIPINIT_PAPER", Path(__file__).parents[3] / "shared" / "paper" / "paper.tex"))

TABLE_CLAIMS = [*about_depth.DEPTH, *about_depth.IMAGENET]
# The text states these, no table prints their numbers.
UNPRINTED = {"imagenet-biases-help-skipinit", "either-fixup-component-suffices"}

every_claim = pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)


@every_claim
def test_holds_where_all_is_as_the_paper_says(claim: Claim) -> None:
    assert claim.check(as_the_paper_says()).state == "holds", claim.check(as_the_paper_says()).evidence


@every_claim
def test_can_be_contradicted(claim: Claim) -> None:
    states = [claim.check(world).state for world in contradicting_worlds()]
    assert "does not hold" in states


@every_claim
def test_nothing_measured_decides_nothing(claim: Claim) -> None:
    found = claim.check(Measurements())
    assert found.state == "not measured yet"
    assert found.evidence.startswith("missing: ")


def test_the_published_numbers_bear_out_the_text() -> None:
    """Of their own claims the tables answer all but those on networks that they leave out; no figure does."""
    found = check_all(published_measurements())
    expected = {claim.id for claim in TABLE_CLAIMS} - UNPRINTED
    assert {name for name, verdict in found.items() if verdict.state == "holds"} == expected
    assert {verdict.state for verdict in found.values()} == {"holds", "not measured yet"}


@pytest.mark.parametrize(
    "claim", [c for c in TABLE_CLAIMS if c.id not in UNPRINTED], ids=lambda claim: claim.id
)
def test_every_cell_of_a_claim_counts(claim: Claim) -> None:
    """Without it the claim is open; with another result in its place it can be contradicted."""
    cells = dict(published_measurements().cells)
    read = []
    for address in cells:
        rest = {at: cell for at, cell in cells.items() if at != address}
        if claim.check(Measurements(rest)).state == "holds":
            continue
        read.append(address)
        assert claim.check(Measurements(rest)).state == "not measured yet"
        others = [outcome(address.exhibit, value, 2.0**-9) for value in (None, 11.0, 99.0)]
        states = [claim.check(Measurements(rest | {address: other})).state for other in others]
        assert "does not hold" in states, address
    assert {address.exhibit for address in read} == set(claim.exhibits)


@pytest.mark.skipif(not PAPER.is_file(), reason="the paper's source is not here; set SKIPINIT_PAPER")
def test_sections_exist() -> None:
    main, appendix = PAPER.read_text(encoding="utf-8").split(r"\appendix")
    known = set()
    for text, names in ((main, "123456789"), (appendix, "ABCDEFGHI")):
        section, subsection = -1, 0
        for command in re.findall(r"^\\((?:sub)?section)\{", text, re.MULTILINE):
            section, subsection = (section + 1, 0) if command == "section" else (section, subsection + 1)
            known.add(f"{names[section]}.{subsection}" if subsection else names[section])
    assert known >= {claim.section for claim in CLAIMS.values()}
    assert known >= {exhibit.section for exhibit in exhibits().values()}


def test_every_table_and_figure_is_claimed() -> None:
    """The caption of Table 6 repeats that of Table 5; every other one supports a statement of its own."""
    claimed = {exhibit for claim in CLAIMS.values() for exhibit in claim.exhibits}
    assert claimed == (set(exhibits()) - {"table6"}) | set(rows_by_theory())


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
    found = CLAIMS["skipinit-slightly-below-batchnorm"].check(published_measurements())
    assert found.evidence.startswith("Table 1, depth 16: batchnorm 93.5 ± 0.1 against skipinit 93.3 ± 0.1; ")
    cells = dict(published_measurements().cells)
    cells[Address("table1", "skipinit", 1000)] = outcome("table1", None)
    found = CLAIMS["skipinit-trains-at-any-depth"].check(Measurements(cells))
    assert found.state == "does not hold"
    assert found.evidence.startswith("Table 1, depth 1000: skipinit failed at 15 rates from 2^-13 to 2^1; ")


def test_verdicts_combine() -> None:
    good, bad, gone = verdict(True, "good"), verdict(False, "bad"), missing("one")
    assert all_of([good, gone, bad]) == Verdict("does not hold", "bad; good")
    assert all_of([good, gone, gone]) == Verdict("not measured yet", "missing: one; good")
    assert all_of([good, good]) == Verdict("holds", "good")


def test_claims_need_no_torch() -> None:
    code = "import sys, skipinit.paper.claims; print({'torch', 'numpy', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("set()", "")
