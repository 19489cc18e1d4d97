"""Every command, given every odd path: an exit code of 1 or 2, one line, and nothing half-written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from skipinit.cli import main
from skipinit.config import ModelConfig, TrainConfig
from skipinit.sweeping.single import train
from support.permissions import bound_by_permissions

READING = {
    "evaluate": "evaluate {}",
    "export": "export {} --out {good}/exported",
    "status": "status {}",
    "results": "results {}",
    "claims": "claims {}",
    "report": "report {} --out {good}/report.html",
    "merge": "store merge {good}/merged {}",
    "store export": "store export {} {good}/results.jsonl",
    "import": "store import {good}/imported {}",
    "grid": "sweep --file {} --out {good}/swept",
    "grid, dry": "sweep --file {} --out {good}/swept --dry-run",
    "photographs": "train resnet50_v2 --data {} --lr 0.1 --epochs 1 --batch-size 8 --out {good}/trained",
}
WRITING = {
    "train": "train wrn16_2 --data digits --lr 0.1 --epochs 1 --batch-size 64 --out {}",
    "sweep": "sweep wrn16_2 --data digits --lr 0.1 --epochs 1 --batch-size 64 --out {}",
    "sweep, dry": "sweep wrn16_2 --data digits --lr 0.1 --epochs 1 --batch-size 64 --out {} --dry-run",
    "reproduce": "reproduce table1 --preset smoke --out {}",
    "demo": "demo --out {}",
    "export --out": "export {run} --out {}",
    "plot": "probe wrn16_2 --plot {}/picture.png",
    "into": "store merge {} {run}",
    "imported": "store import {} {file}",
}
WRITING_A_FILE = {
    "results file": "store export {run} {}",
    "page": "report {run} --out {}",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a second."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    config = TrainConfig(ModelConfig("wrn10_1", "skipinit"), "digits", lr=0.1, batch_size=256, epochs=1)
    train(config, folder, device="cpu", progress=False)
    return folder


@pytest.fixture
def odd() -> Iterator[dict[str, str]]:
    """Paths that cannot be what is asked for, each with why."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "locked").mkdir(mode=0o000)
        (root / "readonly").mkdir(mode=0o555)
        (root / "file").write_text("text")
        (root / "loop").symlink_to(root / "loop")
        os.mkfifo(root / "fifo")
        yield {
            "a name too long": str(root / ("n" * 300)),
            "a path too long": str(root / "/".join(["folder"] * 900)),
            "a folder without permission": str(root / "locked"),
            "inside a folder without permission": str(root / "locked" / "inside"),
            "inside a folder that cannot be written": str(root / "readonly" / "inside"),
            "inside a file": str(root / "file" / "inside"),
            "a file": str(root / "file"),
            "inside a loop of links": str(root / "loop" / "inside"),
            "a loop of links": str(root / "loop"),
            "a name that is not UTF-8": os.fsdecode(os.fsencode(root) + b"/locked/\xff\xfe"),
            "a pipe": str(root / "fifo"),
            "a device": "/dev/full",
        }
        for path in (root / "locked", root / "readonly"):
            path.chmod(0o755)
        shutil.rmtree(root / "locked")


@pytest.mark.parametrize("command", [*READING, *WRITING, *WRITING_A_FILE])
def test_a_path_that_cannot_be_used_is_one_line(
    command: str, odd: dict[str, str], run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = READING | WRITING | WRITING_A_FILE
    results = tmp_path / "results.jsonl"
    assert main(["store", "export", str(run), str(results)]) == 0
    (good := tmp_path / "good").mkdir()
    capsys.readouterr()
    for what, path in odd.items():
        if command in WRITING_A_FILE and what in ("a file", "a loop of links"):
            continue  # replaced, as asked
        words = [word.format(path, good=good, run=run, file=results) for word in kinds[command].split()]
        with bound_by_permissions():
            code = main(words)
        shown = capsys.readouterr()
        assert code in (1, 2), f"{what}: exit code {code}, {shown}"
        assert re.fullmatch(r"skipinit: .+\n", shown.err), f"{what}: {shown.err}"
        assert list(good.iterdir()) == [], f"{what}: something was left behind"


def test_output_that_cannot_be_written_is_one_line() -> None:
    for command in (["models"], ["probe", "wrn16_2"], ["schemes", "--json"]):
        with open("/dev/full", "w") as full:
            process = subprocess.run(
                [sys.executable, "-m", "skipinit", *command], stdout=full, stderr=subprocess.PIPE, text=True
            )
        assert process.returncode == 1
        assert process.stderr == (
            "skipinit: a file: cannot be used (No space left on device); make room and run it again\n"
        )


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_are_no_failure(closed: str) -> None:
    for command, code in (("schemes", 0), ("describe wrn17_2", 2)):
        shell = f"exec {sys.executable} -m skipinit {command} {closed}"
        process = subprocess.run(["sh", "-c", shell], capture_output=True, text=True)
        assert (process.returncode, "Traceback" in process.stderr) == (code, False), process.stderr


@pytest.mark.skipif(sys.platform == "darwin", reason="its file system has only names that are Unicode")
def test_a_folder_whose_name_is_not_unicode_is_used_like_any_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe/run")
    train = ["train", "wrn10_1", "--data", "digits", "--batch-size", "512", "--epochs", "1", "--out", folder]
    commands = (train, train, ["status", folder], ["results", folder], ["evaluate", folder])
    files = (["store", "export", folder, f"{folder}.jsonl"], ["report", folder, "--out", f"{folder}.html"])
    for command in (*commands, *files):
        assert main(command) == 0, capsys.readouterr().err
    assert os.path.getsize(f"{folder}.jsonl") > 0
    assert os.path.getsize(f"{folder}.html") > 0
