"""How long the tests of this folder go on, from which seed, and what they counted.

`make test` tries a fixed few cases of each kind. `SKIPINIT_TORTURE=3600`, or `make torture`, tries as many as
fit into so many seconds; each random test has an equal part of them. A case follows from its seed alone. A
failure names its seed, and `SKIPINIT_TORTURE_SEED` begins with it.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import Any

import pytest

from support.torture import Torture

_SECONDS = "SKIPINIT_TORTURE"
_SEED = "SKIPINIT_TORTURE_SEED"
_NAME = "torture"
_RANDOM_TESTS = pytest.StashKey[int]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Among how many tests the time is shared."""
    config.stash[_RANDOM_TESTS] = sum(_NAME in getattr(item, "fixturenames", ()) for item in items)


@pytest.fixture
def torture(request: pytest.FixtureRequest) -> Torture:
    """This test's cases. Its tally travels with its report, also from a worker of pytest-xdist."""
    seconds = os.environ.get(_SECONDS)
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    tally: dict[str, int] = {}
    request.node.user_properties.append((_NAME, tally))
    part = None if seconds is None else float(seconds) * workers / request.config.stash[_RANDOM_TESTS]
    return Torture(part, int(os.environ.get(_SEED, "0")), tally)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Say at once what failed: hours may follow."""
    if _SECONDS in os.environ and report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\n{_repeat(report)}\n{report.longreprtext}", file=sys.stderr, flush=True)


def _repeat(report: pytest.TestReport) -> str:
    """How to repeat a failure."""
    tally = dict(report.user_properties).get(_NAME, {})
    return f"{_SECONDS}=1 {_SEED}={tally.get('seed', 0)} pytest '{report.nodeid}'"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the counts of all tests, and how to repeat what failed."""
    if _SECONDS not in os.environ:
        return
    total: Counter[str] = Counter()
    failed = []
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            tally = dict(report.user_properties).get(_NAME, {})
            total.update({what: number for what, number in tally.items() if what != "seed"})
            if outcome == "failed":
                failed.append(_repeat(report))
    terminalreporter.section("torture")
    for what, number in sorted(total.items()):
        terminalreporter.write_line(f"{number:>10,}  {what}")
    terminalreporter.write_line(f"{len(failed):>10,}  tests failed; first seed {os.environ.get(_SEED, '0')}")
    for line in failed:
        terminalreporter.write_line(line)
