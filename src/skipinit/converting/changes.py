"""What a conversion did: each place, what went, what came; and the probe before and after."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..probing.balance import ProbeReport


@dataclass(frozen=True)
class Change:
    """One place of the model."""

    block: str | None
    """The residual add whose paths it lies on; None for the rest of the network."""
    module: str
    """Empty where many layers were changed alike."""
    went: str
    """The class of the norm that was there."""
    came: str


@dataclass(frozen=True)
class ConversionReport:
    """Everything that a conversion changed, left, and kept."""

    model: str
    scheme: str
    keep_function: bool
    num_blocks: int
    changes: tuple[Change, ...]
    left: tuple[str, ...]
    """Norms and long skips that stayed, each with the reason."""
    difference: float | None
    """With `keep_function`: the largest change of an output in evaluation, relative to the largest output."""
    before: ProbeReport
    after: ProbeReport

    @property
    def num_norms(self) -> int:
        """How many norms went."""
        return sum(bool(change.went) for change in self.changes)

    def table(self) -> str:
        """The changes as aligned text, a line per block; the rest of the network last."""
        blocks: dict[str | None, list[Change]] = {}
        for change in self.changes:
            blocks.setdefault(change.block, []).append(change)
        rest = blocks.pop(None, [])
        lines = [("block", "went", "came")]
        lines += [(name or "", *_words(name or "", changes)) for name, changes in blocks.items()]
        lines += [("elsewhere", *_words("", rest))]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )

    def to_json(self) -> str:
        """Changes and both probes, as one JSON object."""
        content = {
            "model": self.model,
            "scheme": self.scheme,
            "keep_function": self.keep_function,
            "num_blocks": self.num_blocks,
            "num_norms": self.num_norms,
            "changes": [dataclasses.asdict(change) for change in self.changes],
            "left": list(self.left),
            "difference": self.difference,
            "before": json.loads(self.before.to_json()),
            "after": json.loads(self.after.to_json()),
        }
        return json.dumps(content, indent=2, allow_nan=False)

    def plot(self, path: str | Path) -> None:
        """Write skip and branch variances before and after, side by side, as the suffix says."""
        from matplotlib.figure import Figure

        from ..probing.plot import BRANCH, SKIP, Series, draw, legend_above, save

        figure = Figure(figsize=(10, 4.2), layout="constrained")
        pairs = zip(figure.subplots(1, 2), (self.before, self.after), ("before", "after"), strict=True)
        for axes, probed, when in pairs:
            skip = [row.skip_variance for row in probed.rows]
            branch = [row.branch_variance for row in probed.rows]
            series = [Series("skip", SKIP, skip), Series("end of branch", BRANCH, branch)]
            axes.set_title(f"{self.model}, {when}", pad=24)
            if not skip:
                continue
            wide = max(skip) > 1000 * min(skip)
            draw(axes, [row.depth for row in probed.rows], series, "log" if wide else "linear")
            legend_above(axes)
            axes.set_ylabel("variance")
        save(figure, Path(path))

    def __str__(self) -> str:
        kept = "" if self.difference is None else f"; outputs in evaluation differ by {self.difference:.1e}"
        lines = [
            self.table(),
            "",
            f"{self.model}, {self.scheme}: {self.num_norms} norms went, {self.num_blocks} blocks{kept}.",
            *(f"Left: {what}." for what in self.left),
            f"Before: {self.before.verdict}",
            f"After: {self.after.verdict}",
        ]
        return "\n".join(lines)


def _words(block: str, changes: list[Change]) -> tuple[str, str]:
    """What went and what came, with names as they are inside the block."""
    home = block.split("#")[0] + "."

    def inner(change: Change) -> str:
        return change.module.removeprefix(home)

    went = ", ".join(inner(change) for change in changes if change.went)
    came = [f"{inner(change)}: {change.came}".removeprefix(": ") for change in changes if change.came]
    return went or "-", "; ".join(came) or "-"
