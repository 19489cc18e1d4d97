"""The result of `watch`: for each measured step, one row per residual block."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any

from ..errors import ConfigError, need, unknown_name
from ..notation import count_text
from .balance import row_to_dict, share_of_branch
from .rendering import align_blocks, csv_text, format_known, percent, report_html, shorten_names, spread, wrap

QUANTITIES = {
    "branch_share": "branch share of output variance",
    "skip_variance": "variance of the skip",
    "branch_variance": "variance of the branch",
    "scale": "learned scale of the branch, α",
    "gradient_norm": "gradient norm of the block's output",
    "parameter_gradient_norm": "gradient norm of the block's parameters",
    "update_ratio": "update / weight of the block's parameters",
}
"""The quantities of a row, and their labels in plots and texts."""


@dataclass(frozen=True, slots=True)
class WatchRow:
    """One residual block at one step of a training. A quantity that was not measured is None."""

    name: str
    depth: int
    """l, counted from 1."""
    skip_variance: float
    branch_variance: float
    """At the end of the branch, after its scale."""
    scale: float | None = None
    """The learned factor at the end of the branch; the root mean square if it has several values."""
    gradient_norm: float | None = None
    """Of the loss with respect to the block's output."""
    parameter_gradient_norm: float | None = None
    """Of the gradients that the optimizer used, over the parameters on the block's paths."""
    update_ratio: float | None = None
    """Norm of the optimizer's update over the norm of these parameters before it."""

    @property
    def branch_share(self) -> float:
        """branch / (skip + branch): the branch's fraction of the output variance, if uncorrelated."""
        return share_of_branch(self.skip_variance, self.branch_variance)

    def to_dict(self) -> dict[str, Any]:
        """All fields and the branch share; values that JSON cannot hold become None."""
        return row_to_dict(self)


_FIELDS = tuple(field.name for field in dataclasses.fields(WatchRow))


@dataclass(frozen=True, slots=True)
class Measurement:
    """All residual blocks at one step."""

    step: int
    """How many updates the parameters had before this step."""
    rows: tuple[WatchRow, ...]

    def scalars(self) -> Iterator[tuple[str, float]]:
        """Each known number with its tag, such as `branch_share/blocks.0`, as logging tools take them."""
        for row in self.rows:
            for quantity in QUANTITIES:
                if (value := getattr(row, quantity)) is not None:
                    yield f"{quantity}/{row.name}", value

    def to_dict(self) -> dict[str, Any]:
        """Plain data without loss: NaN and infinity are kept."""
        return {"step": self.step, "rows": [dataclasses.asdict(row) for row in self.rows]}

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> Measurement:
        """The inverse of `to_dict`."""
        rows = (WatchRow(**{name: row.get(name) for name in _FIELDS}) for row in content["rows"])
        return Measurement(content["step"], tuple(rows))


@dataclass(frozen=True)
class WatchReport:
    """A watched training: its measurements, oldest first."""

    model: str
    measurements: tuple[Measurement, ...]
    remark: str = ""
    """Why there are no measurements, or what they lack."""

    @property
    def steps(self) -> tuple[int, ...]:
        """The measured steps."""
        return tuple(measurement.step for measurement in self.measurements)

    @cached_property
    def blocks(self) -> tuple[str, ...]:
        """The names of all measured blocks, in order of depth."""
        depths: dict[str, int] = {}
        for row in (row for measured in self.measurements for row in measured.rows):
            # In a pass that drops layers, later blocks have a smaller depth than in a whole one.
            depths[row.name] = max(row.depth, depths.get(row.name, 0))
        return tuple(sorted(depths, key=lambda name: depths[name]))

    def series(self, block: str, quantity: str = "branch_share") -> list[float | None]:
        """One quantity of one block, for each of `steps`; None where it was not measured."""
        if block not in self.blocks:
            raise unknown_name("block", block, self.blocks)
        return series_by_block(self, quantity)[block]

    def table(self, every: bool = False) -> str:
        """The first and the last measured step side by side. Empty columns are omitted.

        Of many blocks, some, evenly spaced, and the one that changed most. With `every`, all.
        """
        if not self.measurements:
            return ""
        most = _moved_most(self)
        always = () if most is None else (self.blocks.index(most[1].name),)
        shown = range(len(self.blocks)) if every else spread(len(self.blocks), *always)
        blocks = [self.blocks[index] for index in shown]
        first, last = self.measurements[0], self.measurements[-1]
        both = (first,) if first is last else (first, last)
        columns = [
            ["block", *blocks],
            *(_column(f"share {m.step}", blocks, m, "branch_share", percent) for m in both),
            *(_column(f"α {m.step}", blocks, m, "scale") for m in both),
            _column("gradient", blocks, last, "gradient_norm"),
            _column("of params", blocks, last, "parameter_gradient_norm"),
            _column("update", blocks, last, "update_ratio"),
        ]
        known = [column for column in columns if any(column[1:])]
        shorten_names(known)
        return align_blocks(known, len(self.blocks))

    def to_csv(self) -> str:
        """One line per step and block, with a header."""
        rows = ({"step": m.step, **row.to_dict()} for m in self.measurements for row in m.rows)
        return csv_text(CSV_COLUMNS, rows)

    def to_json(self) -> str:
        """All measurements as one JSON object."""
        content = {
            "model": self.model,
            "measurements": [
                {"step": measured.step, "rows": [row.to_dict() for row in measured.rows]}
                for measured in self.measurements
            ],
            "remark": self.remark,
        }
        return json.dumps(content, indent=2, allow_nan=False)

    def plot(
        self, path: str | Path, quantity: str = "branch_share", blocks: Sequence[str] | None = None
    ) -> None:
        """Draw a heat map of block and step, and lines of the chosen blocks: .png, .svg or .pdf.

        Args:
            path: where to write the picture.
            quantity: one of the numbers of a row, such as "branch_share", "scale" or "update_ratio".
            blocks: names of the blocks that get a line; by default four, from the first to the last.
        """
        need("lab", "a plot")
        from .plot import plot_history

        plot_history(self, Path(path), quantity, blocks)

    def __str__(self) -> str:
        return "\n\n".join(part for part in (self.table(), wrap(self.summary())) if part)

    def summary(self) -> str:
        """A summary of the measurements, in sentences."""
        return "\n".join(_sentences(self))

    def _repr_html_(self) -> str:
        last = self.measurements[-1].rows if self.measurements else ()
        columns = {
            "block": [row.name for row in last],
            "skip var": [f"{row.skip_variance:.4g}" for row in last],
            "branch var": [f"{row.branch_variance:.4g}" for row in last],
            "α": [format_known(row.scale, "{:.3g}".format) for row in last],
            "update / weight": [format_known(row.update_ratio, "{:.3g}".format) for row in last],
        }
        step = f", step {self.steps[-1]}" if self.steps else ""
        return report_html(f"{self.model}{step}", columns, [row.branch_share for row in last], self.summary())


CSV_COLUMNS = ("step", *_FIELDS, "branch_share")


def series_by_block(report: WatchReport, quantity: str) -> dict[str, list[float | None]]:
    """`WatchReport.series` of all blocks, in one pass over the rows."""
    if quantity not in QUANTITIES:
        raise unknown_name("quantity", quantity, QUANTITIES)
    found: dict[str, list[float | None]] = {block: [None] * len(report.steps) for block in report.blocks}
    for index, measured in enumerate(report.measurements):
        for row in measured.rows:
            found[row.name][index] = getattr(row, quantity)
    return found


def _column(
    title: str,
    blocks: Sequence[str],
    measured: Measurement,
    quantity: str,
    form: Callable[[float], str] = "{:.3g}".format,
) -> list[str]:
    values = {row.name: getattr(row, quantity) for row in measured.rows}
    return [title, *(format_known(values.get(block), form) for block in blocks)]


def _sentences(report: WatchReport) -> Iterator[str]:
    if report.remark:
        yield report.remark
    if not report.measurements or not report.blocks:
        return
    first, last = report.measurements[0], report.measurements[-1]
    count = len(report.measurements)
    steps = f"step {first.step}" if count == 1 else f"steps {first.step} to {last.step}"
    blocks = count_text(len(report.blocks), "block")
    yield f"{report.model}: {count_text(count, 'measurement')} of {blocks}, {steps}."
    if any(row.gradient_norm is not None or row.update_ratio is not None for row in last.rows):
        yield f"Gradient norms and the ratio of update to weight are those of step {last.step}."
    rows = ((measured.step, row) for measured in report.measurements for row in measured.rows)
    broken = ((step, row.name, words) for step, row in rows for words in _broken(row))
    if (found := next(broken, None)) is not None:
        yield "NaN or infinity first appears at step {}, in {}: {}.".format(*found)
    if count > 1 and (most := _moved_most(report)) is not None:
        start, end = (row.branch_share for row in most)
        if start == end:
            yield "The branch shares did not change."
        else:
            yield f"The branch share changed most in {most[1].name}: {percent(start)} to {percent(end)}."
    unchanged = [row.name for row in last.rows if row.update_ratio == 0]
    if unchanged:
        yield f"The last update left {_names(unchanged)} unchanged."


def _moved_most(report: WatchReport) -> tuple[WatchRow, WatchRow] | None:
    """The first and the last row of the block whose branch share changed most; None if none is in both."""
    first, last = report.measurements[0], report.measurements[-1]
    before = {row.name: row for row in first.rows if math.isfinite(row.branch_share)}
    moved = [row for row in last.rows if row.name in before and math.isfinite(row.branch_share)]
    pairs = [(before[row.name], row) for row in moved]
    return max(pairs, key=lambda pair: abs(pair[1].branch_share - pair[0].branch_share), default=None)


def _broken(row: WatchRow) -> Iterator[str]:
    """The quantities of a row that are NaN or infinite, in words."""
    for quantity, words in QUANTITIES.items():
        value = getattr(row, quantity)
        if quantity != "branch_share" and value is not None and not math.isfinite(value):
            yield words


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def check_settings(every: int, limit: int) -> None:
    """Raise unless both are whole numbers in their allowed range."""
    if not isinstance(every, Integral) or every < 1:
        raise ConfigError(f"every={every!r} is not allowed; measure every 1 or more steps, a whole number")
    if not isinstance(limit, Integral) or limit < 2:
        raise ConfigError(f"limit={limit!r} is not allowed; keep 2 or more measurements, a whole number")
