"""The result of a conversion: the new model, what was changed in it, and the probe before and after."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import need
from ..notation import count_text
from ..probing.balance import ProbeReport
from ..probing.rendering import WIDTH, align, shorten, wrap

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Change:
    """One change of the model."""

    block: str | None
    """The residual add on whose paths it is; None for the rest of the network."""
    module: str
    """Empty where many layers were changed in the same way."""
    removed: str
    """The class of the norm that was removed; empty if none was."""
    added: str
    """What was added, in words; empty if nothing was."""


@dataclass(frozen=True, eq=False)
class Conversion:
    """The result of `convert`. `print` it for a table of the changes and the balance before and after."""

    model: nn.Module
    """The converted model."""
    scheme: str
    keep_function: bool
    num_blocks: int
    """How many residual blocks were converted."""
    changes: tuple[Change, ...]
    left: tuple[str, ...]
    """Norms and long skips that stayed, each with the reason."""
    kept: tuple[str, ...]
    """From scratch: the parameters that were not drawn anew, such as embeddings and tokens."""
    difference: float | None
    """With `keep_function`: the largest change of an output in evaluation, relative to the largest output;
    None if no tensor was found in the outputs."""
    before: ProbeReport
    after: ProbeReport

    @property
    def num_norms(self) -> int:
        """How many norms were removed."""
        return sum(bool(change.removed) for change in self.changes)

    def table(self, every: bool = False) -> str:
        """The changes as aligned text, a line per block; the rest of the network last.

        At most 80 columns; of many blocks with the same changes, the first and the last. With `every`, all.
        """
        blocks: defaultdict[str | None, list[Change]] = defaultdict(list)
        for change in self.changes:
            blocks[change.block].append(change)
        rest = blocks.pop(None, [])
        lines = [("block", "removed", "added")]
        described = [(name or "", *_words(name or "", changes)) for name, changes in blocks.items()]
        lines += described if every else _summary(described)
        lines += [("elsewhere", *_words("", rest))]
        names, removed, added = (list(column) for column in zip(*lines, strict=True))
        if not every:
            names = [shorten(name, 24) for name in names]
            space = WIDTH - 4 - max(map(len, names))
            removed = [_cut(cell, space * 2 // 5) for cell in removed]
            added = [_cut(cell, space - max(map(len, removed))) for cell in added]
        return align([names, removed, added])

    def to_json(self) -> str:
        """Changes and both probes, as one JSON object."""
        content = {
            "model": self.before.model,
            "scheme": self.scheme,
            "keep_function": self.keep_function,
            "num_blocks": self.num_blocks,
            "num_norms": self.num_norms,
            "changes": [dataclasses.asdict(change) for change in self.changes],
            "left": list(self.left),
            "kept": list(self.kept),
            "difference": self.difference,
            "before": json.loads(self.before.to_json()),
            "after": json.loads(self.after.to_json()),
        }
        return json.dumps(content, indent=2, allow_nan=False)

    def plot(self, path: str | Path) -> None:
        """Draw the variances before and after, side by side: .png, .svg or .pdf."""
        need("lab", "a plot")
        from matplotlib.figure import Figure

        from ..probing.plot import draw_variances, save

        figure = Figure(figsize=(10, 4.2), layout="constrained")
        for axes, report, when in zip(
            figure.subplots(1, 2), (self.before, self.after), ("before", "after"), strict=True
        ):
            axes.set_title(f"{self.before.model}, {when}", pad=24)
            if report.rows:
                draw_variances(axes, report)
        save(figure, Path(path))

    def to_text(self, every: bool = False) -> str:
        """Table, counts, and the balance before and after, in lines of 80 characters."""
        name = self.before.model
        kept = "" if self.difference is None else f"; outputs in evaluation differ by {self.difference:.1e}"
        counts = (
            f"{count_text(self.num_norms, 'norm')} removed, {count_text(self.num_blocks, 'block')} scaled"
        )
        more = f" and {len(self.kept) - _MANY} more" if len(self.kept) > _MANY and not every else ""
        lines = [
            f"{name}, {self.scheme}: {counts}{kept}.",
            *(f"Left: {what}." for what in (self.left if every else self.left[:_MANY])),
            *([f"({len(self.left) - _MANY} more left)"] if len(self.left) > _MANY and not every else []),
            *(
                [f"Not drawn anew: {', '.join(self.kept if every else self.kept[:_MANY])}{more}."]
                if self.kept
                else []
            ),
            f"Before: {self.before.verdict}",
            f"After: {self.after.verdict}",
        ]
        return f"{self.table(every)}\n\n" + wrap("\n".join(lines))

    def __str__(self) -> str:
        return self.to_text()


_MANY = 12


def _summary(lines: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Of consecutive blocks with the same changes, the first and the last."""
    if len(lines) <= _MANY:
        return lines
    shown: list[tuple[str, str, str]] = []
    for _, group in itertools.groupby(lines, key=lambda line: line[1:]):
        same = list(group)
        shown += same if len(same) < 4 else [same[0], (f"({len(same) - 2} more)", "", ""), same[-1]]
    more = (f"({len(shown) - 2 * _MANY} more lines)", "", "")
    return shown if len(shown) <= 2 * _MANY else [*shown[:_MANY], more, *shown[-_MANY:]]


def _cut(cell: str, width: int) -> str:
    return cell if len(cell) <= width else f"{cell[: width - 1]}…"


def _words(block: str, changes: list[Change]) -> tuple[str, str]:
    """What was removed and what was added, with names relative to the block."""
    home = block.split("#")[0] + "."
    removed = ", ".join(change.module.removeprefix(home) for change in changes if change.removed)
    added = [
        f"{change.module.removeprefix(home)}: {change.added}".removeprefix(": ")
        for change in changes
        if change.added
    ]
    return removed or "-", "; ".join(added) or "-"
