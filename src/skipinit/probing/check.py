"""`report.check`: the balance as a line of someone's tests, which fails with the blocks that break it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from ..errors import ConfigError, SkipinitError, unknown_name
from .laws import stages
from .verdict import EXPLODING_FROM

if TYPE_CHECKING:
    from .balance import ProbeReport
    from .verdict import Growth

Law = Literal["constant", "linear", "exponential"]


@dataclass(frozen=True)
class Violation:
    """One rule that a report breaks."""

    rule: Literal["blocks", "finite", "share", "growth"]
    blocks: tuple[str, ...]
    """The names of the blocks that break it."""
    text: str

    def __str__(self) -> str:
        return self.text


class CheckError(SkipinitError, AssertionError):
    """A report breaks the rules of `report.check`: exit code 1."""

    def __init__(self, model: str, violations: Sequence[Violation]) -> None:
        super().__init__(f"{model}: {'; '.join(map(str, violations))}")
        self.violations = tuple(violations)


def check_report(
    report: ProbeReport, share: tuple[float, float] | None, growth: Law | None, finite: bool
) -> None:
    """Raise `CheckError` with every rule that the report breaks."""
    if share is not None and not 0 <= share[0] <= share[1] <= 1:
        raise ConfigError(
            f"share={share} is not a range; give two numbers from 0 to 1, the smaller one first"
        )
    if growth is not None and growth not in get_args(Law):
        raise unknown_name("growth", growth, get_args(Law))
    found = [_check_rows(report), _check_finite(report) if finite else None]
    if report.rows and share is not None:
        found.append(_check_share(report, *share))
    if report.rows and growth is not None:
        found.append(_check_growth(report, growth))
    violations = [violation for violation in found if violation is not None]
    if violations:
        raise CheckError(report.model, violations)


def _check_rows(report: ProbeReport) -> Violation | None:
    if report.num_blocks:
        return None
    return Violation("blocks", (), "there is no residual add to check")


def _check_finite(report: ProbeReport) -> Violation | None:
    name = report.first_nonfinite
    return None if name is None else Violation("finite", (name,), f"NaN or infinity first appears in {name}")


def _check_share(report: ProbeReport, low: float, high: float) -> Violation | None:
    outside = {row.name: row.branch_share for row in report.rows if not low <= row.branch_share <= high}
    if not outside:
        return None
    named = ", ".join(f"{name} ({share:.3g})" for name, share in list(outside.items())[:3])
    more = f" and {len(outside) - 3} more" if len(outside) > 3 else ""
    return Violation(
        "share", tuple(outside), f"the branch share is outside {low:g} to {high:g} in {named}{more}"
    )


def _check_growth(report: ProbeReport, allowed: Law) -> Violation | None:
    found: Growth = report.verdict.growth
    # Slow exponentials look like lines: the verdict warns from the same rate on.
    rate = found.rate or 1.0
    slow = found.law == "exponential" and 1 / EXPLODING_FROM < rate < EXPLODING_FROM
    law = "linear" if slow else found.law
    order: tuple[str, ...] = ("unknown", *get_args(Law))
    if order.index(law) <= order.index(allowed):
        return None
    run = max(stages(report.adds), key=len)
    first, last = report.rows[run[0]], report.rows[run[-1]]
    return Violation(
        "growth",
        tuple(report.rows[index].name for index in run),
        f"the skip variance changes {found.law}ly, from {first.skip_variance:.3g} in {first.name} to "
        f"{last.skip_variance:.3g} in {last.name}; allowed is {allowed}",
    )
