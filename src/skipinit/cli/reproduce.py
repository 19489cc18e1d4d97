"""`skipinit reproduce`, `skipinit claims` and `skipinit report`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from ..config import Precision
from ..errors import ConfigError, unknown_name
from ..notation import duration_text
from ..paper.presets import PRESETS, find_preset
from ..paper.recipes import METHODS, RECIPES, Order, find_recipes
from .flags import Json, given, seconds_of

Names = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="TABLE|FIGURE")]


Folders = Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]


_FAILED_TRIALS, _STOPPED = 3, 130
_DAY = 24 * 60 * 60


def reproduce(
    names: Names = (),
    preset: str = "quick",
    out: Path = Path("results"),
    list_: Annotated[bool, tyro.conf.arg(name="list", help_behavior_hint="")] = False,
    methods: Annotated[tuple[str, ...], given("METHOD")] = (),
    at: Annotated[tuple[int, ...], given("INT")] = (),
    seeds: Annotated[int | None, given("INT")] = None,
    around_best: bool = False,
    precision: Annotated[Precision | None, given("{float32,tf32,bfloat16}")] = None,
    device: str = "auto",
    time_limit: Annotated[str | None, given("TIME")] = None,
) -> int:
    """Make tables and figures of the paper: table1 … table7, figure2 … figure8, or all.

    Stop it, and the same command goes on where it stopped. The presets say how much is run; every number
    carries its preset, data and number of runs. `skipinit report` makes a page of the folder.

    Args:
        names: What to make.
        preset: smoke, demo, quick, reduced or paper; --list says what each costs.
        out: Folder for what is measured; several presets may share it.
        list_: Only say what there is, in how many trials, and what it would cost on this machine.
        methods: Only these columns: see --list.
        at: Only these depths or batch sizes.
        seeds: At most so many runs at each rate.
        around_best: Of a whole grid of rates, only the paper's best and its two neighbours.
        precision: In place of the preset's.
        device: auto, cpu, cuda or cuda:N.
        time_limit: Stop in good order after this long: 90s, 9m, 2h.
    """
    order = Order(find_preset(preset), precision, _known(methods) or None, at or None, seeds, around_best)
    if seeds is not None and seeds < 1:
        raise ConfigError(f"--seeds {seeds} is not allowed; it must be 1 or more")
    if list_:
        _print_list(device)
        return 0
    recipes = find_recipes(names)
    from ..paper.reproduce import reproduce as make

    limit = None if time_limit is None else seconds_of(time_limit)
    outcome = make(recipes, order, out, device=device, time_limit=limit)
    print(f"{outcome.results} results, {outcome.failures} failures, {outcome.left} left in {out}")
    if outcome.left:
        print("run the same command to go on", file=sys.stderr)
        return 0 if time_limit else _STOPPED
    if outcome.failures:
        print(f"`skipinit results {out} --rows trials --json` says why trials failed", file=sys.stderr)
        return _FAILED_TRIALS
    print(f"`skipinit report {out}` makes the page")
    return 0


def claims(folders: Folders = (), json_: Json = False) -> None:
    """Say which statements of the paper hold in what was measured, which do not, and which are open.

    Args:
        folders: Folders that `reproduce` or `sweep` filled, or files that `store export` wrote.
    """
    from ..paper.claims import CLAIMS
    from ..paper.collect import collect

    found = collect(some_folders(folders))
    states = {name: found.state(claim) for name, claim in CLAIMS.items()}
    verdicts = {name: found.verdicts(claim) for name, claim in CLAIMS.items()}
    if json_:
        rows = [
            {"claim": name, "section": claim.section, "statement": claim.statement, "state": states[name],
             "evidence": {label: verdict.evidence for label, verdict in verdicts[name]},
             "needs": claim.needs}
            for name, claim in CLAIMS.items()
        ]  # fmt: skip
        print(json.dumps(rows, ensure_ascii=False))
        return
    console = Console(highlight=False)
    colors = {"does not hold": "bold red", "holds": "green", "not measured yet": "dim"}
    for state, color in colors.items():
        names = [name for name in CLAIMS if states[name] == state]
        console.print(f"[{color}]{state}: {len(names)}[/]")
        for name in names:
            console.print(f"  {CLAIMS[name].statement} (section {CLAIMS[name].section})", markup=False)
            evidence = [f"    {label}: {v.state}. {v.evidence}" for label, v in reversed(verdicts[name])]
            for line in evidence or [f"    needs {CLAIMS[name].needs}"]:
                console.print(line, style="dim", markup=False)


def some_folders(folders: tuple[Path, ...]) -> tuple[Path, ...]:
    """Refuse a command line that names none."""
    if not folders:
        raise ConfigError("no folder given; name one or more that `skipinit reproduce --out` filled")
    return folders


def _known(methods: tuple[str, ...]) -> tuple[str, ...]:
    for method in methods:
        if method not in METHODS:
            raise unknown_name("method", method, METHODS)
    return methods


def _print_list(device: str) -> None:
    from ..paper.costs import estimate_costs
    from ..training.world import find_device

    where = find_device(device)
    console = Console(highlight=False)
    about = Table(box=None, pad_edge=False, show_header=False)
    for recipe in RECIPES.values():
        about.add_row(recipe.name, recipe.title)
    about.add_row()
    for preset in PRESETS.values():
        about.add_row(preset.name, preset.about)
    about.add_row()
    about.add_row("methods", "; ".join(METHODS))
    times = Table("", *PRESETS, box=None, pad_edge=False)
    for name, costs in estimate_costs(where).items():
        times.add_row(name, *(_cost_text(costs.get(preset), where.type) for preset in PRESETS))
    console.print(about)
    console.print(f"\nTime on this machine ({where.type}), estimated, each table or figure alone:")
    console.print(times)


def _cost_text(seconds: float | None, device: str) -> str:
    """What the CPU cannot do in a day is no offer."""
    if seconds is None:
        return "−"
    return "needs a GPU" if device == "cpu" and seconds > _DAY else duration_text(seconds)


def report(folders: Folders = (), out: Path = Path("report.html")) -> None:
    """Write one HTML file: tables, figures and claims of the paper beside what was measured.

    Args:
        folders: Folders that `reproduce` or `sweep` filled, or files that `store export` wrote.
        out: The file to write; it needs nothing else, not even a network.
    """
    from ..paper.collect import collect
    from ..report.page import write_report

    write_report(collect(some_folders(folders)), out)
    print(out)
