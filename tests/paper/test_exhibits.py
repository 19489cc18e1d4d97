"""The published numbers against the tables parsed out of the paper's own source, and against each other."""

from __future__ import annotations

import math
import re

import pytest

from skipinit.errors import ConfigError
from skipinit.nets.architectures import find_architecture
from skipinit.nets.schemes import resolve
from skipinit.paper.exhibits import EXHIBITS, METHODS, RATE_GRID, BestRate, Exhibit, Result, find_exhibits
from skipinit.sweeping.summary import TrialResult, Trim, summarize
from support.paper_source import PAPER, needs_paper

# Headings of the tables, without spaces, as the source writes them.
HEADINGS = {
    r"BatchNormalization": "batchnorm",
    r"Batchnormalization": "batchnorm",
    r"SkipInit($\alpha=1/\sqrt{d}$)": "skipinit alpha=1/sqrt(d)",
    r"SkipInit($\alpha=1\sqrt{d}$)": "skipinit alpha=1/sqrt(d)",  # Table 6 lost its slash
    r"SkipInit($\alpha=0$)": "skipinit",
    r"SkipInit($\alpha=1$)": "skipinit alpha=1",
    r"SkipInitwithoutL2($\alpha=0$)": "skipinit without L2",
    r"Divideresidualblockby$\sqrt{2}$": "divide-sqrt2",
    r"Dividebatch-normalizedresidualblockby$\sqrt{2}$": "batchnorm-divide-sqrt2",
    r"AddingBatchNormatendofresidualblock": "batchnorm-block-end",
    r"IncludingonlythefinalBatchNormlayer": "batchnorm-final-only",
    r"Fixup": "fixup",
    r"Fixup+Dropout": "fixup-dropout",
    r"SkipInit+Biases": "skipinit",
    r"RegularizedSkipInit": "regularized-skipinit",
    r"RegularizedSkipInit+ScalarBias": "regularized-skipinit scalar bias",
}

Numbers = tuple[float, ...] | str


def tables_of_the_paper() -> list[str]:
    """Every table's source, in order: the n-th is Table n."""
    return re.findall(r"\\begin\{table\}.*?\\end\{table\}", PAPER.read_text(encoding="utf-8"), re.DOTALL)


def rows(table: str) -> list[list[str]]:
    """The cells of a table, row by row: layout commands taken off, spaces taken out."""
    table = re.sub(
        r"\\begin\{tabular\}\[c\]\{@\{\}r@\{\}\}(.*?)\\end\{tabular\}", r"\1", table
    )  # one nested cell
    bodies = re.findall(r"\\begin\{tabular\}\{r?c+\}(.*?)\\end\{tabular\}", table, re.DOTALL)
    found = []
    for body in bodies:
        for command, arguments in {r"\multicolumn": 3, r"\textbf": 1, r"\text": 1}.items():
            body = unwrap(body, command, arguments)
        body = re.sub(r"\\hline|\\,|\s", "", body)
        found += [row.split("&") for row in body.split(r"\\")]
    return found


def unwrap(text: str, command: str, arguments: int) -> str:
    """Every use of the command replaced by its last argument."""
    while (start := text.find(command + "{")) >= 0:
        end = start + len(command)
        for _ in range(arguments):
            opening, end = end, closing_brace(text, end) + 1
        text = text[:start] + text[opening + 1 : end - 1] + text[end:]
    return text


def closing_brace(text: str, opening: int) -> int:
    """Where the brace that opens at `opening` closes."""
    depth = 0
    for position in range(opening, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return position
    raise ValueError(f"a brace of the paper's source does not close: {text[opening : opening + 40]}")


def parse(table: str) -> dict[tuple[str, int], Numbers]:
    """Method and depth or batch size → the numbers as printed."""
    found: dict[tuple[str, int], Numbers] = {}
    heading, batch_sizes = "", []
    for row in rows(table):
        texts = [cell for cell in row if cell]
        if len(texts) == 1:
            heading = texts[0]
        elif texts and texts[0].isdecimal():
            found[HEADINGS[heading], int(texts[0])] = tuned(*texts[1:])
        elif texts and texts[0] == "Testaccuracy:":
            batch_sizes = [int(text) for text in texts[1:]]
        elif texts and "/" in texts[-1]:
            accuracies = [tuple(map(float, text.split("/"))) for text in texts[1:]]
            found |= {(HEADINGS[texts[0]], b): pair for b, pair in zip(batch_sizes, accuracies, strict=True)}
    return found


def tuned(value: str, rate: str) -> Numbers:
    """`93.5 ± 0.1` and `2^-1 (2^-2 to 2^0)` as five numbers; a dash as what it means."""
    if value.strip("$") == rate.strip("$") == "-":
        return "failed"
    mean, spread = re.findall(r"\d+\.\d+", value)
    exponents = [int(braced or bare) for braced, bare in re.findall(r"2\^(?:\{(-?\d+)\}|(\d))", rate)]
    assert len(exponents) == 3, rate
    return (float(mean), float(spread), *exponents)


def as_numbers(published: Result) -> Numbers:
    if published.failed:
        return "failed"
    if published.rate is None:
        return published.value, published.top5
    bar = (published.rate.lr, published.rate.low, published.rate.high)
    return (published.value, published.spread, *map(math.log2, bar))


TABLES = [exhibit for exhibit in EXHIBITS.values() if exhibit.cells]


@needs_paper
def test_every_number_of_every_table_is_the_papers() -> None:
    parsed = {f"table{number}": parse(table) for number, table in enumerate(tables_of_the_paper(), start=1)}
    ours = {
        table.name: {place: as_numbers(published) for place, published in table.cells.items()}
        for table in TABLES
    }
    assert ours == parsed
    assert sum(map(len, parsed.values())) == 5 * 3 + 4 * 3 + 4 * 6 * 3 + 3 * 3


@needs_paper
def test_no_number_of_a_table_escapes_the_parser() -> None:
    """Counted without the parser: every ±, every `x / y`, every pair of dashes is one cell."""
    for exhibit, source in zip(TABLES, tables_of_the_paper(), strict=True):
        body = source[source.index(r"\begin{tabular}") :]
        dashes = re.findall(r"\{\$?-\$?\}\s*&\s*\$?-\$?\s*\\\\|\{\$-\$\}\s*&\s*\$-\$\s*\n", body)
        pairs = re.findall(r"\d\d\.\d / \d\d\.\d", body)
        assert len(exhibit.cells) == body.count(r"\pm") + len(pairs) + len(dashes), exhibit.name


@needs_paper
def test_facts_about_the_tables_are_in_the_paper() -> None:
    text = PAPER.read_text(encoding="utf-8")
    for exhibit, source in zip(TABLES, tables_of_the_paper(), strict=True):
        caption = source[source.index(r"\caption") : source.index(r"\begin{tabular}")]
        if exhibit.axis == "batch_size":
            version = exhibit.network[-1]
            assert f"ResNet50-V{version} on ImageNet" in caption
            assert f"{exhibit.epochs} epochs" in caption
            assert "single run at each learning rate" in caption
            assert (exhibit.best, exhibit.of) == (1, 1)
            assert f"ghost batch size to {exhibit.ghost_batch}" in text
        else:
            assert ("CIFAR-100" if "CIFAR-100" in caption else "CIFAR-10") == exhibit.data.replace(
                "cifar", "CIFAR-"
            )
    assert (
        r"$n$-$2$ Wide-ResNet \cite{zagoruyko2016wide}, trained on CIFAR-10 for 200 epochs at batch size 64"
        in text
    )
    assert "train the network 7 times" in text
    assert "for the best 5 runs" in text
    assert "best 12 out of 15 runs" in text
    by_depth = [exhibit for exhibit in TABLES if exhibit.axis == "depth"]
    assert {(e.network, e.epochs, e.batch_size, e.best, e.of) for e in by_depth} == {
        ("wrn{depth}_2", 200, 64, 5, 7)
    }
    figures = [exhibit for exhibit in EXHIBITS.values() if exhibit.curves]
    assert {(e.epochs, e.best, e.of) for e in figures} == {(200, 12, 15)}


@pytest.mark.parametrize("exhibit", EXHIBITS.values(), ids=lambda exhibit: exhibit.name)
def test_every_method_builds_its_network(exhibit: Exhibit) -> None:
    """Names of schemes, options and networks exist, and the options belong to the schemes."""
    for method in exhibit.methods:
        for at in {at for name, at in exhibit.cells if name == method} or {64}:
            network = exhibit.network.format(depth=at)
            resolve(METHODS[method].model(network), find_architecture(network))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_tables_are_whole(table: Exhibit) -> None:
    points = (16, 100, 1000) if table.axis == "depth" else (256, 1024, 4096)
    assert list(table.cells) == [(method, at) for method in table.methods for at in points]
    for published in table.cells.values():
        if rate := published.rate:
            assert rate.low <= rate.lr <= rate.high
            # "We always verify that the optimal learning rates are not at the boundary" (section 2.3).
            assert min(RATE_GRID) < rate.lr < max(RATE_GRID)
        elif not published.failed:
            assert published.value < published.top5


@pytest.mark.parametrize(("accuracy", "loss"), [("table1", "table3"), ("table5", "table6")])
def test_a_network_fails_in_accuracy_where_it_fails_in_loss(accuracy: str, loss: str) -> None:
    def failed(name: str) -> set[tuple[str, int]]:
        return {place for place, published in EXHIBITS[name].cells.items() if published.failed}

    assert failed(accuracy) == failed(loss) != set()


def test_published_cells_read_as_results() -> None:
    def cell(exhibit: str, method: str, at: int) -> Result:
        return EXHIBITS[exhibit].cells[method, at]

    expected = Result("test_accuracy", 94.7, 0.1, BestRate(0.5, 0.25, 1.0))
    assert cell("table1", "batchnorm", 100) == expected
    assert cell("table3", "divide-sqrt2", 100).score == -0.066
    assert cell("table7", "fixup", 4096) == Result("test_accuracy", 72.4, top5=90.3)
    failed = cell("table4", "batchnorm-block-end", 1000)
    assert failed.failed
    assert str(failed) == "failed at 13 rates from 2^-10 to 2^2"


def test_a_sweeps_cell_reads_as_a_result() -> None:
    accuracies = {
        0.125: [90.0, 91.0, 92.0],
        0.25: [93.0, 94.0, 95.0],
        0.5: [94.0, 92.0, 93.5],
        3.0: [10.0] * 3,
    }
    runs = [
        TrialResult(lr, seed, 10, value, 0.1)
        for lr, values in accuracies.items()
        for seed, value in enumerate(values)
    ]
    result = Result.of_cell(summarize(runs, "test_accuracy", Trim(2, 3)))
    best = BestRate(0.25, 0.25, 0.25)
    assert result == Result(
        "test_accuracy", 94.5, 0.5**0.5, best, (0.125, 0.25, 0.5, 3.0), (0.125, 0.25, 0.5)
    )
    assert str(result) == "94.5 ± 0.7"
    lone = Result.of_cell(summarize(runs[:3], "train_loss", Trim(2, 3)))
    assert lone is not None
    assert lone.rate == BestRate(0.125, 0.125, 0.125, at_edge=True)
    assert str(lone) == "0.100 ± 0.000"


def test_a_cell_has_failed_only_when_nothing_is_to_come() -> None:
    diverged = summarize([TrialResult(0.5, 0, 10, None, None)], "test_accuracy", Trim(5, 7))
    assert Result.of_cell(diverged, unfinished=1) is None
    result = Result.of_cell(diverged)
    assert result is not None
    assert str(result) == "failed at rate 2^-1"
    assert Result.of_cell(summarize([], "test_accuracy", Trim(5, 7))) is None


def test_names() -> None:
    found = find_exhibits(["figure3", "table1", "figure3"])
    assert [exhibit.name for exhibit in found] == ["figure3", "table1"]
    assert [exhibit.label for exhibit in found] == ["Figure 3", "Table 1"]
    assert found[0].panel("train_loss") == "Figure 3 (loss)"
    assert len(find_exhibits(["all"])) == 14
    with pytest.raises(ConfigError, match="'tabel1' is not known; did you mean table1"):
        find_exhibits(["tabel1"])
    with pytest.raises(ConfigError, match="nothing to reproduce"):
        find_exhibits([])
