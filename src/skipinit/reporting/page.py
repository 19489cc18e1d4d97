"""The report: one HTML file with everything in it, made from what folders hold and the paper printed."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import jinja2
import markupsafe

from ..files import write_whole
from ..paper.claims import CLAIMS
from ..paper.claims.claim import Claim, State, Verdict
from ..paper.collect import Collection
from ..paper.presets import PRESETS
from ..paper.published import Exhibit, exhibits
from ..paper.recipes import RECIPES, Recipe
from ..version import __version__
from .curves import Kind, draw_probe, draw_sweep
from .tables import ResultTable, make_table

STATES: tuple[State, ...] = ("does not hold", "holds", "not measured yet")


@dataclass(frozen=True)
class JudgedClaim:
    """A claim, where it stands, and who says so."""

    claim: Claim
    state: State
    verdicts: list[tuple[str, Verdict]]
    command: str
    """What measures it."""


@dataclass(frozen=True)
class Picture:
    """Panels of one figure under one set of measurements."""

    title: str
    conditions: str
    panels: list[str]


@dataclass(frozen=True)
class Section:
    """One table or figure of the paper."""

    recipe: Recipe
    heading: str
    tables: list[ResultTable]
    pictures: list[Picture]
    command: str


@dataclass(frozen=True)
class Origin:
    """Where some of the trials ran, and what they cost."""

    machine: str
    device: str
    versions: str
    commit: str
    trials: int
    seconds: float


def write_report(collection: Collection, path: Path) -> None:
    """Write the page; it appears whole or not at all."""
    html = make_page(collection)
    write_whole(path, lambda file: file.write(html.encode()))


def make_page(collection: Collection) -> str:
    """The page as text."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("skipinit.reporting", "template"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["powers"] = _powers
    claims = [_judge(claim, collection) for claim in CLAIMS.values()]
    sections = [_section(recipe, collection) for recipe in RECIPES.values()]
    return environment.get_template("page.html").render(
        version=__version__,
        claims={state: [each for each in claims if each.state == state] for state in STATES},
        sections=sections,
        measured=[each for each in sections if each.tables or each.pictures],
        presets=[preset for preset in PRESETS.values() if _is_used(preset.name, collection)],
        origins=_origins(collection),
        states=Counter(trial.state for trial in collection.trials),
    )


def _powers(text: str) -> markupsafe.Markup:
    """2^-3 with its exponent raised."""
    raised = re.sub(
        r"\^(-?\d+(?:\.\d+)?)", lambda power: f"<sup>{power[1].replace('-', '−')}</sup>", escape(text)
    )
    return markupsafe.Markup(raised)


def command(recipe: str, preset: str) -> str:
    """What makes a table or figure."""
    return f"skipinit reproduce {recipe} --preset {preset} --out results"


def _is_used(preset: str, collection: Collection) -> bool:
    return any(each.preset.name == preset for each in collection.sets)


def _judge(claim: Claim, collection: Collection) -> JudgedClaim:
    recipes = dict.fromkeys(
        recipe.name
        for exhibit in claim.exhibits
        for recipe in RECIPES.values()
        if exhibit in (*recipe.exhibits, *recipe.probes)
    )
    # Figure 6 is drawn from the runs of Figure 4.
    names = " ".join(name for name in recipes if name != "figure6")
    return JudgedClaim(claim, collection.state(claim), collection.verdicts(claim), command(names, "paper"))


def _heading(recipe: Recipe) -> str:
    """`Table 1` of table1."""
    return re.sub(r"(\d+)$", r" \1", recipe.name.capitalize())


def _section(recipe: Recipe, collection: Collection) -> Section:
    presets = list(dict.fromkeys(each.preset.name for each in collection.sets)) or ["quick"]
    shown = [exhibits()[name] for name in recipe.exhibits]
    return Section(
        recipe,
        _heading(recipe),
        [table for exhibit in shown for table in _tables(exhibit, collection)],
        [*_probe_pictures(recipe, collection), *_sweep_pictures(recipe, shown, collection)],
        command(recipe.name, presets[-1]),
    )


def _tables(exhibit: Exhibit, collection: Collection) -> list[ResultTable]:
    made = [make_table(exhibit, each) for each in reversed(collection.sets)]
    return [table for table in made if table]


def _probe_pictures(recipe: Recipe, collection: Collection) -> list[Picture]:
    return [
        Picture(
            f"Figure {name.removeprefix('figure')}",
            f"{probed.inputs} · {len(probed.rows)} blocks, the paper's size · seed {probed.seed}"
            f" · {probed.provenance['machine']} · commit {(probed.provenance['commit'] or 'unknown')[:12]}",
            [draw_probe(probed)],
        )
        for name in recipe.probes
        if name.startswith("figure") and (probed := collection.probes.get(name))
    ]


def _sweep_pictures(recipe: Recipe, shown: Sequence[Exhibit], collection: Collection) -> list[Picture]:
    kinds: tuple[Kind, ...] = ("rate",) if recipe.name == "figure6" else ("value", "rate")
    pictures = []
    for exhibit in shown:
        for each in reversed(collection.sets):
            if not exhibit.cells and (table := make_table(exhibit, each)):
                id = f"{recipe.name}-{exhibit.name}-{each.preset.name}-{each.precision}"
                title = f"{_heading(recipe)}: {exhibit.title} — {each.label}"
                told = " · ".join([table.conditions, *table.failed])
                pictures.append(Picture(title, told, draw_sweep(exhibit, each, id, kinds)))
    return pictures


def _origins(collection: Collection) -> list[Origin]:
    groups: defaultdict[tuple[str, str, str, str], list[float]] = defaultdict(list)
    for trial in collection.trials:
        if trial.provenance:
            origin = trial.provenance
            versions = ", ".join(f"{name} {version}" for name, version in origin.versions.items())
            groups[origin.machine, origin.device, versions, origin.commit or "unknown"].append(trial.seconds)
    return [Origin(*key, len(seconds), sum(seconds)) for key, seconds in groups.items()]
