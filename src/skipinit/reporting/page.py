"""The report: one HTML file with the results of folders beside the paper's numbers."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import get_args

import jinja2
import markupsafe

from .. import __version__
from ..errors import ConfigError, system_errors_explained
from ..files import write_whole
from ..notation import count_text
from ..paper.cells import ExhibitCell
from ..paper.claims import CLAIMS
from ..paper.claims.claim import ClaimState
from ..paper.collect import Collection, JudgedClaim, collect, list_places
from ..paper.exhibits import EXHIBITS, Exhibit
from ..paper.presets import FEWEST_EPOCHS, PRESETS
from ..probing.history import WatchReport
from ..sweeping.results import watched
from ..sweeping.store import FILE
from .curves import GLANCE, SHORT, draw_probe, draw_sweep, draw_training, draw_watched, probe_title
from .tables import ResultTable, conditions, make_table

_WATCHED = 12
"""The most watched trainings that the page shows: a picture has some 20 kB."""


@system_errors_explained()
def report(folders: str | Path | Iterable[str | Path], out: str | Path = "report.html") -> Path:
    """Write one HTML file: tables, figures and claims of the paper beside what was measured.

        >>> skipinit.report(["results", "results/wrn16_2-cifar10.jsonl"], "report.html")
        PosixPath('report.html')

    Args:
        folders: one or more that `reproduce` or `sweep` filled, or files that `store export` wrote.
        out: the file to write; it loads nothing else, not even over the network.
    """
    places, path = list_places(folders), Path(out)
    for read in (place / FILE if place.is_dir() else place for place in places):
        if path.exists() and read.exists() and path.samefile(read):
            raise ConfigError(f"{path}: the report would replace the results it reads; give another path")
    html = make_page(collect(places), _watched_in(places))
    write_whole(path, lambda file: file.write(html.encode()))
    return path


def _watched_in(places: Iterable[Path]) -> list[WatchReport]:
    """The watched trainings, each once; of several copies, the one with most measurements."""
    seen: dict[str, WatchReport] = {}
    for place in (place for place in places if (place / FILE).exists()):
        for id, each in watched(place).items():
            if id not in seen or len(each.steps) > len(seen[id].steps):
                seen[id] = each
    return [*seen.values()]


@dataclass(frozen=True)
class Picture:
    """Panels of one figure under one set of measurements."""

    title: str
    conditions: str
    panels: list[str]
    seen: Sequence[str] = ()
    """What it shows, in words."""


@dataclass(frozen=True)
class Section:
    """One table or figure of the paper."""

    exhibit: Exhibit
    tables: list[ResultTable]
    pictures: list[Picture]
    command: str
    """The command that measures it."""


@dataclass(frozen=True)
class Origin:
    """Where some of the trials ran, and what they cost."""

    machine: str
    device: str
    versions: str
    commit: str
    trials: int
    seconds: float


def make_page(collection: Collection, seen: Sequence[WatchReport] = ()) -> str:
    """The page as text; `seen` are the reports of watched trainings."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("skipinit.reporting", "template"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["powers"] = _powers
    judged = [collection.judge(name) for name in CLAIMS]
    sections = [_section(exhibit, collection) for exhibit in EXHIBITS.values()]
    used = [cells[0].preset.name for cells in collection.sets.values()]
    return environment.get_template("page.html").render(
        version=__version__,
        claims={state: [each for each in judged if each.state == state] for state in get_args(ClaimState)},
        departing=Counter(each.state for each in judged if _departs(each, collection)),
        commands={each.claim: _measuring(each) for each in judged},
        deciding={each.claim: _deciding(each, collection) for each in judged},
        glance=_glance(collection),
        sections=sections,
        watched=_watched_pictures(seen),
        unshown=max(0, len(seen) - _WATCHED),
        measured=[each for each in sections if each.tables or each.pictures],
        presets=[preset for preset in PRESETS.values() if preset.name in used],
        origins=_origins(collection),
        states=Counter(trial.state for trial in collection.trials),
        outside=collection.outside,
        fewest_epochs=FEWEST_EPOCHS,
    )


def _glance(collection: Collection) -> list[Picture]:
    """The opening pictures: trainings of Table 1 by depth, and variances beside theory."""
    table, pictures = EXHIBITS["table1"], []
    for depth in sorted({at for _, at in table.cells}):
        if found := _opening_cells(collection, table, depth):
            endings = [
                f"{ending}: {', '.join(SHORT[cell.method.name] for cell in found if cell.ending == ending)}"
                for ending in dict.fromkeys(cell.ending for cell in found)
            ]
            panel = draw_training(found, collection.curves, f"training-{depth}")
            pictures.append(Picture(f"{depth} layers", _sources(table, found), [panel], endings))
    titles = {
        "figure2a": "At the start, without normalization",
        "figure2b": "At the start, with batch norm",
        "figure2c": "At the start, batch norm, convolutions",
    }
    for name, title in titles.items():
        if probed := collection.probes.get(name):
            panel = draw_probe(probed, f"glance-{name}")
            pictures.append(Picture(title, f"points measured, lines theory · {probed.inputs}", [panel]))
    return pictures


def _opening_cells(collection: Collection, table: Exhibit, depth: int) -> list[ExhibitCell]:
    """The cells of one set of measurements, the one where most networks train; of several the most faithful.

    What fails may be another set's: it fails sooner, and is rarely trained for long.
    """
    sets = [
        {
            cell.method.name: cell
            for cell in cells
            if cell.exhibit == table and cell.at == depth and cell.method.name in GLANCE and cell.ending
        }
        for cells in reversed(collection.sets.values())
    ]
    shown = max(sets, key=lambda cells: sum(cell.ending == "trains" for cell in cells.values()), default={})
    data = {cell.config.data for cell in shown.values()}
    for cells in sets:
        failing = {name: cell for name, cell in cells.items() if cell.ending != "trains"}
        if {cell.config.data for cell in failing.values()} <= data:
            shown = failing | shown
    return [shown[name] for name in GLANCE if name in shown]


def _sources(table: Exhibit, cells: Sequence[ExhibitCell]) -> str:
    """The sets of measurements that cells are from; which cells, if not of the set of those that train."""
    by_label: defaultdict[str, list[ExhibitCell]] = defaultdict(list)
    for cell in sorted(cells, key=lambda cell: cell.ending != "trains"):
        by_label[cell.label].append(cell)
    words: list[str] = []
    for label, mine in by_label.items():
        methods = ", ".join(SHORT[cell.method.name] for cell in mine)
        words.append((f"{methods}: " if words else "") + f"{label} · {conditions(table, mine)}")
    return "; ".join(words)


def _powers(text: str) -> markupsafe.Markup:
    """2^-3, 2^(ℓ-1) and ℓ^p with the exponent raised."""
    raised = re.sub(
        r"\^(-?\d+(?:\.\d+)?|\([^)]+\)|p\b)",
        lambda power: f"<sup>{power[1].strip('()').replace('-', '−')}</sup>",
        escape(text),
    )
    return markupsafe.Markup(raised)


def _command(names: str, preset: str) -> str:
    """The command that makes tables and figures; flags may follow the name of the preset."""
    return f"skipinit reproduce {names} --preset {preset} --out results"


def _measuring(judged: JudgedClaim) -> str:
    """The command that measures what a claim is about."""
    read = CLAIMS[judged.claim].exhibits
    names = [each.name for each in EXHIBITS.values() if {each.name, *each.probes} & {*read}]
    return _command(" ".join(names), "paper")


def _departs(judged: JudgedClaim, collection: Collection) -> bool:
    """Whether something was not as in the paper in the measurements that decide a claim."""
    cells, read = collection.sets.get(judged.decided_by, ()), CLAIMS[judged.claim].exhibits
    return any(cell.departures for cell in cells if cell.exhibit.name in read)


def _deciding(judged: JudgedClaim, collection: Collection) -> str:
    """The set of measurements that decides a claim, and what was not as in the paper there."""
    differs = collection.departures(judged.decided_by, CLAIMS[judged.claim])
    return f"{judged.decided_by}: {differs}" if differs else judged.decided_by


def _section(exhibit: Exhibit, collection: Collection) -> Section:
    presets = [
        cells[0].preset.name + ("" if cells[0].own_precision else f" --precision {cells[0].config.precision}")
        for cells in collection.sets.values()
        if any(cell.exhibit == exhibit for cell in cells)
    ] or ["reduced" if exhibit.data == "imagenet" else "quick"]  # digits say nothing of ImageNet
    tables = [
        table
        for metric in exhibit.metrics
        for cells in reversed(collection.sets.values())
        if (table := make_table(exhibit, metric, cells))
    ]
    pictures = [*_probe_pictures(exhibit, collection), *_sweep_pictures(tables, collection)]
    return Section(exhibit, tables, pictures, _command(exhibit.name, presets[-1]))


def _probe_pictures(exhibit: Exhibit, collection: Collection) -> list[Picture]:
    return [
        Picture(
            f"Figure {name.removeprefix('figure')}: {probe_title(probed)}",
            f"{probed.inputs} · {len(probed.rows)} blocks, the paper's size · seed {probed.seed}"
            f" · {probed.provenance['machine']} · commit {(probed.provenance['commit'] or 'unknown')[:12]}",
            [draw_probe(probed, name)],
        )
        for name in exhibit.probes
        if name.startswith("figure") and (probed := collection.probes.get(name))
    ]


def _sweep_pictures(tables: list[ResultTable], collection: Collection) -> list[Picture]:
    return [
        Picture(table.title, " · ".join([table.conditions, _runs_text(table, cells), *table.failed]), panels)
        for table in tables
        for cells in [collection.sets[table.label]]
        if (panels := draw_sweep(table.exhibit, table.metric, cells, table.id))
    ]


def _runs_text(table: ResultTable, cells: Sequence[ExhibitCell]) -> str:
    """How many runs a point of a figure is the mean of."""
    summaries = [cell.summaries.get(table.metric) for cell in cells if cell.exhibit == table.exhibit]
    kept = {each.summary.best.kept for each in summaries if each and each.summary.best}
    if kept <= {1}:
        return "one run at each point"
    return f"each point the mean of {min(kept)}{f' to {max(kept)}' * (len(kept) > 1)} runs"


def _watched_pictures(seen: Sequence[WatchReport]) -> list[Picture]:
    return [
        Picture(
            each.model,
            f"{count_text(len(each.steps), 'measurement')} of {count_text(len(each.blocks), 'block')}, "
            f"steps {each.steps[0]} to {each.steps[-1]}",
            draw_watched(each, f"watched-{number}"),
        )
        for number, each in enumerate(seen[:_WATCHED])
    ]


def _origins(collection: Collection) -> list[Origin]:
    groups: defaultdict[tuple[str, str, str, str], list[float]] = defaultdict(list)
    for trial in collection.trials:
        if trial.provenance:
            origin = trial.provenance
            versions = ", ".join(f"{name} {version}" for name, version in origin.versions.items())
            groups[origin.machine, origin.device, versions, origin.commit or "unknown"].append(trial.seconds)
    return [Origin(*key, len(seconds), sum(seconds)) for key, seconds in groups.items()]
