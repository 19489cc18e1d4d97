"""The result of a probe: one row per residual block, and what the rows say about the network."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from ..extras import need
from .laws import Prediction, predict, stages

if TYPE_CHECKING:
    from .adds import ResidualAdd

BIASED_BELOW = 1 / 3
"""A typical branch share under this is a bias towards the identity; equal operands have 1/2."""
CONSTANT_WITHIN = 1.25
"""A fitted line that changes by less than this factor over the blocks it was fitted to is constant."""
EXPLODING_FROM = 1.2
"""Growth per block from which depth is limited: 1.2^100 is 10^8."""


@dataclass(frozen=True, slots=True)
class ProbeRow:
    """One residual block. Variances are over all values of a tensor: examples, positions and channels."""

    name: str
    depth: int
    """l, counted from 1."""
    skip_variance: float
    branch_variance: float
    """At the end of the branch, after its scalar."""
    branch_variance_before_scalar: float | None
    """None if nothing multiplies the end of the branch."""
    output_variance: float
    """Of the sum; the next two add up to it."""
    channel_variance: float
    """Mean over channels of the variance within one."""
    channel_mean_variance: float
    """Variance of the channels' means."""
    moving_variance: float | None
    """Of the branch's first batch norm, updated once by these inputs: mean over channels, biased."""
    squared_moving_mean: float | None
    """Of the same norm: mean over channels of the squared moving mean."""
    gradient_norm: float | None = None
    """Of the loss with respect to the block's output."""
    parameter_gradient_norm: float | None = None
    """Of the loss with respect to all parameters on the block's paths."""

    @property
    def branch_share(self) -> float:
        """branch / (skip + branch): the branch's fraction of the output variance, if uncorrelated."""
        total = self.skip_variance + self.branch_variance
        return self.branch_variance / total if total else 0.0

    @property
    def is_finite(self) -> bool:
        """Whether neither operand nor the sum holds NaN or infinity."""
        return math.isfinite(self.skip_variance + self.branch_variance + self.output_variance)

    def to_dict(self) -> dict[str, Any]:
        """All fields and the branch share; values that JSON cannot hold become None."""
        values = {**dataclasses.asdict(self), "branch_share": self.branch_share}
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }


@dataclass(frozen=True)
class Growth:
    """How the skip variance changes from block to block."""

    law: Literal["exponential", "linear", "constant", "unknown"]
    rate: float | None
    """Factor per block if exponential; increase per block if linear; the level if constant."""
    blocks: int
    """How many consecutive blocks it was fitted to."""


@dataclass(frozen=True)
class Verdict:
    """What the rows say about the network. The first three are None if there are no rows."""

    biased_to_identity: bool | None
    typical_branch_share: float | None
    """Median over the blocks."""
    least_balanced: str | None
    """The block whose branch share is farthest from one half."""
    growth: Growth
    text: str
    """All of it in sentences."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class ProbeReport:
    """The result of `probe`: a row per residual block, in the order in which the data meets them."""

    model: str
    rows: tuple[ProbeRow, ...]
    adds: tuple[ResidualAdd, ...]
    """How each row's residual add is built."""
    num_blocks: int
    """How many residual adds the model has, with or without a row."""
    first_nonfinite: str | None = None
    """The first block that meets NaN or infinity; rows end before it."""
    operations: int = 0
    """How many operations on data the pass had."""
    rejected: Mapping[str, int] = field(default_factory=dict)
    """How many additions are not residual, by reason."""

    @property
    def verdict(self) -> Verdict:
        """What the rows say about the network."""
        return _judge(self)

    def table(self, every: bool = False) -> str:
        """The rows as aligned text of at most 80 columns; with `every`, all rows and all columns.

        Of a stage of a long network, the first, the least balanced and the last block are shown. Columns that
        are empty throughout are left out.
        """
        shown = range(len(self.rows)) if every else self._shown()
        rows = [self.rows[i] for i in shown]
        columns = [
            [title, *(_cell(getattr(row, name)) for row in rows)]
            for title, name in _COLUMNS
            if any(_cell(getattr(row, name)) for row in rows)
        ]
        if not every:
            _narrow(columns)
        text = align(columns, numbers=True)
        hidden = len(self.rows) - len(rows)
        return f"{text}\n({hidden} more blocks)" if hidden else text

    def _shown(self) -> list[int]:
        if len(self.rows) <= _MANY_ROWS:
            return list(range(len(self.rows)))
        chosen = set[int]()
        for stage in stages(self.adds):
            chosen |= {stage[0], stage[-1], max(stage, key=lambda i: abs(self.rows[i].branch_share - 0.5))}
        ordered = sorted(chosen)
        # A network of very many stages is cut in its middle.
        return (
            ordered
            if len(ordered) <= _MANY_ROWS
            else ordered[: _MANY_ROWS // 2] + ordered[-_MANY_ROWS // 2 :]
        )

    def to_json(self) -> str:
        """Rows and verdict as one JSON object."""
        content = {
            "model": self.model,
            "num_blocks": self.num_blocks,
            "rows": [row.to_dict() for row in self.rows],
            "first_nonfinite": self.first_nonfinite,
            "verdict": dataclasses.asdict(self.verdict),
        }
        return json.dumps(content, indent=2, allow_nan=False)

    def to_csv(self) -> str:
        """One line per row, with a header."""
        names = [column.name for column in dataclasses.fields(ProbeRow)]
        return csv_text([*names, "branch_share"], [row.to_dict() for row in self.rows])

    def plot(self, path: str | Path) -> None:
        """Draw the variances over depth, measured points over predicted lines: .png, .svg or .pdf."""
        need("lab", "a plot")
        from .plot import plot_report

        plot_report(self, Path(path))

    def to_text(self, every: bool = False) -> str:
        """Table and verdict, in lines of 80 characters; with `every`, the whole table."""
        verdict = wrap(str(self.verdict))
        return f"{self.table(every)}\n\n{verdict}" if self.rows else verdict

    def __str__(self) -> str:
        return self.to_text()

    def check(
        self,
        share: tuple[float, float] | None = None,
        growth: Literal["constant", "linear", "exponential"] | None = "linear",
        finite: bool = True,
    ) -> None:
        """Raise `CheckError`, which names the blocks, unless the report keeps these rules.

        Args:
            share: the range that every block's branch share must lie in.
            growth: the fastest growth of the skip variance with depth that is allowed. Exponential growth of
                less than 1.2-fold a block counts as linear.
            finite: whether NaN and infinity are forbidden.
        """
        from .check import check_report

        check_report(self, share, growth, finite)

    def _repr_html_(self) -> str:
        from .notebook import report_html

        return report_html(self)


WIDTH = 80
"""Columns of a terminal."""
_MANY_ROWS = 24
_OPTIONAL = (
    "within channels",
    "of channel means",
    "moving mean²",
    "moving var",
    "output var",
    "before scalar",
)
"""The columns that give way first where all do not fit."""
_COLUMNS = (
    ("block", "name"),
    ("l", "depth"),
    ("skip var", "skip_variance"),
    ("branch var", "branch_variance"),
    ("before scalar", "branch_variance_before_scalar"),
    ("share", "branch_share"),
    ("output var", "output_variance"),
    ("within channels", "channel_variance"),
    ("of channel means", "channel_mean_variance"),
    ("moving var", "moving_variance"),
    ("moving mean²", "squared_moving_mean"),
    ("gradient", "gradient_norm"),
    ("param grad", "parameter_gradient_norm"),
)


def _cell(value: str | float | None) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def wrap(text: str) -> str:
    """The text with lines of at most 80 characters."""
    return "\n".join(textwrap.fill(line, WIDTH, break_long_words=False) for line in text.splitlines())


def shorten(name: str, length: int) -> str:
    """The end of a long name, which tells blocks apart."""
    return name if len(name) <= length else f"…{name[1 - length :]}"


def _narrow(columns: list[list[str]]) -> None:
    """Drop optional columns, then shorten the blocks' names, until the table fits."""

    def width() -> int:
        return sum(max(map(len, column)) + 2 for column in columns) - 2

    for title in _OPTIONAL:
        if width() > WIDTH:
            columns[:] = [column for column in columns if column[0] != title]
    excess = width() - WIDTH
    if excess > 0:
        length = max(12, max(map(len, columns[0])) - excess)
        columns[0] = [shorten(name, length) for name in columns[0]]


def align(columns: Sequence[Sequence[str]], numbers: bool = False) -> str:
    """Columns of text side by side; with `numbers`, all but the first are aligned to the right."""
    padded = []
    for index, column in enumerate(columns):
        width = max(map(len, column))
        padded.append([cell.rjust(width) if numbers and index else cell.ljust(width) for cell in column])
    return "\n".join("  ".join(line).rstrip() for line in zip(*padded, strict=True))


def csv_text(names: Sequence[str], rows: Iterable[dict[str, Any]]) -> str:
    """A header and one line per row."""
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _judge(report: ProbeReport) -> Verdict:
    rows = report.rows
    if not rows:
        return Verdict(None, None, None, Growth("unknown", None, 0), _explain_no_rows(report))
    share = median(row.branch_share for row in rows)
    worst = max(rows, key=lambda row: abs(row.branch_share - 0.5))
    # Variance simply adds up only where no projection lies between the blocks.
    longest = max(stages(report.adds), key=len)
    growth = fit_growth([rows[i].skip_variance for i in longest])
    doubtful = [add.name for add in report.adds if add.doubt]
    sentences = [
        _say_bias(share),
        *([_say_worst(worst)] if any(row.branch_share != worst.branch_share for row in rows) else []),
        *([_say_doubt(report.adds, doubtful)] if doubtful else []),
        _say_growth(growth),
        _say_theory(predict(report), rows),
        _advise(report, growth, share),
    ]
    if report.first_nonfinite:
        sentences.insert(0, f"NaN or infinity first appears in {report.first_nonfinite}; rows end before it.")
    return Verdict(share < BIASED_BELOW, share, worst.name, growth, "\n".join(sentences))


def _explain_no_rows(report: ProbeReport) -> str:
    if report.first_nonfinite:
        return f"NaN or infinity appears in the very first block, {report.first_nonfinite}: no rows to show."
    additions = "none"
    if report.rejected:
        reasons = "; ".join(f"{count} because {reason}" for reason, count in report.rejected.items())
        additions = f"{sum(report.rejected.values())}, rejected {reasons}"
    return (
        f"{report.model} has no residual add, x + f(x) with layers in f. "
        f"Operations on these inputs: {report.operations}. Additions: {additions}."
    )


def fit_growth(variances: Sequence[float]) -> Growth:
    """The better of two least-squares fits, v = a r^l and v = a + b l, judged by their error in log v.

    So a factor too much and a factor too little weigh the same, at any size. Fewer than three blocks, or a
    variance of zero, tell nothing.
    """
    count = len(variances)
    if count < 3 or min(variances) <= 0:
        return Growth("unknown", None, count)
    depths = range(count)
    level, slope = _least_squares(depths, [math.log(v) for v in variances], [1.0] * count)
    if abs(slope) * (count - 1) < math.log(CONSTANT_WITHIN):
        return Growth("constant", math.exp(level + slope * (count - 1) / 2), count)
    start, step = _least_squares(depths, variances, [v**-2 for v in variances])
    pairs = list(zip(depths, variances, strict=True))
    exponential = sum((level + slope * x - math.log(v)) ** 2 for x, v in pairs)
    positive = min(start, start + step * (count - 1)) > 0
    if not positive or exponential < sum(math.log((start + step * x) / v) ** 2 for x, v in pairs):
        return Growth("exponential", math.exp(slope), count)
    return Growth("linear", step, count)


def _least_squares(xs: Sequence[float], ys: Sequence[float], weights: Sequence[float]) -> tuple[float, float]:
    """Intercept and slope of the weighted straight line."""
    total = sum(weights)
    x_mean = sum(w * x for w, x in zip(weights, xs, strict=True)) / total
    y_mean = sum(w * y for w, y in zip(weights, ys, strict=True)) / total
    spread = sum(w * (x - x_mean) ** 2 for w, x in zip(weights, xs, strict=True))
    together = sum(w * (x - x_mean) * (y - y_mean) for w, x, y in zip(weights, xs, ys, strict=True))
    slope = together / spread
    return y_mean - slope * x_mean, slope


def _say_bias(share: float) -> str:
    bias = "Biased" if share < BIASED_BELOW else "Not biased"
    return (
        f"{bias} towards the identity: the typical branch gives {share:.2%} of its block's output variance."
    )


def _say_worst(worst: ProbeRow) -> str:
    return (
        f"Least balanced: {worst.name}, whose branch gives {worst.branch_share:.2%} of the output variance."
    )


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
        case "constant":
            return f"The variance stays constant with depth, at about {growth.rate:.3g} {where}."
    return "Too few blocks in a row to tell how the variance grows with depth."


def _say_theory(prediction: Prediction | None, rows: Sequence[ProbeRow]) -> str:
    if prediction is None:
        return "The paper's theory makes no prediction for these blocks."
    last, wanted = rows[-1], prediction.skip[-1]
    return (
        f"Theory ({prediction.law}): the last block's skip variance is {wanted:.3g}, its branch share "
        f"{prediction.share[-1]:.2%}; measured {last.skip_variance:.3g} and {last.branch_share:.2%}."
    )


def _advise(report: ProbeReport, growth: Growth, share: float) -> str:
    exploding = growth.law == "exponential" and (growth.rate or 0) >= EXPLODING_FROM
    if exploding and share == 0:
        return (
            "Advice: the branches contribute nothing yet, so the variance changes on the skip path: look at "
            "the layers and scales there."
        )
    if exploding or report.first_nonfinite:
        blocks = report.num_blocks
        return (
            "Advice: scale each branch by a learned scalar that starts at 0 (SkipInit) or at most "
            f"1/sqrt({blocks}) = {blocks**-0.5:.2g}, or normalize it: deep networks do not train without."
        )
    if share < BIASED_BELOW:
        return "Advice: none; blocks near the identity keep the signal, forward and backward, at any depth."
    if report.num_blocks < 20:
        return "Advice: none at this depth; before going much deeper, scale or normalize the branches."
    return (
        "Advice: the branches weigh as much as the skips; if training stalls, scale them by a learned scalar "
        "that starts at 0 (SkipInit) or normalize them."
    )
