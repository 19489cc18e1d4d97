"""`skipinit reproduce`, `skipinit claims` and `skipinit report`."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..config import Precision
from ..notation import duration_text, read_seconds
from ..paper.claims.claim import ClaimState
from ..paper.exhibits import EXHIBITS, METHODS
from ..paper.presets import PRESETS
from .flags import Count, Flag, Json, given
from .store import exit_code, print_outcome

if TYPE_CHECKING:
    from ..paper.collect import JudgedClaim

Names = Annotated[tuple[str, ...], tyro.conf.Positional, given("NAME [NAME ...]")]
Folders = Annotated[tuple[Path, ...], tyro.conf.Positional, given("FOLDER [FOLDER ...]")]

_DAY = 24 * 60 * 60


def reproduce(
    names: Names = (),
    preset: str = "quick",
    out: Path = Path("results"),
    list_: Annotated[bool, tyro.conf.arg(name="list", help_behavior_hint="")] = False,
    methods: Annotated[tuple[str, ...], given("METHOD [METHOD ...]")] = (),
    at: Annotated[tuple[int, ...], given("INT [INT ...]")] = (),
    seeds: Count = None,
    around_best: Flag = False,
    precision: Annotated[Precision | None, given("{float32,tf32,bfloat16}")] = None,
    device: str = "auto",
    time_limit: Annotated[str | None, given("TIME")] = None,
) -> int:
    """Measure tables and figures of the paper: table1 to table7, figure2 to figure8.

    Stop it at any time and run the same command again to resume.
    - A preset says how much is trained. Each number is stored with its preset, data
      and number of runs.
    - `skipinit report` makes a page of the folder.

    Example: skipinit reproduce table1 figure2 --preset smoke --out results

    Args:
        names: Tables and figures to measure, such as table1 figure2, or all.
        preset: smoke, demo, quick, brief, reduced or paper; --list shows how long each takes.
        out: Folder for the results; several presets may share it.
        list_: Train nothing; list tables, figures, presets, methods and the estimated times.
        methods: Only these methods: see --list.
        at: Only these depths or batch sizes.
        seeds: At most this many runs at each learning rate.
        around_best: Instead of the whole grid of rates, only the paper's best rate and its two neighbours.
        precision: Arithmetic; the preset's if not given.
        device: auto, cpu, cuda or cuda:N; auto is the GPU if there is one.
        time_limit: Stop after this time, with everything saved for a resume: 90s, 9m, 2h.
    """
    if list_:
        _print_list(device)
        return 0
    from ..paper.reproduce import reproduce as make

    outcome = make(
        names,
        out,
        preset=preset,
        methods=methods,
        at=at,
        seeds=seeds,
        around_best=around_best,
        precision=precision,
        device=device,
        time_limit=None if time_limit is None else read_seconds(time_limit),
    )
    if outcome.trials:
        print_outcome(outcome, out)
    else:
        print(f"networks at initialization were measured; in {out}")
    if not outcome.left and not outcome.failures:
        print(f"`skipinit report {out}` makes the page")
    return exit_code(outcome)


def claims(
    folders: Folders = (),
    evidence: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False,
    json_: Json = False,
) -> None:
    """Show which statements of the paper hold in the results, and which do not.

    Statements that do not hold come last, with their numbers.
    - Each line starts with the section of the paper.
    - In brackets: the preset of `skipinit reproduce` whose numbers decide, or
      `at initialization` where nothing is trained.

    Args:
        folders: Folders of `reproduce` or `sweep`, or files that `store export` wrote.
        evidence: Show the rule and the numbers of every statement, or what it needs.
    """
    from ..paper.claims import CLAIMS
    from ..paper.collect import collect

    collection = collect(folders)
    judged = [collection.judge(name) for name in CLAIMS]
    if json_:
        print(json.dumps([asdict(each) for each in judged], ensure_ascii=False))
        return
    console = Console(highlight=False, soft_wrap=True)
    width = console.width if console.is_terminal else sys.maxsize  # for grep, a statement is one line
    by_section = sorted(judged, key=lambda each: each.section)
    found = {state: [each for each in by_section if each.state == state] for state in _STATES}
    for state, (mark, color) in _STATES.items():
        if found[state]:
            console.print(f"[bold {color}]{state}[/]")
        for each in found[state]:
            head = f"{mark} {each.section:<4} "
            shown = [*_evidence(each, evidence)]
            deciding = f" [{each.decided_by}]" if each.decided_by and not shown else ""
            line = Text(_hanging(head, each.statement + deciding, width))
            line.stylize(color, 0, len(mark))
            console.print(line)
            for text in shown:
                console.print(_hanging(" " * len(head), text, width), style="dim", markup=False)
    print(", ".join(f"{state}: {len(found[state])}" for state in _STATES))
    if outside := collection.outside:
        print(f"{outside} of the paper; `skipinit results` shows all", file=sys.stderr)


_STATES: Mapping[ClaimState, tuple[str, str]] = {
    "not decided yet": ("·", ""),
    "holds": ("✓", "green"),
    "does not hold": ("✗", "red"),
}
"""Their marks and colors; what matters most is last, where a terminal shows it."""


def _evidence(judged: JudgedClaim, everything: bool) -> Iterator[str]:
    """The rule, and what each set of measurements says, the one that decides first; or what contradicts."""
    if everything:
        yield f"holds if: {judged.criterion}"
    for label, found in reversed([*judged.evidence.items()]):
        decides = label == judged.decided_by
        if everything or (decides and found.state == "does not hold"):
            note = "" if decides else " (less faithful, does not decide)"
            yield f"{label}{note}: {found.state}. {found.words}"
    if everything and not judged.evidence:
        parts = [f"{label}: {words}" for label, words in reversed([*judged.missing.items()])]
        yield from parts or [f"needs {judged.needs}"]


def _hanging(head: str, text: str, width: int) -> str:
    """The text after its head, in lines of that width, names such as `regularized-skipinit` whole."""
    return textwrap.fill(
        text, width, initial_indent=head, subsequent_indent=" " * len(head),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _print_list(device: str) -> None:
    from ..paper.costs import estimate_costs
    from ..training.world import find_device

    where = find_device(device)
    console = Console(highlight=False)
    about = Table(box=None, pad_edge=False, show_header=False)
    for exhibit in EXHIBITS.values():
        about.add_row(exhibit.name, exhibit.title)
    about.add_row()
    for preset in PRESETS.values():
        about.add_row(preset.name, preset.about)
    about.add_row()
    about.add_row("methods", "; ".join(METHODS))
    times = Table("", *PRESETS, box=None, pad_edge=False)
    for name, costs in estimate_costs(where).items():
        times.add_row(name, *(_cost_text(costs.get(preset), where.type) for preset in PRESETS))
    console.print(about)
    console.print(f"\nTime on this machine ({where.type}), estimated, of each alone and of all together:")
    console.print(times)


def _cost_text(seconds: float | None, device: str) -> str:
    """A time; a CPU that would need more than a day is not worth trying."""
    if seconds is None:
        return "−"
    return "needs a GPU" if device == "cpu" and seconds > _DAY else duration_text(seconds)


def report(folders: Folders = (), out: Path = Path("report.html")) -> None:
    """Write an HTML page with the results beside the paper's tables and figures.

    Args:
        folders: Folders of `reproduce` or `sweep`, or files that `store export` wrote.
        out: The file to write. It is complete: it loads no other file and nothing over the network.
    """
    from ..reporting.page import report as write

    print(write(folders, out))
