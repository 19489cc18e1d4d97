"""`compare`: two probes side by side, such as before and after a change of the model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import ConfigError, need
from ..notation import count_text
from .balance import ProbeReport, ProbeRow
from .inputs import Inputs
from .measure import probe
from .rendering import align_blocks, csv_text, format_known, percent, shorten_names, spread, table_html, wrap


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

    def table(self, every: bool = False) -> str:
        """Skip variance and branch share of both, as aligned text.

        Of many blocks, some, evenly spaced, and the one that differs most. With `every`, all.
        """
        most = self._most_different()
        always = () if most is None else ([*self.blocks].index(most[0].name),)
        shown = range(len(self.blocks)) if every else spread(len(self.blocks), *always)
        found = list(self._lines())
        lines = [found[index] for index in shown]
        columns = [
            ["block", *(line["name"] for line in lines)],
            ["skip before", *(format_known(line["skip_variance_before"]) for line in lines)],
            ["after", *(format_known(line["skip_variance_after"]) for line in lines)],
            ["share before", *(format_known(line["branch_share_before"], percent) for line in lines)],
            ["after", *(format_known(line["branch_share_after"], percent) for line in lines)],
        ]
        shorten_names(columns)
        return align_blocks(columns, len(self.blocks))

    def _most_different(self) -> tuple[ProbeRow, ProbeRow] | None:
        """The two rows of the block whose branch share differs most; None if no block is on both sides."""
        shared = [(old, new) for old, new in self.blocks.values() if old is not None and new is not None]
        return max(shared, key=lambda pair: abs(pair[0].branch_share - pair[1].branch_share), default=None)

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
        summary = wrap(self.summary())
        return f"{self.table()}\n\n{summary}" if self.blocks else summary

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
            f"{side}: {report.model}, {count_text(report.num_blocks, 'block')}, typical branch share "
            f"{percent(verdict.typical_branch_share)}{growth}."
        )
    if (most := comparison._most_different()) is not None:
        old, new = most
        if old.branch_share == new.branch_share:
            yield "The branch shares are equal in all common blocks."
        else:
            shares = f"{percent(old.branch_share)} to {percent(new.branch_share)}"
            yield f"The branch share differs most in {old.name}: {shares}."
    else:
        yield "No block has the same name on both sides."
