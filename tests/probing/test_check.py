"""A report as a test: which rules it keeps, and which blocks break them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from skipinit.errors import ConfigError, SkipinitError
from skipinit.nets.create import create_model
from skipinit.probing.check import CheckError
from skipinit.probing.measure import probe
from support.probe_models import Function, vectors

BATCH = torch.Size([100, 50])


def theory_net(name, blocks=12):
    return probe(create_model(name, blocks=blocks, width=50, in_channels=50, seed=0), BATCH)


def broken(report, **rules):
    with pytest.raises(CheckError) as raised:
        report.check(**rules)
    assert isinstance(raised.value, SkipinitError)
    assert isinstance(raised.value, AssertionError)
    return raised.value


def test_growth_follows_the_papers_laws():
    """Unnormalized variance doubles a block, normalized variance grows by one."""
    exploding, normalized = theory_net("fc_linear"), theory_net("fc_linear_bn")
    normalized.check()
    normalized.check(growth="exponential")
    exploding.check(growth=None)
    exploding.check(growth="exponential")
    (violation,) = broken(exploding).violations
    assert (violation.rule, violation.blocks) == ("growth", tuple(row.name for row in exploding.rows))
    assert "changes exponentially" in str(violation)
    assert broken(normalized, growth="constant").violations[0].rule == "growth"


def test_shares_name_the_blocks_outside():
    report = theory_net("fc_linear_bn")
    shares = {row.name: row.branch_share for row in report.rows}
    limit = (report.rows[3].branch_share + report.rows[4].branch_share) / 2
    report.check(share=(min(shares.values()), max(shares.values())))
    (violation,) = broken(report, share=(0, limit)).violations
    assert violation.blocks == tuple(name for name, share in shares.items() if share > limit)
    assert f"{report.rows[0].name} ({report.rows[0].branch_share:.3g})" in str(violation)


def test_several_rules_are_told_at_once():
    error = broken(theory_net("fc_linear"), share=(0, 0.1))
    assert {violation.rule for violation in error.violations} == {"share", "growth"}
    assert str(error).count("\n") == 0


def test_infinity_is_named():
    report = probe(Function(lambda m, x: (y := x + m.a(x)) + m.b(y) * float("inf")), vectors(8))
    (violation,) = broken(report).violations
    assert (violation.rule, violation.blocks) == ("finite", (report.first_nonfinite,))
    report.check(finite=False)


def test_nothing_to_check_is_a_failure():
    assert "no residual add" in str(broken(probe(nn.Linear(6, 6), vectors(4))))


@pytest.mark.parametrize("rules", [{"share": (0.5, 0.1)}, {"share": (0, 2)}, {"growth": "cubic"}])
def test_wrong_rules_are_one_line(rules):
    with pytest.raises(ConfigError, match=r"is not a range|'cubic' is not known"):
        theory_net("fc_linear", 3).check(**rules)
