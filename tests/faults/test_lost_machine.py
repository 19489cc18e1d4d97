"""A machine is lost with its disk: what was copied while the sweep ran is whole, and is resumed elsewhere."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from snippets import blocks

from skipinit.sweeping import workers
from skipinit.sweeping.engine import Outcome, run_sweep
from skipinit.sweeping.exchange import Merged, merge_sweep
from skipinit.sweeping.grid import Grid
from skipinit.sweeping.store import open_store, open_writer
from skipinit.training.checkpoint import Checkpoints
from skipinit.training.records import Event, Recorded
from support.processes import PROCESSES
from support.runs import SMALL
from support.torture import Torture

_MACHINES = 2
_CONFIG = replace(SMALL, batch_size=512, epochs=4)
_STEPS = 1437 // 512
"""Of an epoch."""
_TRIALS = Grid(tuple(replace(_CONFIG, seed=seed) for seed in range(6)))


def _sweep(out: Path, **options: Any) -> Outcome:
    return run_sweep(_TRIALS, out, device="cpu", pack_size=2, checkpoint_seconds=0, progress=False, **options)


def _work(out: Path) -> None:
    torch.set_num_threads(1)
    workers.usable_cores = lambda: 1
    _sweep(out)


def _curves(out: Path) -> dict[str, list[dict[str, Any]]]:
    """Of every trial, all but the speed."""
    with open_store(out) as store:
        return {
            trial.id: [{**vars(epoch), "images_per_second": 0} for epoch in store.curve(trial.id)]
            for trial in store.trials()
        }


def _results(out: Path) -> dict[str, Any]:
    with open_store(out) as store:
        return {trial.id: trial for trial in store.trials() if trial.has_result}


def _copy(source: Path, target: Path) -> Merged:
    with open_store(source) as sweep, open_writer(target) as writer:
        return merge_sweep(writer, sweep)


def _wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_machines_lost_at_random_instants_lose_what_was_not_copied(tmp_path: Path, torture: Torture) -> None:
    """Each machine starts from the copy, at another path; only the copy is left of it."""
    _sweep(tmp_path / "undisturbed")
    undisturbed = _curves(tmp_path / "undisturbed")
    for seed in torture.cases(1):
        instants, copy = random.Random(seed), tmp_path / f"copy{seed}"
        copied: dict[str, Any] = {}
        for number in range(_MACHINES):
            machine = tmp_path / f"machine{seed}-{number}"
            if copy.exists():
                shutil.copytree(copy, machine)
            process = PROCESSES.Process(target=_work, args=(machine,))
            process.start()
            try:
                _wait_until((machine / "sweep.sqlite").exists)
                for _ in range(3):
                    time.sleep(instants.uniform(0, 0.4))
                    _copy(machine, copy)
                    for id, curve in _curves(copy).items():
                        assert curve == undisturbed[id][: len(curve)]
                        state, _ = Checkpoints(copy).load(id)
                        assert state is None or len(state["records"]) <= len(curve)
                    results = _results(copy)
                    assert {id: results[id] for id in copied} == copied, "what has its result keeps it"
                    copied = results
            finally:
                process.kill()
                process.join()
            torture.count("kills", process.exitcode != 0)
            shutil.rmtree(machine)
        began_at = {id: Checkpoints(copy).position(id) for id in undisturbed}
        started: dict[str, int] = {}

        def watch(event: Event, started: dict[str, int] = started) -> None:
            if isinstance(event, Recorded):
                for id, epoch in event.epochs:
                    started.setdefault(id, epoch.epoch)

        assert _sweep(copy, observer=watch) == Outcome(6, 0, 0)
        assert not started.keys() & copied.keys(), "a result is not trained again"
        assert all(epoch == began_at[id] // _STEPS + 1 for id, epoch in started.items())
        assert _curves(copy) == undisturbed
        assert not list((copy / "checkpoints").glob("*"))
        torture.count("results compared", len(undisturbed))
        shutil.rmtree(copy)


_STANDING_IN = {
    "sleep": "exec /bin/sleep 0.1",
    "ssh": 'cd "$1" && shift && exec "$@"',
    "rsync": 'from=${@: -2:1}; to=${@: -1}; rm -rf "${to/://}"; mkdir -p "${to/://}"; cp -a "${from/://}." "${to/://}"',
    "skipinit": f'exec {sys.executable} -m skipinit "$@"',
}
"""`rented` is a folder here."""


def test_the_commands_of_the_guide_save_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = Path(__file__).parents[2] / "docs/sweep.md"
    loop, send = (block.text for block in blocks(guide.read_text(encoding="utf-8")) if block.language == "sh")
    rented, programs = tmp_path / "rented", tmp_path / "bin"
    programs.mkdir()
    for name, script in _STANDING_IN.items():
        (programs / name).write_text(f"#!/bin/bash\n{script}\n")
        (programs / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(os.path.abspath, sys.path)))

    rented.mkdir()
    sweep = PROCESSES.Process(target=_work, args=(rented / "runs/a",))
    sweep.start()
    with subprocess.Popen(["bash", "-c", loop], start_new_session=True) as copying:
        try:
            _wait_until(lambda: Path("runs/a/sweep.sqlite").exists() and bool(_results(Path("runs/a"))))
        finally:
            sweep.kill()
            os.killpg(copying.pid, signal.SIGKILL)
            sweep.join()
    shutil.rmtree(rented)
    saved = _results(Path("runs/a"))

    subprocess.run(["bash", "-c", send], check=True)
    assert _sweep(rented / "runs/a") == Outcome(6, 0, 0)
    results = _results(rented / "runs/a")
    assert {id: results[id] for id in saved} == saved
    _sweep(tmp_path / "undisturbed")
    assert _curves(rented / "runs/a") == _curves(tmp_path / "undisturbed")
