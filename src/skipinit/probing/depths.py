"""`depth_check`: networks of several depths, and how the variance of the last block depends on the depth."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from statistics import linear_regression, median
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..errors import ConfigError, need
from .balance import ProbeReport, mean_report
from .forward import preserve_generators
from .inputs import Inputs
from .measure import Loss, measure
from .rendering import align, csv_text, format_known, percent, table_html, without_nonfinite, wrap
from .verdict import BEYOND_USE, EXPLODING_FROM

_DOUBLING = 2**0.25
"""A quantity that changes by less than this factor when the depth doubles counts as constant."""


@dataclass(frozen=True)
class DepthRow:
    """The measurements of one depth."""

    depth: int
    """The argument of the factory."""
    blocks: int
    output_variance: float | None
    """Of the last residual add; None if NaN or infinity came before it."""
    typical_branch_share: float | None
    """Median over the blocks."""
    gradient_ratio: float | None
    """Gradient norm of the first block's output over that of the last; None without targets."""


@dataclass(frozen=True)
class DepthCheck:
    """The result of `depth_check`: a row and a report for each depth, smallest first."""

    rows: tuple[DepthRow, ...]
    reports: tuple[ProbeReport, ...]

    @property
    def law(self) -> Literal["constant", "power", "exponential", "unknown"]:
        """How the last block's variance grows or falls with the number of blocks."""
        return _fit(self)[0]

    def table(self) -> str:
        """The rows as aligned text. Empty columns are omitted."""
        columns = [
            ("depth", *(str(row.depth) for row in self.rows)),
            ("blocks", *(str(row.blocks) for row in self.rows)),
            ("output var", *(format_known(row.output_variance) for row in self.rows)),
            ("branch share", *(format_known(row.typical_branch_share, percent) for row in self.rows)),
            ("gradient first/last", *(format_known(row.gradient_ratio) for row in self.rows)),
        ]
        return align([column for column in columns if any(column[1:])], numbers=True)

    def summary(self) -> str:
        """A summary of the rows, in a sentence."""
        law, rate = _fit(self)
        broken = next((r for r in self.reports if r.first_nonfinite), None)
        if broken is not None:
            depth = self.rows[self.reports.index(broken)].depth
            return f"NaN or infinity appears at depth {depth}: the network cannot be made that deep."
        match law:
            case "constant":
                return "The variance of the last block does not depend on depth."
            case "power":
                change = "grows" if rate > 0 else "falls"
                power = f"as the number of blocks to the power {rate:.2g}"
                return f"The variance of the last block {change} {power}."
            case "exponential":
                change = "grows" if rate > 1 else "falls"
                return (
                    f"The variance of the last block {change} exponentially, {rate:.3g}-fold a block: "
                    "deeper networks will not train."
                )
        if (silent := next((row for row in self.rows if not row.output_variance), None)) is not None:
            return f"The variance of the last block is 0 at depth {silent.depth}: no signal is left there."
        if len(self.rows) < 3:
            return "Too few depths to tell how the variance grows; give three or more."
        blocks = ", ".join(str(count) for count in sorted({row.blocks for row in self.rows}))
        return f"All networks have {blocks} blocks; three different numbers tell how the variance grows."

    def to_csv(self) -> str:
        """One line per depth, with a header."""
        return csv_text(list(DepthRow.__dataclass_fields__), self._lines())

    def to_json(self) -> str:
        """Rows and law as one JSON object."""
        return json.dumps({"rows": list(self._lines()), "law": self.law}, indent=2, allow_nan=False)

    def _lines(self) -> Iterator[dict[str, Any]]:
        return (without_nonfinite(vars(row)) for row in self.rows)

    def plot(self, path: str | Path) -> None:
        """Draw variances and shares over the blocks, a line for each depth: .png, .svg or .pdf."""
        need("lab", "a plot")
        from .plot import plot_overlay

        labeled = {f"depth {row.depth}": r for row, r in zip(self.rows, self.reports, strict=True)}
        plot_overlay(labeled, Path(path), self.reports[0].model)

    def __str__(self) -> str:
        return f"{self.table()}\n\n{wrap(self.summary())}"

    def _repr_html_(self) -> str:
        return table_html(self.table(), self.summary())


def depth_check(
    factory: Callable[[int], nn.Module],
    depths: Sequence[int],
    inputs: Inputs,
    targets: Tensor | None = None,
    loss: Loss | None = None,
    networks: int = 4,
) -> DepthCheck:
    """Probe networks of several depths on the same inputs, with no layer dropped at random.

    Args:
        factory: makes a network of a given depth. It is called with torch's generators at seed 0, 1, 2 and so
            on; all global generators are restored afterwards.
        depths: the depths to pass to `factory`.
        inputs: as for `probe`.
        targets: if given, also run backward and compare the gradients of the first and the last block.
        loss: as for `probe`.
        networks: number of networks of each depth to average over. Theory is about the mean over
            weights; a single network scatters around it.

    >>> def factory(blocks):
    ...     return skipinit.create_model("fc_linear", blocks=blocks, width=50, in_channels=50)
    >>> skipinit.depth_check(factory, [4, 8, 16], torch.Size([50, 50])).law
    'exponential'
    """
    given = list(depths) if isinstance(depths, Iterable) else [depths]
    if not isinstance(depths, Iterable) or not all(isinstance(depth, Integral) for depth in given):
        raise ConfigError(f"depths={depths!r} is not allowed; give whole numbers, such as [12, 24, 48]")
    ordered = sorted({int(depth) for depth in given})
    if not ordered:
        raise ConfigError("depths is empty; give some, such as [12, 24, 48]")
    if not isinstance(networks, Integral) or networks < 1:
        raise ConfigError(f"networks={networks!r} is not allowed; it must be a whole number, 1 or more")
    reports = [_probe(factory, depth, inputs, targets, loss, networks) for depth in ordered]
    return DepthCheck(tuple(map(_row, ordered, reports)), tuple(reports))


def _probe(
    factory: Callable[[int], nn.Module],
    depth: int,
    inputs: Inputs,
    targets: Tensor | None,
    loss: Loss | None,
    networks: int,
) -> ProbeReport:
    """The mean over several networks, or the first that meets NaN or infinity."""
    reports = []
    for seed in range(networks):
        with preserve_generators():
            # `torch.manual_seed` would also seed GPUs that are not in use yet, which cannot be undone.
            torch.default_generator.manual_seed(seed)
            if torch.cuda.is_initialized():
                torch.cuda.manual_seed_all(seed)
            model = factory(depth)
        if not isinstance(model, nn.Module):
            raise ConfigError(f"factory({depth}) returned a {type(model).__name__}, not a torch.nn.Module")
        report = measure(model, inputs, "whole", targets, loss)
        if not report.num_blocks:
            raise ConfigError(f"factory({depth}): {report.verdict}")
        if report.first_nonfinite:
            return report
        reports.append(report)
        if report.num_blocks != reports[0].num_blocks:
            counts = f"{reports[0].num_blocks} and {report.num_blocks}"
            raise ConfigError(f"factory({depth}) made networks of {counts} blocks; it must make them alike")
    return mean_report(reports)


def _row(depth: int, report: ProbeReport) -> DepthRow:
    rows, whole = report.rows, report.first_nonfinite is None
    first, last = (rows[0].gradient_norm, rows[-1].gradient_norm) if rows else (None, None)
    return DepthRow(
        depth=depth,
        blocks=report.num_blocks,
        output_variance=rows[-1].output_variance if whole else None,
        typical_branch_share=median(row.branch_share for row in rows) if rows else None,
        gradient_ratio=first / last if first is not None and last else None,
    )


def _fit(check: DepthCheck) -> tuple[Literal["constant", "power", "exponential", "unknown"], float]:
    """The better of v = a n^p and v = a r^n, by least squares in log v, over n blocks."""
    points = [(row.blocks, row.output_variance) for row in check.rows]
    known = [(n, math.log(v)) for n, v in points if v is not None and v > 0]
    if len({n for n, _ in known}) < 3 or len(known) < len(points):
        return "unknown", math.nan
    logs = [v for _, v in known]
    power, power_error = _slope([math.log(n) for n, _ in known], logs)
    rate, rate_error = _slope([float(n) for n, _ in known], logs)
    if abs(power) * math.log(2) < math.log(_DOUBLING):
        return "constant", power
    # Slow exponentials look like powers: the verdict of a probe warns of the same ones.
    whole = abs(rate) * (max(n for n, _ in known) - min(n for n, _ in known))
    slow = abs(rate) < math.log(EXPLODING_FROM) and whole <= math.log(BEYOND_USE)
    if power_error <= rate_error or slow:
        return "power", power
    return "exponential", math.exp(rate)


def _slope(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Slope and squared error of the least-squares line."""
    slope, start = linear_regression(xs, ys)
    error = sum((y - start - slope * x) ** 2 for x, y in zip(xs, ys, strict=True))
    return slope, error
