"""The tables of results in the documents, made from the files in `results/`.

python docs/tables.py     # after new results: makes the tables of the three documents below anew

A table stands between `<!-- table: its name -->` and `<!-- end of table -->`. What is said of the tables is
written by hand.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from measurements import (
    BRIEF,
    FULL,
    REDUCED,
    RESULTS,
    Compared,
    at_the_papers,
    cells,
    rate_at,
    steps_to_failure,
    trial_like,
)

from skipinit.notation import rate_text
from skipinit.paper.cells import ExhibitCell
from skipinit.paper.collect import restate_earlier
from skipinit.paper.exhibits import EXHIBITS, Result, decimals
from skipinit.sweeping.summary import METRICS, Rate
from skipinit.training.records import Trial

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "docs/reproduce.md", ROOT / "results/README.md"]

_LABELS = {  # shorter than the paper's
    "batchnorm": "batch norm",
    "skipinit": "SkipInit α = 0",
    "skipinit alpha=1/sqrt(d)": "SkipInit α = 1/√d",
    "skipinit alpha=1": "SkipInit α = 1",
    "skipinit without L2": "SkipInit without L2",
    "regularized-skipinit": "Regularized SkipInit",
    "divide-sqrt2": "divide by √2",
    "batchnorm-divide-sqrt2": "batch norm, blocks divided by √2",
    "batchnorm-block-end": "batch norm at the block's end",
    "batchnorm-final-only": "last batch norm only",
}
_THREE = ("batchnorm", "skipinit alpha=1/sqrt(d)", "skipinit")


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("|" + "".join(f" {cell} |" if cell else " |" for cell in line) for line in lines)


def bold(text: str, wanted: bool = True) -> str:
    """The text, in bold if that is wanted."""
    return f"**{text}**" if wanted else text


def with_spread(rate: Rate, digits: int) -> str:
    """`93.68 ± 0.22`; of a single run the number alone."""
    spread = "" if rate.std is None else f" ± {rate.std:.{digits}f}"
    return f"{rate.mean:.{digits}f}{spread}"


def published(result: Result, with_rate: bool = False) -> str:
    """`93.5 ± 0.1`, or `0.007` where the printed spread is zero; `failed` for the paper's dash."""
    if result.value is None:
        return "failed"
    digits = decimals(result.metric)
    spread = f" ± {result.spread:.{digits}f}" if result.spread else ""
    return f"{result.value:.{digits}f}{spread}" + (f" at {result.rate}" if with_rate else "")


def numbers(cell: ExhibitCell, lr: float, digits: int) -> tuple[str, ...]:
    """Accuracy and loss at a rate; how its runs ended if they were not finite; nothing if there are none."""
    accuracy, loss = rate_at(cell, "test_accuracy", lr), rate_at(cell, "train_loss", lr)
    if accuracy is None or loss is None:
        return ()
    step = steps_to_failure(cell).get(lr)
    broken = f"not finite at step {step}"
    return (f"{accuracy.mean:.2f}", f"{loss.mean:.{digits}f}") if step is None else (broken,)


def rates_of(rows: Iterable[ExhibitCell]) -> list[float]:
    """All rates at which one of these cells has a result."""
    return sorted({trial.config.lr for cell in rows for trial in cell.recorded if trial.has_result})


# Batch sizes, with a column for each rate.


def over_batch(figure: str, method: str, digits: int, *sizes: int, beside: str = "") -> str:
    """Accuracy / loss of a method in a reduced figure, the best of each row in bold.

    Args:
        figure: the figure.
        method: the method.
        digits: decimals of the loss.
        sizes: batch sizes; all that were run if not given.
        beside: a second figure, for the sizes that the first has not.
    """
    found = {at: cell for (name, of, at), cell in cells(REDUCED).items() if (name, of) == (figure, method)}
    if beside:
        others = {at: c for (name, of, at), c in cells(REDUCED).items() if (name, of) == (beside, method)}
        found = others | found
    rows = {at: found[at] for at in sorted(sizes or found)}
    rates = rates_of(rows.values())

    def text(cell: ExhibitCell, lr: float) -> str:
        parts = numbers(cell, lr, digits)
        best = [cell.summaries[metric].summary.best for metric in METRICS]
        first = [rate is not None and rate.lr == lr for rate in best]
        if all(first) and len(parts) == 2:
            return bold(" / ".join(parts))
        return " / ".join(bold(part, wanted) for part, wanted in zip(parts, first, strict=False))

    lines = [[str(at), *(text(cell, lr) for lr in rates)] for at, cell in rows.items()]
    return markdown(["batch", *map(rate_text, rates)], lines)


def in_full_over_batch() -> str:
    """Figures 3 and 4 in full, and below each row the same batch sizes in 20 epochs."""
    columns = [("figure4", at) for at in (16, 32, 64, 256)] + [("figure3", 256)]

    def text(label: str, figure: str, method: str, at: int) -> str:
        # Of the columns, only batch norm has two of one batch size.
        if (figure, method, at) not in cells(FULL) or (figure == "figure3" and method != "batchnorm"):
            return ""
        cell = cells(label)[figure, method, at]
        accuracy, loss = (cell.results[metric].value for metric in cell.exhibit.metrics)
        return f"{accuracy:.2f} / {loss:.{4 if label == FULL else 3}f}"

    rows = []
    for method in ("batchnorm", "skipinit", "regularized-skipinit"):
        rows.append([_LABELS[method], *(text(FULL, figure, method, at) for figure, at in columns)])
        rows.append(["in 20 epochs", *(text(REDUCED, figure, method, at) for figure, at in columns)])
    return markdown(["batch", "16", "32", "64", "256", "256, ghost batches of 64"], rows)


# The tables over depth, beside the paper.


def in_full(exhibit: str, at: int) -> dict[str, ExhibitCell]:
    """The cells of a table at one depth, by the labels of their methods."""
    return {
        _LABELS[method]: cells(FULL)[exhibit, method, at]
        for method in EXHIBITS[exhibit].methods
        if (exhibit, method, at) in cells(FULL)
    }


def beside_the_paper(accuracy: str, loss: str, at: int, digits: int) -> str:
    """Accuracy and loss beside the paper's; an accuracy that differs from it in bold."""
    lines = []
    for label, cell in in_full(accuracy, at).items():
        first, second = Compared.of(cell, accuracy), Compared.of(cell, loss)
        here = bold(with_spread(first.rate, 2), first.is_far), with_spread(second.rate, digits)
        lines.append([label, here[0], published(first.paper), here[1], published(second.paper)])
    return markdown(["", "test accuracy", "paper", "training loss", "paper"], lines)


def distances(accuracy: str, loss: str | None, at: int, digits: int) -> str:
    """The same with rates, and with the distance in spreads: both together, and the paper's alone.

    Args:
        accuracy: the table of accuracies.
        loss: the table of losses; None if the paper has none.
        at: the depth.
        digits: decimals of the loss.
    """
    lines = []
    for label, cell in in_full(accuracy, at).items():
        first = Compared.of(cell, accuracy)
        both, theirs = (f"{spreads:+.1f}".replace("-", "−") for spreads in first.spreads)
        numbers = with_spread(first.rate, 2), published(first.paper), bold(f"{both} ({theirs})", first.is_far)
        losses = [with_spread(at_the_papers(cell, "train_loss"), digits)]
        if loss:
            losses.append(published(EXHIBITS[loss].cells[cell.method.name, at], with_rate=True))
        lines.append([label, rate_text(cell.config.lr), *numbers, *losses])
    headings = ["", "rate", "test accuracy", "paper", "off by", "training loss"]
    return markdown([*headings, *(["paper, at its own best rate"] if loss else [])], lines)


def neighbours(exhibit: str, digits: int, with_paper: bool = False) -> str:
    """Accuracy / loss at depth 16 over rates, the paper's best rate in bold."""
    rows = in_full(exhibit, 16)
    rates = rates_of(rows.values())
    lines = []
    for label, cell in rows.items():
        texts = {lr: " / ".join(numbers(cell, lr, digits)) for lr in rates}
        texts[cell.config.lr] = bold(texts[cell.config.lr])
        paper = [published(EXHIBITS[exhibit].cells[cell.method.name, 16])] if with_paper else []
        lines.append([label, *texts.values(), *paper])
    return markdown(["", *map(rate_text, rates), *(["paper"] if with_paper else [])], lines)


def with_neighbours(exhibit: str, *depths: int) -> str:
    """Beside the paper, the accuracy at its best rate and, in parentheses, at half and twice that rate."""

    def measured(method: str, at: int) -> str:
        if (cell := cells(FULL).get((exhibit, method, at))) is None:
            return "not run"
        others = [rate_at(cell, "test_accuracy", cell.config.lr * factor) for factor in (0.5, 2)]
        around = ", ".join(f"{rate.mean:.2f}" for rate in others if rate)
        return with_spread(at_the_papers(cell), 2) + (f" ({around})" if around else "")

    headings, lines = [""], {method: [_LABELS[method]] for method in EXHIBITS[exhibit].methods}
    for at in depths:
        headings += [f"depth {at}", "paper"]
        for method, line in lines.items():
            line += [measured(method, at), published(EXHIBITS[exhibit].cells[method, at])]
    return markdown(headings, lines.values())


def at_a_glance() -> str:
    """Three methods on four networks, beside the paper where the epochs are the paper's."""

    def text(label: str, exhibit: str, method: str, at: int) -> str:
        rate = at_the_papers(cells(label)[exhibit, method, at])
        if label != FULL:
            return f"{rate.mean:.1f}"
        return f"{with_spread(rate, 2)} ({published(EXHIBITS[exhibit].cells[method, at])})"

    networks = {
        ("WRN-16-2, CIFAR-10", "200, three"): (FULL, "table1", 16),
        ("WRN-100-2, CIFAR-10", "200, one"): (FULL, "table1", 100),
        ("WRN-16-2, CIFAR-100", "200, three"): (FULL, "table5", 16),
        ("WRN-1000-2, CIFAR-10", "10, one"): (REDUCED, "table1", 1000),
    }
    lines = [
        [*titles, *(text(label, exhibit, method, at) for method in _THREE)]
        for titles, (label, exhibit, at) in networks.items()
    ]
    methods = ["batch norm", "SkipInit from α = 1/√d", "SkipInit from 0"]
    return markdown(["network, data", "epochs, seeds", *methods], lines)


def over_depth() -> str:
    """Tables 1 and 3 in fewer epochs: accuracy / loss at the paper's best rate."""
    depths = (16, 100, 1000)
    epochs = {at: cells(REDUCED)["table1", "batchnorm", at].config.epochs for at in depths}

    def text(method: str, at: int) -> str:
        cell = cells(REDUCED)["table1", method, at]
        return f"{' / '.join(numbers(cell, cell.config.lr, 3))} at {rate_text(cell.config.lr)}"

    lines = [[_LABELS[method], *(text(method, at) for at in depths)] for method in _THREE]
    return markdown(["", *(f"depth {at}, **{epochs[at]} epochs**" for at in depths)], lines)


def who_trains(depth: int, *exhibits: str) -> str:
    """Methods in few epochs: the accuracy at the best rate that was run, or how they fail; and the paper."""
    places = [(exhibit, method, depth) for exhibit in exhibits for method in EXHIBITS[exhibit].methods]
    lines = []
    for exhibit, method, at in places:
        if (cell := cells(BRIEF).get((exhibit, method, at))) is None:
            continue
        rates = ", ".join(map(rate_text, rates_of([cell])))
        protocol = "earlier" if cell.earlier else "today's"
        paper = published(EXHIBITS[exhibit].cells[method, at])
        lines.append([_LABELS[method], _fate(cell), rates, protocol, paper])
    return markdown(["", "test accuracy", "rates", "protocol", "paper"], lines)


def _fate(cell: ExhibitCell) -> str:
    best = cell.summaries["test_accuracy"].summary.best
    if best is not None:
        return f"{best.mean:.1f} at {rate_text(best.lr)}"
    if broken := steps_to_failure(cell):
        steps = " or ".join(map(str, sorted(set(broken.values()))))
        return f"not finite at step {steps}" if broken.keys() == set(rates_of([cell])) else "fails"
    return "chance"


# What the paper leaves open, and the earlier protocol: trials that are in no cell of today's.

_PROTOCOLS: dict[str, dict[str, str]] = {
    "zeros, He": {"crop_padding": "zero", "classifier_init": "he"},
    "reflection, He": {"classifier_init": "he"},
    "**reflection, zero**": {},
    "edge repeated, zero": {"crop_padding": "symmetric"},
    "reflection, zero, raw x": {"projection": "raw"},
}
"""The choices that were compared, by what differs from today's protocol."""


def ended(trial: Trial | None) -> str:
    """`92.84 / 0.0028`, how the trial ended, or that there is none."""
    if trial is None:
        return "not run"
    if trial.state == "diverged" or trial.last is None:
        return f"not finite at step {trial.step}"
    return f"{trial.last.test_accuracy:.2f} / {trial.last.train_loss:.4f}"


def papers(cell: ExhibitCell) -> tuple[Result, Result]:
    """The published accuracy and loss of a cell of Tables 1 and 3."""
    first, second = (EXHIBITS[table].cells[cell.method.name, cell.at] for table in ("table1", "table3"))
    return first, second


def protocols() -> str:
    """Six schemes at Table 1's best rates under each protocol, and the summed distances from the paper."""
    rows = in_full("table1", 16)
    columns = [
        {label: trial_like(cell.config, **options) for label, cell in rows.items()}
        for options in _PROTOCOLS.values()
    ]
    lines = [
        [
            f"{label}, {rate_text(cell.config.lr)}",
            " / ".join(map(published, papers(cell))),
            *(
                bold(ended(trials[label]), not options)
                for trials, options in zip(columns, _PROTOCOLS.values(), strict=True)
            ),
        ]
        for label, cell in rows.items()
    ]
    lines += [
        ["sum of distances in accuracy", "", *(_accuracy_distance(trials, rows) for trials in columns)],
        ["sum of distances in loss, factors of 2", "", *(_loss_distance(trials, rows) for trials in columns)],
    ]
    return markdown(["scheme, rate", "paper, Tables 1 / 3", *_PROTOCOLS], lines)


def _accuracy_distance(trials: Mapping[str, Trial | None], rows: Mapping[str, ExhibitCell]) -> str:
    """A run that was not finite counts as chance."""
    values = {
        name: trial.last.test_accuracy if trial.last else 10.0 for name, trial in trials.items() if trial
    }
    total = sum(abs(value - (papers(rows[name])[0].value or 0.0)) for name, value in values.items())
    return f"{total:.2f}{_without(trials.keys() - values.keys())}"


def _loss_distance(trials: Mapping[str, Trial | None], rows: Mapping[str, ExhibitCell]) -> str:
    values = {name: trial.last.train_loss for name, trial in trials.items() if trial and trial.last}
    total = sum(
        abs(math.log2(value / (papers(rows[name])[1].value or 1.0))) for name, value in values.items()
    )
    return f"{total:.2f}{_without(trials.keys() - values.keys())}"


def _without(labels: Iterable[str]) -> str:
    return "".join(f" without {label.removeprefix('SkipInit ')}" for label in sorted(labels))


def earlier_protocol() -> str:
    """Tables 1 and 3 at depth 16 with zero padding and a He classifier, seed 0."""
    rates = [2.0**exponent for exponent in range(-4, 1)]
    lines = []
    for label, cell in in_full("table1", 16).items():
        config = restate_earlier(cell.config)
        grid = [trial_like(replace(config, lr=lr)) for lr in rates]
        paper = [published(result, with_rate=True) for result in papers(cell)]
        lines.append([label, *(ended(trial) if trial else "" for trial in grid), *paper])
    return markdown(["scheme", *map(rate_text, rates), "accuracy, Table 1", "loss, Table 3"], lines)


def tried() -> str:
    """What was tried for SkipInit from α = 0 under the earlier protocol."""
    config = restate_earlier(cells(FULL)["table1", "skipinit", 16].config)
    changes: dict[str, dict[str, Any]] = {
        "as above": {},
        "another seed": {"seed": 1},
        "tf32 in place of bfloat16": {"precision": "tf32"},
        "crops padded by reflection": {"crop_padding": "reflect"},
    }
    lines = [[what, ended(trial_like(config, **options))] for what, options in changes.items()]
    return markdown(["what", "test accuracy / training loss"], lines)


# Speed.

_NETWORKS = {
    "wrn16_2": "WRN-16-2",
    "wrn28_10": "WRN-28-10",
    "wrn100_2": "WRN-100-2",
    "wrn1000_2": "WRN-1000-2",
}


def _rows_of(file: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((RESULTS / file).read_text(encoding="utf-8"))["rows"]
    return rows


def speed_of_one_run() -> str:
    """`train-speed.json`."""
    lines = []
    for row in _rows_of("train-speed.json"):
        fastest, slowest = row["fastest_and_slowest"]
        speed = f"{row['ms_per_step']} ({fastest} to {slowest})", f"{row['images_per_second']:,}"
        rest = str(row["peak_memory_gib"]), str(row.get("times_as_fast", ""))
        lines.append([_NETWORKS[row["network"]], row["scheme"], row["way"], *speed, *rest])
    return markdown(["network", "scheme", "way", "ms a step", "images/s", "GiB", "times as fast"], lines)


def speed_of_many() -> str:
    """`sweep-speed.json`: plain loops, then packs with the nearest of three counted bounds of a step."""
    order = list(_NETWORKS)
    lines = []
    for row in sorted(
        _rows_of("sweep-speed.json"),
        key=lambda row: (order.index(row["network"]), row["scheme"] == "batchnorm", "pack" in row["way"]),
    ):
        speed, details = f"{row['images_per_second']:,}", ("", "", "")
        if "pack" in row["way"]:
            slowest, fastest = row["slowest_and_fastest"]
            speed += f" ({slowest:,} to {fastest:,})"
            bound = f"{row['nearest_bound']}, {row['bounds_ms'][row['nearest_bound']]:.2f} ms"
            details = f"{row['ms_per_step']:.2f}", bound, f"{row['held_memory_gib']:.2f}"
        lines.append([_NETWORKS[row["network"]], row["scheme"], row["way"], speed, *details])
    return markdown(["network", "scheme", "way", "images/s", "ms a step", "at least", "GiB"], lines)


TABLES: dict[str, Callable[[], str]] = {
    "at a glance": at_a_glance,
    "tables 1 and 3, depth 16": lambda: beside_the_paper("table1", "table3", 16, 4),
    "tables 1 and 3, depth 100": lambda: beside_the_paper("table1", "table3", 100, 4),
    "tables 5 and 6, depth 16": lambda: beside_the_paper("table5", "table6", 16, 3),
    "table 4": lambda: with_neighbours("table4", 16, 100),
    "protocols": protocols,
    "figure 3, batch norm": lambda: over_batch("figure3", "batchnorm", 3),
    "figure 3, skipinit": lambda: over_batch("figure3", "skipinit", 3),
    "figure 3, no normalization": lambda: over_batch("figure3", "none", 3),
    "figure 4, batch norm": lambda: over_batch("figure4", "batchnorm", 3),
    "figure 4, regularized": lambda: over_batch("figure4", "regularized-skipinit", 3),
    "figures 3 and 4 in full": in_full_over_batch,
    "figure 7, batch norm": lambda: over_batch("figure7", "batchnorm", 3, 128, 512),
    "figure 8, batch norm": lambda: over_batch("figure8", "batchnorm", 3),
    "figure 7, skipinit": lambda: over_batch("figure7", "skipinit", 3),
    "figures 7 and 8, regularized": lambda: over_batch(
        "figure8", "regularized-skipinit", 3, beside="figure7"
    ),
    "figure 7, no normalization": lambda: over_batch("figure7", "none", 3),
    "earlier protocol": earlier_protocol,
    "tried": tried,
    "who trains, depth 100": lambda: who_trains(100, "table1"),
    "who trains, depth 1000": lambda: who_trains(1000, "table1", "table4"),
    "who trains, CIFAR-100": lambda: who_trains(1000, "table5"),
    "over depth": over_depth,
    "distances, depth 100": lambda: distances("table1", "table3", 100, 4),
    "distances, table 4, depth 100": lambda: distances("table4", None, 100, 4),
    "neighbours, table 4": lambda: neighbours("table4", 4, with_paper=True),
    "distances, CIFAR-100": lambda: distances("table5", "table6", 16, 3),
    "neighbours, CIFAR-100": lambda: neighbours("table5", 3),
    "distances, depth 16": lambda: distances("table1", "table3", 16, 4),
    "neighbours, depth 16": lambda: neighbours("table1", 4),
    "speed of one run": speed_of_one_run,
    "speed of many runs": speed_of_many,
}

_PLACE = re.compile(r"<!-- table: ([^>]+) -->\n\n.*?\n\n<!-- end of table -->", re.DOTALL)


def renewed(text: str) -> str:
    """A document with its tables made anew."""
    return _PLACE.sub(
        lambda place: f"<!-- table: {place[1]} -->\n\n{TABLES[place[1]]()}\n\n<!-- end of table -->", text
    )


if __name__ == "__main__":
    for path in DOCUMENTS:
        path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
