"""The report: what it says of a number, and that it says everything, whole and loud."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

import skipinit
from skipinit.errors import ConfigError
from skipinit.paper.cells import ExhibitCell
from skipinit.paper.claims import CLAIMS
from skipinit.paper.collect import collect
from skipinit.paper.exhibits import EXHIBITS
from skipinit.reporting.curves import draw_training
from skipinit.reporting.page import _runs_text, _section, make_page
from skipinit.reporting.tables import make_table
from skipinit.sweeping.exchange import export_results
from skipinit.sweeping.store import open_store, open_writer
from support.made_up_trials import (
    Scores,
    collection_of,
    first_set,
    full_collection,
    make_collection,
    trials,
    write_store,
)

VOID = {"meta", "link", "br"}


class Page(HTMLParser):
    """What a page is made of; raises where its elements do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def attributes(self, name: str) -> list[str]:
        return [value for _, attributes in self.elements if (value := attributes.get(name))]

    def count(self, tag: str) -> int:
        return sum(found == tag for found, _ in self.elements)


@pytest.fixture(scope="module")
def text() -> str:
    return make_page(full_collection())


@pytest.fixture(scope="module")
def full(text: str) -> Page:
    return Page(text)


def test_only_what_agrees_is_green() -> None:
    made = list(trials("reduced", lambda _: (41.4, 1.0), names=("table1",)))
    page = make_page(make_collection(iter(made)))
    badges = re.findall(r'<span class="badge (\w+)">([^<]*)</span></td>', page)
    cells = {replace(each.config, lr=1.0, seed=0) for each in made}
    assert len(badges) == 2 * len(cells), "Table 3 is read from the same trials"
    assert not any(kind == "agrees" for kind, _ in badges), "all were reduced and none fails"
    assert ("open", "-51.9 points, 40 of 200 epochs") in badges
    failing = make_page(make_collection(trials("reduced", lambda _: None, names=("table1",))))
    assert '<span class="badge agrees">fails, as in the paper</span>' in failing


def test_the_page_holds_every_table_figure_and_claim(full: Page) -> None:
    assert {*(f"table{n}" for n in range(1, 8)), *(f"figure{n}" for n in range(2, 9))} <= set(
        full.attributes("id")
    )
    for exhibit in EXHIBITS.values():
        assert exhibit.title in full.text
    for claim in CLAIMS.values():
        assert claim.statement in full.text
    assert set(CLAIMS) <= set(full.attributes("id"))
    assert "a machine" in full.text
    assert "0123abcd" in full.text


def test_the_page_is_built_for_every_reader(full: Page) -> None:
    ids = full.attributes("id")
    assert len(ids) == len(set(ids))
    tags = [tag for tag, _ in full.elements]
    assert tags.count("caption") == tags.count("table") > 10
    assert all(attributes.get("scope") for tag, attributes in full.elements if tag == "th")
    assert {"header", "nav", "main", "footer"} <= set(tags)
    assert tags.count("h1") == 1
    labels = [attributes.get("aria-label") for tag, attributes in full.elements if tag == "svg"]
    assert len(labels) > 15
    assert all(labels)
    levels = [int(tag[1]) for tag in tags if re.fullmatch("h[1-6]", tag)]
    assert all(after - before <= 1 for before, after in pairwise(levels))
    anchors = [attributes["href"] for tag, attributes in full.elements if tag == "a"]
    assert {anchor.removeprefix("#") for anchor in anchors if anchor} <= set(ids)
    headings = [attributes.get("id") for tag, attributes in full.elements if tag == "h2"]
    contents = [anchor.removeprefix("#") for anchor in anchors if anchor and anchor[1:] in headings]
    assert list(dict.fromkeys(contents)) == headings, "the table of contents has every section, in order"


def test_the_page_asks_for_nothing(full: Page) -> None:
    addresses = full.attributes("href") + full.attributes("src") + full.attributes("xlink:href")
    assert all(address.startswith(("#", "data:")) for address in addresses)
    assert full.count("script") == 0
    assert full.count("img") == 0


def test_pictures_follow_light_and_dark(text: str) -> None:
    svgs = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)
    assert len(svgs) > 15
    for svg in svgs:
        assert "var(--series-0)" in svg
        assert "currentColor" in svg
        assert not re.search(r"#(000000|ffffff|0072B2)", svg, flags=re.IGNORECASE)
        assert "<text" in svg


def test_the_same_results_make_the_same_page() -> None:
    pages = [make_page(make_collection(trials("quick", names=("figure7",)))) for _ in range(2)]
    assert pages[0] == pages[1]


def test_pictures_come_first_then_tables_then_claims(text: str) -> None:
    places = [text.index(f'<h2 id="{name}">') for name in ("glance", "differences", "table1", "claims")]
    assert places == sorted(places)
    opening = text[places[0] : places[1]]
    assert len(re.findall(r"<svg", opening)) == 6, "three depths, three variances"
    assert [f"<strong>{depth} layers</strong>" in opening for depth in (16, 100, 1000)] == [True] * 3


def test_the_opening_says_who_trains_who_stays_and_who_explodes() -> None:
    def scores(cell: ExhibitCell) -> Scores:
        return {"skipinit alpha=1": None, "divide-sqrt2": (10.0, 2.3)}.get(cell.method.name, (90.0, 0.1))

    made = make_collection(trials("demo", scores, names=("table1",)))
    text = Page(make_page(made)).text
    assert text.count("explodes: SkipInit from α = 1") == 3
    assert text.count("at chance: divided by √2") == 2, "at depth 100 the demo leaves it out"
    assert text.count("trains: batch norm, SkipInit (α = 0)") == 3


def test_the_opening_shows_the_most_faithful_set_and_what_fails_in_others() -> None:
    def scores(cell: ExhibitCell) -> Scores:
        return None if cell.method.name == "skipinit alpha=1" else (90.0, 0.1)

    made = trials("reduced", scores, names=("table1",))
    long = [each for each in made if each.state != "diverged"]
    short, digits = (trials(preset, scores, names=("table1",)) for preset in ("brief", "demo"))
    page = Page(make_page(make_collection([*long, *short]))).text
    assert "reduced · data cifar10 · width 2 · 10 epochs" in page
    assert "bfloat16; SkipInit from α = 1: brief · data cifar10 · width 2 · 1 epoch" in page
    assert page.count("explodes: SkipInit from α = 1") == 3
    page = Page(make_page(make_collection([*long, *digits]))).text
    assert "explodes: SkipInit" not in page, "digits say nothing of a network on CIFAR-10"


def test_curves_are_drawn_whole(tmp_path: Path) -> None:
    """Eight epochs of one run are eight points of its line; an exploded run has none, and an arrow."""
    made = list(trials("demo", lambda _: (90.0, 0.1), names=("table1",)))
    with open_writer(tmp_path) as writer:
        epochs = {
            each.id: [replace(each.last, epoch=n + 1) for n in range(each.config.epochs)] for each in made
        }
        writer.put((each, epochs[each.id]) for each in made)
    collection = collect(tmp_path)
    assert {len(curve) for curve in collection.curves.values()} == {each.config.epochs for each in made}
    cells = [cell for cell in first_set(collection) if cell.at == 16]
    assert [cell.shown_trial.config.seed for cell in cells] == [0] * 4
    drawn = draw_training(cells, collection.curves, "here")
    assert "explodes" not in drawn
    exploded = [
        replace(cell, recorded=tuple(replace(t, state="diverged", last=None) for t in cell.recorded))
        for cell in cells
    ]
    assert draw_training(exploded, {}, "here").count("explodes at step") == 4


def test_a_figure_says_how_many_runs_a_point_is() -> None:
    once = list(trials("reduced", names=("figure8",)))
    again = [replace(each, config=replace(each.config, seed=1), id=f"{each.id}-again") for each in once]
    for more, words in (
        ([], "one run at each point"),
        (again[:4], "each point the mean of 1 to 2 runs"),
        (again, "each point the mean of 2 runs"),
    ):
        cells = first_set(make_collection(iter([*once, *more])))
        table = make_table(EXHIBITS["figure8"], "test_accuracy", cells)
        assert table
        assert _runs_text(table, cells) == words


def test_exponents_are_raised(text: str) -> None:
    assert "2<sup>ℓ−1</sup>" in text
    assert "ℓ<sup>p</sup> with |p - 1|" in text


def test_the_command_measures_the_set_that_is_shown() -> None:
    """The precision of `reduced` is bfloat16."""
    for precision, flags in ((None, ""), ("tf32", " --precision tf32")):
        collection = make_collection(trials("reduced", precision=precision, names=("table4",)))
        command = _section(EXHIBITS["table4"], collection).command
        assert command == f"skipinit reproduce table4 --preset reduced{flags} --out results"


def test_what_failed_is_said_first() -> None:
    page = Page(make_page(collection_of(None)))
    differs, claims = page.text.index("What differs from the paper"), page.text.index("Claims of the paper")
    told = page.text[differs:claims]
    assert "SkipInit (α = 0), depth 16: fails; in the paper it trains" in told
    assert CLAIMS["skipinit-trains-at-any-depth"].statement in told


def test_a_figure_says_who_failed() -> None:
    def scores(cell: ExhibitCell) -> Scores:
        return None if (cell.method.name, cell.at) == ("none", 256) else (90.0, 0.1)

    page = Page(make_page(make_collection(trials("quick", scores, names=("figure3",)))))
    assert "No normalization fails at 256" in page.text


@pytest.mark.parametrize(("preset", "several"), [("smoke", False), ("quick", True)])
def test_best_rates_are_drawn_only_where_several_were_tried(preset: str, several: bool) -> None:
    page = Page(make_page(make_collection(trials(preset, names=("figure3", "figure6")))))
    labels = [str(attributes["aria-label"]) for tag, attributes in page.elements if tag == "svg"]
    assert any("test accuracy" in label for label in labels)
    assert any("best learning rate" in label for label in labels) == several


def test_a_method_has_one_colour_in_all_figures(text: str) -> None:
    """Its legend entry is drawn in the colour of its curve, the text after it."""
    colours: dict[str, set[str]] = {}
    for name in ("figure3", "figure4", "figure7"):
        for svg in re.findall(
            rf'<svg class="plot"[^>]*aria-label="Figure {name[-1]}.*?</svg>', text, re.DOTALL
        ):
            legend = svg[svg.index('-legend_1"') :]
            for part, label in re.findall(r"(.*?)<text[^>]*>([^<]+)</text>", legend, re.DOTALL):
                (colour,) = set(re.findall(r"stroke: (var\(--series-\d\))", part))
                colours.setdefault(label, set()).add(colour)
    assert set(colours) == {"batch norm", "SkipInit (α = 0)", "Regularized SkipInit", "no normalization"}
    assert all(len(found) == 1 for found in colours.values())
    assert len(set.union(*colours.values())) == 4


def test_a_sweep_that_is_not_over_has_a_page() -> None:
    """Of one cell no trial has ended yet."""
    begun = [
        replace(trial, state="running", last=None) if trial.config.model.scheme == "divide-sqrt2" else trial
        for trial in trials("quick", names=("table1",))
    ]
    page = Page(make_page(make_collection(iter(begun))))
    assert "Divide residual block by √2" in page.text


def test_the_page_never_replaces_the_results_it_reads(tmp_path: Path) -> None:
    write_store(tmp_path / "a", trials("smoke", names=("table1",)))
    with open_store(tmp_path / "a") as store:
        export_results(store, tmp_path / "a.jsonl")
    for folders, out in (("a", "a/sweep.sqlite"), ("a.jsonl", "a.jsonl"), ("a.jsonl", "a/../a.jsonl")):
        before = (tmp_path / out).read_bytes()
        with pytest.raises(ConfigError, match="would replace the results it reads; give another path"):
            skipinit.report(tmp_path / folders, tmp_path / out)
        assert (tmp_path / out).read_bytes() == before


def test_the_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    write_store(tmp_path / "a", trials("quick", names=("table1",)))
    path = skipinit.report(tmp_path / "a", tmp_path / "new" / "report.html")
    assert path == tmp_path / "new" / "report.html"
    assert [each.name for each in path.parent.iterdir()] == ["report.html"]
    assert path.read_text(encoding="utf-8") == make_page(collect(tmp_path / "a"))
