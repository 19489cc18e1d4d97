"""The verdict of a probe in sentences, and the rules of `report.check`, which a test suite can call."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..errors import ConfigError, SkipinitError, unknown_name
from .growth import Growth, fit_growth
from .laws import Prediction, predict, stages
from .rendering import percent

if TYPE_CHECKING:
    from .balance import ProbeReport, ProbeRow
    from .residual import ResidualAdd

Law = Literal["constant", "linear", "exponential"]
BIASED_BELOW = 1 / 3
"""A typical branch share under this is a bias towards the identity; equal operands have 1/2."""
EXPLODING_FROM = 1.2
"""Growth per block from which depth is limited: 1.2^100 is 10^8. From its inverse on the signal vanishes."""
BEYOND_USE = 100.0
"""An exponential change by more than this factor in all limits depth, however slow, in whichever stage."""
_FAR_BELOW = 10.0
"""The factor from which on it is said why a network is below the theory's mean."""


@dataclass(frozen=True)
class Verdict:
    """The conclusions from the rows. The first three are None if there are no rows."""

    biased_to_identity: bool | None
    typical_branch_share: float | None
    """Median over the blocks."""
    least_balanced: str | None
    """The block whose branch share is farthest from one half."""
    growth: Growth
    text: str
    """The verdict in sentences."""

    def __str__(self) -> str:
        return self.text


def judge(report: ProbeReport) -> Verdict:
    """The verdict over all rows."""
    rows = report.rows
    if not rows:
        return Verdict(None, None, None, Growth("unknown", None, 0), _explain_no_rows(report))
    share = median(row.branch_share for row in rows)
    worst = max(rows, key=lambda row: abs(row.branch_share - 0.5))
    run, growth = _telling_run(report)
    doubtful = [add.name for add in report.adds if add.doubt]
    sentences = [
        _say_bias(share),
        *([_say_worst(worst)] if any(row.branch_share != worst.branch_share for row in rows) else []),
        *([_say_doubt(report.adds, doubtful)] if doubtful else []),
        _say_growth(growth),
        _say_theory(predict(report), rows),
        _advise(report, growth, share, idle=all(rows[index].branch_variance == 0 for index in run)),
    ]
    if report.first_nonfinite:
        sentences.insert(0, f"NaN or infinity first appears in {report.first_nonfinite}; rows end before it.")
    return Verdict(share < BIASED_BELOW, share, worst.name, growth, "\n".join(sentences))


def _telling_run(report: ProbeReport) -> tuple[list[int], Growth]:
    """The blocks in a row that the verdict is about, and their growth.

    Variance simply adds up only where no projection lies between the blocks. So that is the longest such run,
    unless a shorter one changes the signal beyond use.
    """
    rows = report.rows
    fits = [
        (run, fit_growth([rows[i].skip_variance for i in run], [rows[i].branch_variance for i in run]))
        for run in stages(report.adds)
    ]
    return max([fit for fit in fits if _is_beyond_use(fit[1])] or fits, key=lambda fit: len(fit[0]))


def _is_beyond_use(growth: Growth) -> bool:
    return abs(math.log(_rate(growth))) * (growth.blocks - 1) > math.log(BEYOND_USE)


def _limits_depth(growth: Growth) -> bool:
    """Whether the signal explodes or vanishes: much in each block, or much in all."""
    return max(_rate(growth), 1 / _rate(growth)) >= EXPLODING_FROM or _is_beyond_use(growth)


def _rate(growth: Growth) -> float:
    """The factor per block; 1 if the growth is not exponential."""
    return growth.rate if growth.law == "exponential" and growth.rate else 1.0


def _explain_no_rows(report: ProbeReport) -> str:
    if report.first_nonfinite:
        return f"NaN or infinity appears in the first block, {report.first_nonfinite}: no rows to show."
    additions = "none"
    if report.rejected:
        reasons = "; ".join(f"{count} because {reason}" for reason, count in report.rejected.items())
        additions = f"{sum(report.rejected.values())}, rejected {reasons}"
    return (
        f"{report.model} has no residual add, x + f(x) with layers in f. "
        f"Operations on these inputs: {report.operations}. Additions: {additions}."
    )


def _say_bias(share: float) -> str:
    bias = "Biased" if share < BIASED_BELOW else "Not biased"
    given = f"the typical branch gives {percent(share)} of its block's output variance"
    return f"{bias} towards the identity: {given}."


def _say_worst(worst: ProbeRow) -> str:
    share = percent(worst.branch_share)
    return f"Least balanced: {worst.name}, whose branch gives {share} of the output variance."


def _say_doubt(adds: Sequence[ResidualAdd], doubtful: Sequence[str]) -> str:
    readings = dict.fromkeys(add.doubt for add in adds if add.doubt)
    blocks = "block" if len(doubtful) == 1 else "blocks"
    return f"Doubtful: {len(doubtful)} {blocks}, the first {doubtful[0]}: {'; '.join(map(str, readings))}."


def _say_growth(growth: Growth) -> str:
    where = f"over {growth.blocks} blocks in a row"
    match growth.law:
        case "exponential":
            return f"The variance changes exponentially with depth, {growth.rate:.3g}-fold a block {where}."
        case "linear":
            return f"The variance changes linearly with depth, by {growth.rate:+.3g} a block {where}."
        case "settling":
            return f"The variance settles with depth, at about {growth.rate:.3g}, {where}."
        case "constant":
            return f"The variance stays constant with depth, at about {growth.rate:.3g} {where}."
    if growth.blocks < 3:
        return "Too few blocks in a row to tell how the variance grows with depth."
    return f"The variance is 0 somewhere {where}, which does not tell how it grows with depth."


def _say_theory(prediction: Prediction | None, rows: Sequence[ProbeRow]) -> str:
    if prediction is None:
        return "The paper's theory makes no prediction for these blocks."
    last, skip, share = rows[-1], prediction.skip[-1], percent(prediction.share[-1])
    # Factors multiply from block to block: a few networks that are far above the others make the mean.
    far = skip > _FAR_BELOW * last.skip_variance
    note = " Narrow networks are typically far below this mean." if far else ""
    return (
        f"Theory ({prediction.law}; the mean over He's weights): the last block's skip variance is "
        f"{skip:.3g}, its branch share {share}; measured {last.skip_variance:.3g} and "
        f"{percent(last.branch_share)}.{note}"
    )


def _advise(report: ProbeReport, growth: Growth, share: float, idle: bool) -> str:
    limited = _limits_depth(growth)
    exploding = limited and _rate(growth) > 1
    if exploding and idle:
        return (
            "Advice: the branches contribute nothing yet, so the variance changes on the skip path: look at "
            "the layers and scales there."
        )
    if exploding or report.first_nonfinite:
        blocks = report.num_blocks
        return (
            "Advice: scale each branch by a learned scalar that starts at 0 (SkipInit) or at most "
            f"1/sqrt({blocks}) = {blocks**-0.5:.2g}, or normalize it; without either, deep networks do not "
            "train."
        )
    if limited:
        return (
            "Advice: the signal vanishes with depth; look at the factors, gates and layers on the skip path: "
            "a skip that is the identity keeps it."
        )
    if share < BIASED_BELOW:
        depth = "this depth" if growth.law == "exponential" else "any depth"
        return f"Advice: none; blocks near the identity keep the signal, forward and backward, at {depth}."
    normalized = all(add.normalized for add in report.adds)
    shallow = report.num_blocks < 20
    if shallow and normalized and growth.law != "settling":
        return (
            "Advice: none; normalized branches add the same variance in each block, so deeper blocks come "
            "nearer to the identity."
        )
    if shallow:
        remedy = "scale" if normalized else "scale or normalize"
        return f"Advice: none at this depth; before going much deeper, {remedy} the branches."
    remedy = "" if normalized else " or normalize them"
    return (
        "Advice: the branches weigh as much as the skips; if training stalls, scale them by a learned scalar "
        f"that starts at 0 (SkipInit){remedy}."
    )


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
        self.model = model
        self.violations = tuple(violations)

    def __reduce__(self) -> tuple[type[CheckError], tuple[str, tuple[Violation, ...]]]:
        """Processes send exceptions to each other as pickles."""
        return type(self), (self.model, self.violations)


def check_report(
    report: ProbeReport, share: tuple[float, float] | None, growth: Law | None, finite: bool
) -> None:
    """Raise `CheckError` with every rule that the report breaks."""
    if share is not None and not _is_range(share):
        raise ConfigError(
            f"share={share!r} is not a range; give two numbers from 0 to 1, the smaller one first"
        )
    if growth is not None and growth not in get_args(Law):
        raise unknown_name("growth", str(growth), get_args(Law))
    violations = list(_violations(report, share, growth, finite))
    if violations:
        raise CheckError(report.model, violations)


def _is_range(share: Any) -> bool:
    pair = isinstance(share, (tuple, list)) and len(share) == 2 and all(isinstance(n, Real) for n in share)
    return pair and bool(0 <= share[0] <= share[1] <= 1)


def _violations(
    report: ProbeReport, share: tuple[float, float] | None, growth: Law | None, finite: bool
) -> Iterator[Violation]:
    if not report.num_blocks:
        yield Violation("blocks", (), "there is no residual add to check")
    if finite and (name := report.first_nonfinite) is not None:
        yield Violation("finite", (name,), f"NaN or infinity first appears in {name}")
    if share is not None:
        yield from _check_share(report, *share)
    if report.rows and growth is not None:
        yield from _check_growth(report, growth)


def _check_share(report: ProbeReport, low: float, high: float) -> Iterator[Violation]:
    outside = {row.name: row.branch_share for row in report.rows if not low <= row.branch_share <= high}
    if outside:
        named = ", ".join(f"{name} ({share:.3g})" for name, share in list(outside.items())[:3])
        more = f" and {len(outside) - 3} more" if len(outside) > 3 else ""
        text = f"the branch share is outside {low:g} to {high:g} in {named}{more}"
        yield Violation("share", tuple(outside), text)


def _check_growth(report: ProbeReport, allowed: Law) -> Iterator[Violation]:
    run, found = _telling_run(report)
    # Slow exponentials look like lines: the verdict warns of the same ones.
    law = "linear" if found.law == "exponential" and not _limits_depth(found) else found.law
    order: tuple[str, ...] = ("unknown", "constant", "settling", "linear", "exponential")
    if order.index(law) > order.index(allowed):
        change = "settles" if found.law == "settling" else f"changes {found.law}ly"
        first, last = report.rows[run[0]], report.rows[run[-1]]
        yield Violation(
            "growth",
            tuple(report.rows[index].name for index in run),
            f"the skip variance {change}, from {first.skip_variance:.3g} in {first.name} to "
            f"{last.skip_variance:.3g} in {last.name}; allowed is {allowed}",
        )
