"""`skipinit reproduce`, `skipinit claims` and `skipinit report`."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console
from rich.table import Table

from ..config import Precision
from ..notation import duration_text, read_seconds
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


def claims(folders: Folders = (), json_: Json = False) -> None:
    """Say which statements of the paper hold in the results, and which do not.

    Args:
        folders: Folders of `reproduce` or `sweep`, or files that `store export` wrote.
    """
    from ..paper.collect import claims as judge

    judged = judge(folders)
    if json_:
        print(json.dumps([asdict(each) for each in judged], ensure_ascii=False))
        return
    console = Console(highlight=False)
    colors = {"does not hold": "bold red", "holds": "green", "not measured yet": "dim"}
    for state, color in colors.items():
        found = [each for each in judged if each.state == state]
        console.print(f"[{color}]{state}: {len(found)}[/]")
        for each in found:
            statement = f"{each.statement} (section {each.section})"
            console.print(_indented(statement, 2, console.width), markup=False)
            for text in _evidence(each) or [f"needs {each.needs}"]:
                console.print(_indented(text, 4, console.width), style="dim", markup=False)


def _evidence(judged: JudgedClaim) -> list[str]:
    """What each set of measurements says, the one that decides first."""
    note = " (less faithful, does not decide)"
    return [
        f"{label}{'' if label == judged.decided_by else note}: {found.state}. {found.words}"
        for label, found in reversed([*judged.evidence.items()])
    ]


def _indented(text: str, indent: int, width: int) -> str:
    """The text in lines of that width, names such as `regularized-skipinit` whole."""
    whole = textwrap.TextWrapper(width - indent, break_long_words=False, break_on_hyphens=False)
    return textwrap.indent(whole.fill(text), " " * indent)


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
