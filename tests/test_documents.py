"""What the documents show works: Python blocks run, command lines parse, links lead somewhere.

Blocks of a file run as one program, in an empty folder. What would train for long is called with few steps,
or replaced by a call that only checks its arguments.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import re
import shlex
import statistics
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import figures
import pytest
import tables
import torch
from snippets import Block, blocks
from torch import nn

import skipinit
from skipinit.cli import app, main
from skipinit.sweeping.grid import expand, read_grid

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "results/README.md",
    *ROOT.glob("docs/**/*.md"),
]


def blocks_in(path: Path, *languages: str) -> list[Block]:
    return [block for block in blocks(path.read_text(encoding="utf-8")) if block.language in languages]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


COMMANDS = {
    f"{name_of(path)}: {command}": command
    for path in DOCUMENTS
    for block in blocks_in(path, "", "console", "bash")
    for command in block.commands
}
PROGRAMS = [path for path in DOCUMENTS if blocks_in(path, "python")]


def parsing(command: Callable[..., Any], called: list[str]) -> Callable[..., Any]:
    """The command's flags without its work; axes and files of sweeps are read."""

    @functools.wraps(command)
    def parsed(*args: Any, **options: Any) -> int:
        given = inspect.signature(command).bind(*args, **options)
        if command.__name__ == "sweep":
            model, file = given.arguments["model"], given.arguments["file"]
            axes = given.arguments["axes"].texts() | ({"model": model} if model else {})
            assert (read_grid(ROOT / file) if file else expand(axes)).trials
        called.append(command.__name__)
        return 0

    return parsed


@pytest.mark.parametrize("line", COMMANDS.values(), ids=COMMANDS.keys())
def test_commands_exist(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called: list[str] = []
    line = re.split(r" [|>] ", line.replace("\\\n", " "))[0]
    words = [word for word in shlex.split(line, comments=True) if not re.match(r"[A-Z_]+=", word)]
    if words[0] == "torchrun":
        words = words[words.index("-m") + 1 :]
    if words[0] == "python":
        assert (ROOT / words[1]).is_file()
    elif words[0] == "make":
        assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text(encoding="utf-8")
    elif words[0] == "skipinit":
        for module in (app.store, app):
            for name, value in vars(module).items():
                if inspect.isfunction(value) and name in ("merge", "export", "import_"):
                    monkeypatch.setattr(module, name, parsing(value, called))
        monkeypatch.setattr(app, "_COMMANDS", tuple(parsing(each, called) for each in app._COMMANDS))
        assert main(words[1:] or ["--help"]) == 0, capsys.readouterr().err
        assert len(called) == 1
    else:
        assert words[0] in ("pip", "ray")


class Checked:
    """In place of a function that trains: checks the arguments, returns what is at hand."""

    def __init__(self, function: Callable[..., Any], result: Any) -> None:
        self.signature, self.result = inspect.signature(function), result

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.signature.bind(*args, **options)
        return self.result


class TinyResNet(nn.Module):
    """Stands for a model of the reader's own."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.branch(x)).mean((2, 3))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A sweep of one short training, and what the functions of the laboratory return of it."""
    folder = tmp_path_factory.mktemp("documents") / "sweep"
    axes = {
        "model": "wrn10_1",
        "data": "digits",
        "scheme": "batchnorm",
        "lr": "2^-2",
        "epochs": 1,
        "watch": 10,
    }
    outcome = skipinit.sweep(axes, folder, device="cpu")
    config = skipinit.make_train_config(skipinit.ModelConfig("wrn10_1"), "digits", epochs=1, batch_size=256)
    return {
        "train": skipinit.train(config, device="cpu"),
        "sweep": outcome,
        "reproduce": outcome,
        "results": skipinit.results(folder),
        "watched": skipinit.watched(folder),
        "claims": [],
        "report": Path("report.html"),
    }


@pytest.mark.parametrize("path", PROGRAMS, ids=name_of)
def test_python_blocks_run(
    path: Path, trained: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    for name, result in trained.items():
        monkeypatch.setattr(skipinit, name, Checked(getattr(skipinit, name), result))
    names = {
        "torch": torch, "nn": nn, "skipinit": skipinit, "my_resnet": TinyResNet,
        "images": torch.randn(4, 3, 8, 8), "targets": torch.arange(4) % 3,
    }  # fmt: skip
    for block in blocks_in(path, "python"):
        code = re.sub(r"steps=\d+", "steps=2", block.text)
        compiled = compile(code, f"{name_of(path)}:{block.line}", "exec")
        if any(word in code for word in ("opacus", '"cuda', "imagenet", "Trainer(", "mypackage")):
            continue  # what it imports from this package is checked below
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            exec(compiled, names)


@pytest.mark.parametrize("path", PROGRAMS, ids=name_of)
def test_imported_names_exist(path: Path) -> None:
    for block in blocks_in(path, "python"):
        for node in ast.walk(ast.parse(block.text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("skipinit"):
                module = __import__(node.module, fromlist=["_"])
                assert all(hasattr(module, alias.name) for alias in node.names)


@pytest.mark.parametrize("path", [*DOCUMENTS, ROOT / "CHANGELOG.md"], ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    """Also to a heading. Those of the site are checked by `make docs`, too."""
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith("http") and target != "report.html":  # the site makes that page
            file, _, heading = target.partition("#")
            found = path.parent / file if file else path
            assert found.exists(), target
            docs = ROOT / "docs"
            assert docs not in path.parents or found.resolve().is_relative_to(docs), "the site has only docs/"
            headings = (
                re.findall(r"^#+ (.*)$", found.read_text(encoding="utf-8"), re.MULTILINE) if heading else []
            )
            assert not heading or heading in [
                re.sub(r"[^\w-]", "", h.lower().replace(" ", "-")) for h in headings
            ]


def test_every_public_name_is_in_the_reference() -> None:
    pages = [path.read_text(encoding="utf-8") for path in ROOT.glob("docs/reference/*.md")]
    documented = re.findall(r"^::: skipinit\.(\w+)$", "\n".join(pages), re.MULTILINE)
    assert sorted(documented) == sorted({*skipinit.__all__} - {"__version__"})


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 130


@pytest.mark.parametrize("path", ["README.md", "docs/reproduce.md", "results/README.md"])
def test_claims_are_counted_as_the_results_have_them(path: str, all_claims: Counter[str]) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    counts = re.search(r"(\d+) hold,\s+(\d+) do not[^.|]*?, (\d+) are not decided yet", text)
    assert counts is not None
    found = ("holds", "does not hold", "not decided yet")
    assert [int(each) for each in counts.groups()] == [all_claims[state] for state in found]


@pytest.fixture(scope="module")
def all_claims() -> Counter[str]:
    """How many of the paper's statements are in which state, in all that lies in results/."""
    judged = skipinit.claims([ROOT / "results", *sorted(ROOT.glob("results/*.jsonl"))])
    return Counter(each.state for each in judged)


@pytest.mark.parametrize("path", tables.DOCUMENTS, ids=name_of)
def test_tables_are_made_from_the_results(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert tables.renewed(text) == text, "run python docs/tables.py"


def test_every_table_has_a_place() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in tables.DOCUMENTS)
    assert sorted(re.findall("<!-- table: (.+) -->", text)) == sorted(tables.TABLES)
    assert text.count("<!-- end of table -->") == len(tables.TABLES)


def exported(pattern: str) -> Iterator[dict[str, Any]]:
    """The trials of the exports of that name, read without our code."""
    for path in ROOT.glob(f"results/{pattern}"):
        yield from map(json.loads, path.read_text(encoding="utf-8").splitlines()[1:])


def test_a_mean_in_a_table_is_that_of_the_exported_runs() -> None:
    accuracies = {  # by seed: several files may hold a run
        trial["config"]["seed"]: trial["last"]["test_accuracy"]
        for trial in exported("wrn16_2-*.jsonl")
        if trial["config"]["data"] == "cifar10"
        and trial["config"]["model"]["scheme"] == "batchnorm"
        and trial["config"]["lr"] == 0.5
        and trial["config"].get("crop_padding") == "reflect"
        and trial["config"]["model"].get("classifier_init") == "zero"
        and trial["config"]["model"].get("projection") != "raw"  # older exports lack the default
        and trial["config"]["epochs"] == 200
    }
    assert len(accuracies) == 3
    mean, deviation = statistics.mean(accuracies.values()), statistics.stdev(accuracies.values())
    row = next(line for line in tables.at_a_glance().splitlines() if "WRN-16-2, CIFAR-10" in line)
    assert row.split(" | ")[2] == f"{mean:.2f} ± {deviation:.2f} (93.5 ± 0.1)"


def test_figures_are_drawn_from_the_results(tmp_path: Path) -> None:
    figures.main(tmp_path)
    drawn = {path.name for path in tmp_path.iterdir()}
    shown = re.findall(r"\(figures/([\w-]+\.png)\)", (ROOT / "docs/reproduce.md").read_text(encoding="utf-8"))
    assert drawn == set(shown) == set(figures.FIGURES)


def test_a_curve_in_a_figure_is_the_best_of_the_exported_runs() -> None:
    best: dict[int, float] = {}
    for trial in exported("wrn16_4-cifar10-batch-size.jsonl"):
        if trial["config"]["model"]["scheme"] == "none" and trial["state"] == "finished":
            size, accuracy = trial["config"]["batch_size"], trial["last"]["test_accuracy"]
            best[size] = max(accuracy, best.get(size, 0.0))
    panel = figures.draw(figures.FIGURES["figure3.png"]()).axes[0]
    [curve] = [each.lines[0] for each in panel.containers if each.get_label() == "no normalization"]
    assert dict(zip(curve.get_xdata(), curve.get_ydata(), strict=True)) == best
    assert len(best) == 7


def test_pictures_are_small() -> None:
    assert all(path.stat().st_size < 100_000 for path in ROOT.glob("docs/**/*.svg"))


def test_the_first_example_runs(monkeypatch: pytest.MonkeyPatch, trained: dict[str, Any]) -> None:
    monkeypatch.setattr(skipinit, "train", Checked(skipinit.train, trained["train"]))
    monkeypatch.setattr(sys, "argv", ["quickstart.py"])
    code = (ROOT / "examples" / "quickstart.py").read_text(encoding="utf-8")
    exec(
        compile(code.replace("wrn100_1", "wrn16_1"), "examples/quickstart.py", "exec"),
        {"__name__": "__main__"},
    )


def test_the_picture_of_the_readme_can_be_drawn(
    monkeypatch: pytest.MonkeyPatch, trained: dict[str, Any], tmp_path: Path
) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr(skipinit, "train", Checked(skipinit.train, trained["train"]))
    names: dict[str, Any] = {}
    code = (ROOT / "examples" / "who_trains.py").read_text(encoding="utf-8")
    exec(compile(code, "examples/who_trains.py", "exec"), names)
    names["main"](str(tmp_path / "picture.svg"), depth=16, epochs=1)
    assert (tmp_path / "picture.svg").stat().st_size > 10_000
