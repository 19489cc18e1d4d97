"""The mean over several networks: theory speaks of the expectation over weights, one network is one draw."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

from .report import ProbeReport, ProbeRow


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
