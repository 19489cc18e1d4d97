"""`compare`: two models or two probes side by side, such as before and after a change."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import ConfigError, need
from .balance import ProbeReport, ProbeRow
from .forward import Inputs
from .measure import probe
from .rendering import align, csv_text, percent, plural, shorten_names, table_html


@dataclass(frozen=True)
class Comparison:
    """Two probes, block by block. Blocks of the same name are the same block."""

    before: ProbeReport
    after: ProbeReport

    @property
    def blocks(self) -> dict[str, tuple[ProbeRow | None, ProbeRow | None]]:
        """The two rows of each block by its name, in order of depth; None where a side lacks the block."""
        old = {row.name: row for row in self.before.rows}
        new = {row.name: row for row in self.after.rows}
        depths = {name: row.depth for name, row in (*new.items(), *old.items())}
        return {
            name: (old.get(name), new.get(name)) for name in sorted(depths, key=lambda name: depths[name])
        }

    def table(self) -> str:
        """Skip variance and branch share of both, as aligned text."""
        rows = self.blocks.values()
        columns = [
            ["block", *self.blocks],
            ["skip before", *(_cell(old, "skip_variance") for old, _ in rows)],
            ["after", *(_cell(new, "skip_variance") for _, new in rows)],
            ["share before", *(_cell(old, "branch_share", percent) for old, _ in rows)],
            ["after", *(_cell(new, "branch_share", percent) for _, new in rows)],
        ]
        shorten_names(columns)
        return align(columns, numbers=True)

    def summary(self) -> str:
        """A summary of the changes, in sentences."""
        return "\n".join(_sentences(self))

    def to_csv(self) -> str:
        """One line per block, with a header."""
        names = ("name", "skip_variance_before", "skip_variance_after", "branch_share_before",
                 "branch_share_after")  # fmt: skip
        return csv_text(names, self._lines())

    def to_json(self) -> str:
        """Both sides as one JSON object."""
        content = {"before": self.before.model, "after": self.after.model, "blocks": list(self._lines())}
        return json.dumps(content, indent=2)

    def _lines(self) -> Iterator[dict[str, Any]]:
        for name, (old, new) in self.blocks.items():
            line: dict[str, Any] = {"name": name}
            for side, row in (("before", old), ("after", new)):
                line[f"skip_variance_{side}"] = None if row is None else row.skip_variance
                line[f"branch_share_{side}"] = None if row is None else row.branch_share
            yield line

    def plot(self, path: str | Path) -> None:
        """Draw both variances and shares over depth: .png, .svg or .pdf."""
        need("lab", "a plot")
        from .plot import plot_overlay

        plot_overlay({"before": self.before, "after": self.after}, Path(path), "before and after")

    def __str__(self) -> str:
        return f"{self.table()}\n\n{self.summary()}" if self.blocks else self.summary()

    def _repr_html_(self) -> str:
        return table_html(self.table(), self.summary())


def compare(
    before: nn.Module | ProbeReport, after: nn.Module | ProbeReport, inputs: Inputs | None = None
) -> Comparison:
    """Compare two models on the same inputs, or two reports of `probe`.

    Args:
        before: a model, which is probed on `inputs`, or a report.
        after: the same.
        inputs: as for `probe`; needed if one of the two is a model.

    >>> shallow, deep = (skipinit.create_model(name, scheme="skipinit") for name in ("wrn10_1", "wrn16_1"))
    >>> comparison = skipinit.compare(shallow, deep, torch.Size([4, 3, 32, 32]))
    >>> len(comparison.before.rows), len(comparison.after.rows)
    (3, 6)
    """
    return Comparison(_report(before, inputs), _report(after, inputs))


def _cell(row: ProbeRow | None, field: str, form: Callable[[float], str] = "{:.4g}".format) -> str:
    return "" if row is None else form(getattr(row, field))


def _report(side: nn.Module | ProbeReport, inputs: Inputs | None) -> ProbeReport:
    if isinstance(side, ProbeReport):
        return side
    name = type(side).__name__
    if not isinstance(side, nn.Module):
        raise ConfigError(f"compare takes models and reports of probe; a {name} was given")
    if inputs is None:
        raise ConfigError(f"comparing a {name} needs inputs, such as inputs=torch.Size([8, 3, 32, 32])")
    return probe(side, inputs)


def _sentences(comparison: Comparison) -> Iterator[str]:
    before, after = comparison.before, comparison.after
    for side, report in (("Before", before), ("After", after)):
        verdict = report.verdict
        if not report.rows or verdict.typical_branch_share is None:
            yield f"{side}: {report.model} has no rows."
            continue
        growth = "" if verdict.growth.law == "unknown" else f", variance {verdict.growth.law} in depth"
        yield (
            f"{side}: {report.model}, {plural(report.num_blocks, 'block')}, typical branch share "
            f"{percent(verdict.typical_branch_share)}{growth}."
        )
    shared = [(old, new) for old, new in comparison.blocks.values() if old is not None and new is not None]
    if shared:
        old, new = max(shared, key=lambda pair: abs(pair[0].branch_share - pair[1].branch_share))
        if old.branch_share == new.branch_share:
            yield "The branch shares are equal in all common blocks."
        else:
            shares = f"{percent(old.branch_share)} to {percent(new.branch_share)}"
            yield f"The branch share differs most in {old.name}: {shares}."
    else:
        yield "No block has the same name on both sides."
