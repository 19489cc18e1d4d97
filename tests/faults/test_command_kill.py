"""Commands killed at any instant leave whole files or none, and end as if left alone when they run again."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from skipinit.cli import main
from skipinit.config import ModelConfig, TrainConfig
from skipinit.sweeping import workers
from skipinit.sweeping.single import train
from skipinit.sweeping.store import open_store
from support.made_up_trials import trials, write_store
from support.processes import PROCESSES
from support.torture import Torture

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
COMMANDS = {
    "merge": "store merge {out}/merged {stores}/one {stores}/two",
    "import": "store import {out}/imported {stores}/two.jsonl",
    "export": "store export {stores}/two {out}/results.jsonl",
    "export a network": "export {stores}/run --out {out}/model",
    "report": "report {stores}/two --out {out}/report.html",
    "reproduce": "reproduce figure4 figure5 --preset smoke --device cpu --out {out}/reproduced",
}


def _run(words: list[str], errors: Path) -> None:
    torch.set_num_threads(1)
    workers.usable_cores = lambda: 1
    with contextlib.suppress(KeyboardInterrupt):  # not yet or no longer in the command
        descriptor = os.open(errors, os.O_WRONLY | os.O_CREAT)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        code = main(words)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise SystemExit(code)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sweeps with some trials in common, their exports, and a run."""
    root = tmp_path_factory.mktemp("stores")
    write_store(root / "one", trials("smoke"))
    write_store(root / "two", trials("quick", names=("table1", "table3", "figure4")))
    for name in ("one", "two"):
        assert main(["store", "export", str(root / name), str(root / f"{name}.jsonl")]) == 0
    config = TrainConfig(ModelConfig("wrn16_4", "skipinit"), "digits", lr=0.1, batch_size=512, epochs=1)
    train(config, root / "run", device="cpu", progress=False)
    return root


def _contents(out: Path) -> dict[str, Any]:
    """Every file below a folder; of a store and of what was measured, what does not depend on the time."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:  # to open a store is to mend it
        copy = shutil.copytree(out, Path(scratch, "copy")) if out.exists() else Path(scratch)
        for path in sorted(path for path in copy.rglob("*") if path.is_file()):
            found[str(path.relative_to(copy))] = path.read_bytes()
        for name in found:
            path = copy / name
            match path.suffix:
                case ".sqlite":
                    found[name] = _trials(path)
                case ".json":
                    found[name] = json.loads(found[name]).get("rows", found[name])
                case ".html":
                    found[name] = found[name].count(b"<tr")
                case ".lock":
                    found[name] = None
    return found


def _trials(path: Path) -> list[Any]:
    with open_store(path.parent) as store:
        found = [(trial.id, trial.state, trial.last and trial.last.train_loss) for trial in store.trials()]
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    return found


@contextlib.contextmanager
def _started(words: list[str], errors: Path) -> Iterator[Any]:
    errors.unlink(missing_ok=True)
    process = PROCESSES.Process(target=_run, args=(words, errors))
    process.start()
    try:
        while not errors.exists():
            process.join(0.001)
        yield process
    finally:
        process.kill()
        process.join()


def _without_what_a_kill_leaves(found: dict[str, Any]) -> dict[str, Any]:
    """Drafts have other names than files; the store's log belongs to it."""
    return {
        name: content
        for name, content in found.items()
        if not Path(name).name.startswith(".")
        and not name.endswith(("-wal", "-shm", "-journal", ".new", ".pt", "sqlite"))
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_killed_at_random_instants(
    command: str, stores: Path, tmp_path: Path, torture: Torture
) -> None:
    if command == "reproduce" and "SKIPINIT_TORTURE" not in os.environ:
        pytest.skip("half a minute; see `make torture`")

    def words(out: Path) -> list[str]:
        return [word.format(out=out, stores=stores) for word in COMMANDS[command].split()]

    errors = tmp_path / "errors"
    for attempt in range(2):  # the first also waits for the server's imports
        reference, began = tmp_path / f"undisturbed{attempt}", time.monotonic()
        with _started(words(reference), errors) as process:
            process.join()
        assert process.exitcode == 0, errors.read_text()
    seconds, expected = time.monotonic() - began, _contents(reference)
    for seed in torture.cases(1):
        generator, out = random.Random(seed), tmp_path / f"killed{seed}"
        for _ in range(generator.randint(1, 3)):
            number = generator.choice(SIGNALS)
            with _started(words(out), errors) as process:
                process.join(generator.uniform(0, seconds))
                with contextlib.suppress(ProcessLookupError):
                    if process.is_alive():
                        os.kill(process.pid, number)
                process.join(60)
            assert process.exitcode in (0, -number, 130), errors.read_text()
            assert "Traceback" not in errors.read_text(), errors.read_text()
            torture.count("kills", process.exitcode != 0)
            whole = _without_what_a_kill_leaves(_contents(out))
            assert whole == {name: expected[name] for name in whole}
        with _started(words(out), errors) as process:
            process.join()
        assert process.exitcode == 0, errors.read_text()
        assert _contents(out) == expected
        torture.count("results compared")
        shutil.rmtree(out)
