"""`skipinit status`, `skipinit results`, `skipinit store merge`, `export` and `import`."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console
from rich.live import Live
from rich.text import Text

from ..config import ModelConfig, option_types
from ..errors import ConfigError, printable
from ..notation import count_text, duration_text, rate_text, value_text
from ..probing.rendering import align
from ..sweeping.exchange import Merged, export_results, merge_sweep
from ..sweeping.exchange import merge as merge_into
from ..sweeping.exchange import read_results as read_export
from ..sweeping.grid import AXES
from ..sweeping.results import Progress, Row, cell_row, cells, progress, trial_row, varying
from ..sweeping.store import open_store, open_writer
from ..sweeping.summary import Trim
from . import FAILED_TRIALS, INTERRUPTED
from .flags import Count, Csv, Flag, Json, given, refuse_both

if TYPE_CHECKING:
    from ..sweeping.engine import Outcome

Folder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
Folders = Annotated[tuple[Path, ...], tyro.conf.Positional, given("FROM [FROM ...]")]
File = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
Rows = Annotated[Literal["trials", "cells"] | None, given("{trials,cells}")]

_ROWS_SHOWN = 20
_REASONS_SHOWN = 5
_MOST_TRIALS = 1000
"""`results` lists at most this many trials unless --rows asks for them, so that the cells stay visible."""


def status(folder: Folder, json_: Json = False) -> None:
    """Show the progress of a sweep; in a terminal, live while it runs.

    Args:
        folder: Folder of the sweep.
    """
    console = Console()
    with open_store(folder) as store:
        seen = progress(store)
        if json_:
            print(json.dumps(_progress_row(seen)))
        elif not console.is_terminal or seen.writer is None:
            console.print(_progress_view(seen), soft_wrap=True)
        else:
            with Live(_progress_view(seen), console=console, auto_refresh=False) as live:
                while seen.writer is not None:
                    time.sleep(1)
                    seen = progress(store)
                    live.update(_progress_view(seen), refresh=True)


def results(
    folder: Folder,
    json_: Json = False,
    csv_: Csv = False,
    rows: Rows = None,
    best: Count = None,
    of: Count = None,
) -> None:
    """Show the results of a sweep, by trial and by cell.

    A cell is all trials that differ only in learning rate and seed.
    - If there are more than 1000 trials, only the cells are shown; see --rows.

    Args:
        folder: Folder of the sweep.
        csv_: Print CSV: the trials, or the rows that --rows names.
        rows: Show only trials or only cells.
        best: Average the best BEST of OF runs; if not given, 5 of 7 or 12 of 15, as in the paper.
        of: Use only this many runs of each rate, lowest seeds first.
    """
    refuse_both(json_, csv_)
    trim = Trim.asked(best, of)
    with open_store(folder) as store:
        trials, failures = store.trials(), store.failure_reasons()
    too_many = rows is None and not json_ and not csv_ and len(trials) > _MOST_TRIALS
    by_trial = [] if rows == "cells" or too_many else [trial_row(trial) for trial in trials]
    by_cell = [] if rows == "trials" else [cell_row(cell) for cell in cells(trials, trim)]
    if json_:
        print(json.dumps({"trials": by_trial, "cells": by_cell}, allow_nan=False))
    elif csv_:
        _print_csv(by_cell if rows == "cells" else by_trial)
    else:
        if too_many:
            print(f"{len(trials):,} trials; --rows trials lists them\n")
        elif rows != "cells":
            _print_trials(by_trial)
        if rows != "trials":
            _print_cells(by_cell)
        for line in _failure_lines(failures):
            print(line)


def print_outcome(outcome: Outcome, out: Path) -> None:
    """How many trials a sweep has trained, and why trials failed."""
    print(f"{outcome}; in {out}")
    if outcome.failures:
        with open_store(out) as store:
            print(*_failure_lines(store.failure_reasons()), sep="\n")
    if outcome.left:
        print("run the same command again to resume", file=sys.stderr)


def exit_code(outcome: Outcome) -> int:
    """The exit code of a command that trained a sweep."""
    if outcome.interrupted:
        return INTERRUPTED
    return FAILED_TRIALS if outcome.failures else 0


def _failure_lines(failures: Mapping[str, int]) -> list[str]:
    """Why trials failed, one line per reason."""
    lines = [f"{count} failed: {printable(reason)}" for reason, count in failures.items()]
    more = len(lines) - _REASONS_SHOWN
    if more > 0:
        lines[_REASONS_SHOWN:] = [f"and {count_text(more, 'other reason')}; see `skipinit results --json`"]
    return lines


def merge(target: Annotated[Folder, tyro.conf.arg(metavar="INTO")], sources: Folders) -> None:
    """Merge sweeps that were run in parts, or copy a sweep that runs.

    If sweeps share a trial, a result replaces a failure or an unfinished trial.
    - Unfinished trials bring their checkpoints and resume from there.
    - What `skipinit reproduce` measured at initialization comes along.

    Args:
        target: Folder of the merged sweep; made if it does not exist.
        sources: Folders of the sweeps to merge; they may be running, and do not change.
    """
    if not sources:
        raise ConfigError("no sweep to merge; give the folders to merge after INTO")
    from ..paper.collect import merge_probed  # loading the tables of the paper takes a while

    with ExitStack() as stack:
        stores = [stack.enter_context(open_store(source)) for source in sources]
        writer = stack.enter_context(open_writer(target))
        for source, store in zip(sources, stores, strict=True):
            merged = merge_sweep(writer, store)
            _print_merged(source, merged, merge_probed(source, target))


def export(folder: Folder, file: File, curves: Flag = False) -> None:
    """Write the results of a sweep as one text file, for version control.

    Args:
        folder: Folder of the sweep.
        file: File to write: JSON lines, one per result, always in the same order.
        curves: Write every epoch, not only the last.
    """
    with open_store(folder) as store:
        count = export_results(store, file, curves)
    print(f"{file}: {count_text(count, 'result')}")


def import_(folder: Folder, file: File) -> None:
    """Add exported results to a sweep, so that these trials are not trained again.

    Args:
        folder: Folder of the sweep; made if it does not exist.
        file: File that `skipinit store export` wrote.
    """
    found = read_export(file)
    with open_writer(folder) as writer:
        _print_merged(file, merge_into(writer, found))


def _print_merged(source: Path, merged: Merged, probes: int = 0) -> None:
    taken = {"checkpoint": merged.checkpoints, "measured figure": probes}
    words = [
        f"{count_text(merged.added, 'trial')} added",
        f"{merged.updated:,} updated",
        f"{merged.kept:,} already there",
        *(count_text(count, what) for what, count in taken.items() if count),
    ]
    print(f"{source}: {', '.join(words)}")
    for id in merged.conflicts:
        print(f"{source}: trial {id} has another result here, which is kept", file=sys.stderr)


def _progress_row(seen: Progress) -> Row:
    return {
        "trials": seen.trials,
        **seen.counts,
        "epochs_done": seen.epochs_done,
        "epochs_total": seen.epochs_total,
        "seconds_left": seen.seconds_left,
        "writer": asdict(seen.writer) if seen.writer else None,
        "failures": seen.failures,
    }


def _progress_view(seen: Progress) -> Text:
    counts = ", ".join(f"{count} {state}" for state, count in seen.counts.items() if count)
    share = seen.epochs_done / seen.epochs_total if seen.epochs_total else 1.0
    left = "" if seen.seconds_left is None else f", {duration_text(seen.seconds_left)} left"
    lines = [
        f"{count_text(seen.trials, 'trial')}: {counts or 'none'}",
        f"{seen.epochs_done:,} of {count_text(seen.epochs_total, 'epoch')} ({share:.0%}){left}",
        f"written by {seen.writer}" if seen.writer else "nobody is writing",
        *_failure_lines(seen.failures),
    ]
    header, rows = ["model", "scheme", "lr", "seed", "epoch", "test accuracy"], []
    for trial in seen.running[:_ROWS_SHOWN]:
        config, last = trial.config, trial.last
        rows.append(
            [printable(config.model.name), config.model.scheme, rate_text(config.lr), str(config.seed),
             f"{last.epoch if last else 0}/{config.epochs}", _number(last.test_accuracy if last else None, 2)]
        )  # fmt: skip
    lines += [in_columns(header, rows)] if seen.running else []
    more = len(seen.running) - _ROWS_SHOWN
    return Text("\n".join(lines + ([f"and {more} more"] if more > 0 else [])))


def _print_csv(rows: Sequence[Row]) -> None:
    names = [name for name in (rows[0] if rows else {}) if name != "rates"]
    writer = csv.DictWriter(sys.stdout, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _print_trials(rows: Sequence[Row]) -> None:
    digits = {"test_accuracy": 2, "train_loss": 4, "clean_train_loss": 4, "seconds": 0}
    # The row of a trial has the clean loss in place of the option that asks for it.
    shown = [axis for axis in _shown_axes(rows) if axis not in digits]
    if all(row["clean_train_loss"] is None for row in rows):
        del digits["clean_train_loss"]
    header = ["trial", *shown, "state", "epoch", *(name.replace("_", " ") for name in digits)]
    body = (
        [row["id"], *_axes(row, shown), row["state"], f"{row['epoch'] or 0}/{row['epochs']}",
         *(_number(row[name], places) for name, places in digits.items())]
        for row in rows
    )  # fmt: skip
    print(in_columns(header, body), end="\n\n")


def _print_cells(rows: Sequence[Row]) -> None:
    shown = _shown_axes(rows)
    header = [*shown, "metric", "mean ± std", "runs", "best lr", "within one std", "remarks"]
    body = ([*_axes(row, shown), row["metric"], *_summary(row)] for row in rows)
    print(in_columns(header, body), end="\n\n")


def _summary(row: Row) -> list[str]:
    remarks = [f"{row[name]} {name}" for name in ("unfinished", "failures") if row[name]]
    if row["best_lr"] is None:
        return ["−" if row["failed"] else "", "", "", "", "; ".join(["at chance"] * row["failed"] + remarks)]
    if row["edge"]:
        edge = "only one rate" if row["edge"] == "only" else f"at the {row['edge']} edge of the grid"
        remarks = [edge, *remarks]
    digits = 2 if row["metric"] == "test_accuracy" else 4
    spread = "" if row["std"] is None else f" ± {_number(row['std'], digits)}"
    return [
        f"{_number(row['mean'], digits)}{spread}",
        f"{row['kept']} of {row['runs']}",
        rate_text(row["best_lr"]),
        f"{rate_text(row['lr_low'])} to {rate_text(row['lr_high'])}",
        "; ".join(remarks),
    ]


def _shown_axes(rows: Sequence[Row]) -> list[str]:
    """The axes to show: model, scheme, and those in which rows of the same model and scheme differ."""
    axes = [axis for axis in AXES if rows and axis in rows[0]]
    alike: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        alike[row["model"], row["scheme"]].append(row)
    of_network = option_types(ModelConfig)
    differing = set(varying(rows, [axis for axis in axes if axis not in of_network]))
    differing |= {axis for group in alike.values() for axis in varying(group, axes)}
    return [axis for axis in axes if axis in ("model", "scheme") or axis in differing]


def _axes(row: Row, names: Iterable[str]) -> list[str]:
    return [rate_text(row[name]) if name == "lr" else printable(value_text(row[name])) for name in names]


def in_columns(header: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """Plain columns: unlike a rich table, fast for thousands of rows, and never truncated."""
    return align(list(zip(header, *body, strict=True)))


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
