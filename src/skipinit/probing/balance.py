"""The result of a probe: one row per residual block, as a table, JSON, CSV or a picture."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from ..errors import need
from .laws import stages
from .rendering import (
    MANY_ROWS,
    WIDTH,
    align_blocks,
    csv_text,
    report_html,
    shorten_names,
    table_width,
    without_nonfinite,
    wrap,
)
from .verdict import Verdict, check_report, judge

if TYPE_CHECKING:
    from .residual import ResidualAdd


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
    """Of the branch's first batch norm, updated once by these inputs: mean over channels, biased. Of an
    instance norm: mean over channels and examples."""
    squared_moving_mean: float | None
    """Of the same norm: mean over channels of the squared moving mean."""
    gradient_norm: float | None = None
    """Of the loss with respect to the block's output."""
    parameter_gradient_norm: float | None = None
    """Of the loss with respect to all parameters on the block's paths."""

    @property
    def branch_share(self) -> float:
        """branch / (skip + branch): the branch's fraction of the output variance, if uncorrelated."""
        return share_of_branch(self.skip_variance, self.branch_variance)

    @property
    def is_finite(self) -> bool:
        """Whether neither operand nor the sum holds NaN or infinity."""
        return math.isfinite(self.skip_variance + self.branch_variance + self.output_variance)

    def to_dict(self) -> dict[str, Any]:
        """All fields and the branch share; values that JSON cannot hold become None."""
        return row_to_dict(self)


def share_of_branch(skip: float, branch: float) -> float:
    """The branch's fraction of the sum of both variances; 0 if both are 0."""
    total = skip + branch
    return branch / total if total else 0.0


def row_to_dict(row: Any) -> dict[str, Any]:
    """The fields of a row of a probe or a watch, and its branch share; None for what JSON cannot hold."""
    return without_nonfinite({**dataclasses.asdict(row), "branch_share": row.branch_share})


def _mean_row(rows: Sequence[ProbeRow]) -> ProbeRow:
    """The mean of a block over several networks."""
    measured = [name for name, value in dataclasses.asdict(rows[0]).items() if isinstance(value, float)]
    means: dict[str, Any] = {name: fmean(getattr(row, name) for row in rows) for name in measured}
    return dataclasses.replace(rows[0], **means)


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
        """The conclusions from the rows."""
        return judge(self)

    def table(self, every: bool = False) -> str:
        """The rows as aligned text of at most 80 columns; with `every`, all rows and all columns.

        A long network is shown by the first, the least balanced and the last block of each stage. Empty
        columns are omitted.
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
        return align_blocks(columns, len(self.rows)) if columns else ""

    def _shown(self) -> list[int]:
        if len(self.rows) <= MANY_ROWS:
            return list(range(len(self.rows)))
        chosen = set[int]()
        for stage in stages(self.adds):
            chosen |= {stage[0], stage[-1], max(stage, key=lambda i: abs(self.rows[i].branch_share - 0.5))}
        ordered = sorted(chosen)
        if len(ordered) > MANY_ROWS:  # A network of very many stages is cut in its middle.
            return ordered[: MANY_ROWS // 2] + ordered[-MANY_ROWS // 2 :]
        return ordered

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
            growth: the fastest growth of the skip variance with depth that is allowed. An exponential change
                of less than 1.2-fold a block, and at most 100-fold in all, counts as linear.
            finite: whether NaN and infinity are forbidden.
        """
        check_report(self, share, growth, finite)

    def _repr_html_(self) -> str:
        columns = {
            "block": [row.name for row in self.rows],
            "skip var": [f"{row.skip_variance:.4g}" for row in self.rows],
            "branch var": [f"{row.branch_variance:.4g}" for row in self.rows],
        }
        return report_html(self.model, columns, [row.branch_share for row in self.rows], str(self.verdict))


def mean_report(reports: Sequence[ProbeReport]) -> ProbeReport:
    """The first report, with every measurement replaced by its mean over the networks."""
    blocks = zip(*(report.rows for report in reports), strict=True)
    return dataclasses.replace(reports[0], rows=tuple(map(_mean_row, blocks)))


_OPTIONAL = (
    "within channels",
    "of channel means",
    "moving mean²",
    "moving var",
    "output var",
    "before scalar",
)
"""The columns to omit, in this order, if the table is too wide."""
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


def _narrow(columns: list[list[str]]) -> None:
    """Drop optional columns, then shorten the blocks' names, until the table fits."""
    for title in _OPTIONAL:
        if table_width(columns) > WIDTH:
            columns[:] = [column for column in columns if column[0] != title]
    shorten_names(columns)
