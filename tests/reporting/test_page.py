"""The report: what it says of a number, and that it says everything, whole and loud."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from skipinit.errors import DataError
from skipinit.paper.claims import CLAIMS
from skipinit.paper.collect import Collection, collect
from skipinit.paper.published import Address, exhibits, find_exhibit
from skipinit.reporting.page import make_page, write_report
from skipinit.reporting.tables import compare, make_table
from skipinit.sweeping.exchange import export_results
from skipinit.sweeping.store import open_store
from support.report_worlds import full_collection, make_collection, trials, write_store

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


def collection_of(value: float | None, exhibit: str = "table1", loss: float = 1.0) -> Collection:
    result = None if value is None else (value, loss)
    return make_collection(trials("paper", lambda _: result, names=(exhibit,)))


def comparison(collection: Collection, exhibit: str, method: str, at: int) -> tuple[str, str]:
    facts = find_exhibit(exhibit)
    cell = collection.sets[0].cells[Address(exhibit, method, at)]
    found = compare(facts, facts.cell(method, at).outcome(facts.metric), cell)
    return found.agreement, found.words


def test_differences_are_in_the_papers_spread() -> None:
    # Table 1: SkipInit at depth 16 is 93.3 ± 0.1, batch norm 93.5 ± 0.1, √2 at depth 100 is 88.9 ± 0.4.
    seen = collection_of(93.1)
    assert comparison(seen, "table1", "skipinit", 16) == ("agrees", "-0.2, 2.0 spreads")
    assert comparison(seen, "table1", "batchnorm", 16) == ("differs", "-0.4, 4.0 spreads")
    assert comparison(seen, "table1", "divide-sqrt2", 100) == ("differs", "+4.2, 10.5 spreads")
    # 94.2 ± 0.0: a printed zero is less than 0.05.
    assert comparison(seen, "table1", "skipinit alpha=1/sqrt(d)", 1000) == (
        "differs",
        "-1.1, at least 22.0 spreads",
    )


def test_who_trains_and_who_fails() -> None:
    assert comparison(collection_of(None), "table1", "skipinit alpha=1", 100) == (
        "agrees",
        "fails, as in the paper",
    )
    assert comparison(collection_of(None), "table1", "skipinit", 16) == (
        "differs",
        "fails; in the paper it trains",
    )
    assert comparison(collection_of(80.0), "table1", "skipinit alpha=1", 1000) == (
        "differs",
        "trains; in the paper it fails",
    )
    assert comparison(collection_of(12.0), "table1", "skipinit", 16)[0] == "differs", (
        "12 % of ten classes is chance"
    )


def test_other_data_is_compared_by_who_trains_alone() -> None:
    digits = make_collection(trials("quick", lambda _: (60.0, 1.0), names=("table1",)))
    assert comparison(digits, "table1", "skipinit", 16) == ("agrees", "trains, as in the paper")


def test_digits_do_not_say_what_holds_on_another_data_set() -> None:
    digits = make_collection(trials("quick"))
    assert digits.state(CLAIMS["batchnorm-trains-at-any-depth"]) == "holds"
    assert digits.state(CLAIMS["cifar100-batchnorm-and-skipinit-train-deep"]) == "not measured yet"
    papers = make_collection(trials("paper"))
    assert papers.state(CLAIMS["cifar100-batchnorm-and-skipinit-train-deep"]) == "holds"


def test_fewer_epochs_are_said_and_not_blamed() -> None:
    reduced = make_collection(trials("reduced", lambda _: (85.0, 1.0), names=("table1",)))
    assert comparison(reduced, "table1", "skipinit", 16) == ("agrees", "-8.3, 83.0 spreads; 40 of 200 epochs")


def test_a_reduced_number_never_passes_for_the_papers() -> None:
    both = make_collection(
        trials("paper", lambda _: (93.0, 0.1), names=("table1",)),
        trials("reduced", lambda _: (50.0, 0.1), names=("table1",)),
    )
    values = {
        each.label: {
            cell.outcome.value for address, cell in each.cells.items() if address.exhibit == "table1"
        }
        for each in both.sets
    }
    assert values == {"paper": {93.0}, "reduced": {50.0}}


def test_who_trains_may_be_seen_under_several_presets_how_well_may_not() -> None:
    """Depth 16 in full, the others in brief: numbers of one are no match for numbers of the other."""
    shallow = (each for each in trials("paper", names=("table1",)) if each.config.model.name == "wrn16_2")
    deep = (each for each in trials("reduced", names=("table1",)) if each.config.model.name != "wrn16_2")
    both = make_collection(shallow, deep)
    ((label, found),) = both.verdicts(CLAIMS["batchnorm-trains-at-any-depth"])
    assert (label, found.state) == ("reduced", "holds")
    assert "depth 16 (under paper)" in found.evidence
    assert "depth 1000 (after 1 epoch only)" in found.evidence
    assert not both.verdicts(CLAIMS["skipinit-slightly-below-batchnorm"])
    assert not both.verdicts(CLAIMS["skipinit-rate-hardly-depends-on-depth"])


def test_precisions_are_kept_apart() -> None:
    both = make_collection(
        trials("paper", lambda _: (93.0, 0.1), names=("table1",)),
        trials("paper", lambda _: (91.0, 0.1), "bfloat16", names=("table1",)),
    )
    assert [each.label for each in both.sets] == ["paper", "paper (bfloat16)"]


def test_every_cell_carries_preset_data_and_runs() -> None:
    table = make_table(find_exhibit("table1"), full_collection().sets[0])
    assert table
    assert table.preset == "quick (digits)"
    assert table.conditions.startswith("data digits · width 1 · 4, 8 or 10 epochs")
    rows = [row for group in table.groups for row in group.rows]
    assert len(rows) == 18
    assert all(
        re.fullmatch(r"1 run; [1-6] rates? tried|[1-6] runs? at [1-6] rates?", row.runs) for row in rows
    )


def test_the_page_holds_every_table_figure_and_claim(full: Page) -> None:
    assert {*(f"table{n}" for n in range(1, 8)), *(f"figure{n}" for n in range(2, 9))} <= set(
        full.attributes("id")
    )
    for exhibit in exhibits().values():
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


def test_what_failed_is_said_first() -> None:
    page = Page(make_page(collection_of(None)))
    differs, claims = page.text.index("What differs from the paper"), page.text.index("Claims of the paper")
    told = page.text[differs:claims]
    assert "SkipInit (α = 0), depth 16: fails; in the paper it trains" in told
    assert CLAIMS["skipinit-trains-at-any-depth"].statement in told


def test_a_figure_says_who_failed() -> None:
    def result(address: Address) -> tuple[float, float] | None:
        return None if (address.method, address.at) == ("none", 256) else (90.0, 0.1)

    page = Page(make_page(make_collection(trials("quick", result, names=("figure3-accuracy",)))))
    assert "No normalization fails at 256" in page.text


def test_smoke_says_nothing_of_the_paper() -> None:
    smoke = make_collection(trials("smoke", lambda _: None, names=("table1",)))
    table = make_table(find_exhibit("table1"), smoke.sets[0])
    assert {row.comparison.agreement for group in table.groups for row in group.rows} == {"open"}
    assert smoke.state(CLAIMS["skipinit-trains-at-any-depth"]) == "not measured yet"


def test_an_agreeing_world_says_so() -> None:
    fine = make_collection(trials("paper", names=("table1",)))
    assert make_table(find_exhibit("table1"), fine.sets[0]).differing == []


def test_reads_folders_and_exported_files(tmp_path: Path) -> None:
    write_store(tmp_path / "a", trials("quick", names=("table1",)))
    with open_store(tmp_path / "a") as store:
        export_results(store, tmp_path / "b.jsonl")
    folder, file = collect([tmp_path / "a"]), collect([tmp_path / "b.jsonl"])
    assert [each.label for each in folder.sets] == [each.label for each in file.sets] == ["quick (digits)"]
    assert {a: c.outcome for a, c in folder.sets[0].cells.items()} == {
        a: c.outcome for a, c in file.sets[0].cells.items()
    }


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no sweep is there"):
        collect([tmp_path])
    write_store(tmp_path / "empty", iter(()))
    with pytest.raises(DataError, match="no results yet; train some with `skipinit reproduce --out"):
        collect([tmp_path / "empty"])


def test_a_damaged_measurement_is_named(tmp_path: Path) -> None:
    (tmp_path / "initialization").mkdir()
    (tmp_path / "initialization" / "figure2a.json").write_text('{"figure": 1')
    with pytest.raises(DataError, match=r"figure2a\.json: not a file that"):
        collect([tmp_path])


def test_the_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    write_report(collection_of(90.0), tmp_path / "new" / "report.html")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["report.html"]
