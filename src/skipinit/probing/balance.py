"""What a probe found: plain rows in every form a person may want, and the mean over several networks."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from .verdict import Verdict, judge_balance

if TYPE_CHECKING:
    from .adds import ResidualAdd


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
    """Of the branch's first batch norm, updated once by this batch: mean over channels, biased."""
    squared_moving_mean: float | None
    """Of the same norm: mean over channels of the squared moving mean."""
    gradient_norm: float | None = None
    """Of the loss for the block's output."""
    parameter_gradient_norm: float | None = None
    """Of the loss for all parameters on the block's paths."""

    @property
    def branch_share(self) -> float:
        """branch / (skip + branch): the branch's fraction of the output variance, were both uncorrelated."""
        total = self.skip_variance + self.branch_variance
        return self.branch_variance / total if total else 0.0

    @property
    def is_finite(self) -> bool:
        """Whether neither operand nor the sum holds NaN or infinity."""
        return math.isfinite(self.skip_variance + self.branch_variance + self.output_variance)

    def to_dict(self) -> dict[str, Any]:
        """All fields and the branch share; what JSON cannot hold becomes None."""
        values = {**dataclasses.asdict(self), "branch_share": self.branch_share}
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }


@dataclass(frozen=True)
class ProbeReport:
    """The rows of one probe, in the order the data meets the blocks."""

    model: str
    rows: tuple[ProbeRow, ...]
    adds: tuple[ResidualAdd, ...]
    """How each row's residual add is built."""
    num_blocks: int
    """How many residual adds the model has, with or without a row."""
    first_nonfinite: str | None = None
    """The first block that meets NaN or infinity; rows end before it."""

    @property
    def verdict(self) -> Verdict:
        """The measurements in words."""
        return judge_balance(self)

    def table(self) -> str:
        """The rows as aligned text, without columns that are empty throughout."""
        every = [(title, [_cell(getattr(row, field)) for row in self.rows]) for title, field in _COLUMNS]
        columns = [(title, cells) for title, cells in every if any(cells)]
        widths = [max(len(title), *map(len, cells)) for title, cells in columns]
        lines = [[title for title, _ in columns], *zip(*(cells for _, cells in columns), strict=True)]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if column == 0 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )

    def to_json(self) -> str:
        """Rows, verdict and all, as one JSON object."""
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
        fields = [field.name for field in dataclasses.fields(ProbeRow)]
        return csv_text([*fields, "branch_share"], [row.to_dict() for row in self.rows])

    def plot(self, path: str | Path) -> None:
        """Write the variances over depth, measured points over predicted lines, as the suffix says."""
        from .plot import plot_report

        plot_report(self, Path(path))

    def __str__(self) -> str:
        return f"{self.table()}\n\n{self.verdict}" if self.rows else str(self.verdict)


def csv_text(fields: Sequence[str], rows: Iterable[dict[str, Any]]) -> str:
    """A header and one line per row."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


_COLUMNS = (
    ("block", "name"),
    ("l", "depth"),
    ("skip var", "skip_variance"),
    ("branch var", "branch_variance"),
    ("before scalar", "branch_variance_before_scalar"),
    ("branch share", "branch_share"),
    ("output var", "output_variance"),
    ("within channels", "channel_variance"),
    ("of channel means", "channel_mean_variance"),
    ("moving var", "moving_variance"),
    ("moving mean²", "squared_moving_mean"),
    ("gradient", "gradient_norm"),
    ("param gradient", "parameter_gradient_norm"),
)


def _cell(value: str | float | None) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def mean_report(reports: Sequence[ProbeReport]) -> ProbeReport:
    """The first report, with every measurement replaced by its mean over all of them."""
    return replace(reports[0], rows=tuple(_mean(rows) for rows in _by_block(reports)))


def deviations(reports: Sequence[ProbeReport], field: str) -> list[float] | None:
    """The standard deviation between networks, block by block; None for one network, which tells nothing."""
    if len(reports) == 1:
        return None
    return [stdev(getattr(row, field) for row in rows) for rows in _by_block(reports)]


def _by_block(reports: Sequence[ProbeReport]) -> Sequence[tuple[ProbeRow, ...]]:
    return list(zip(*(report.rows for report in reports), strict=True))


def _mean(rows: tuple[ProbeRow, ...]) -> ProbeRow:
    measured = [name for name, value in dataclasses.asdict(rows[0]).items() if isinstance(value, float)]
    means: dict[str, Any] = {name: fmean(getattr(row, name) for row in rows) for name in measured}
    return replace(rows[0], **means)
