"""A sweep whose process or worker is killed at any instant ends with every result, once, as if left alone."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from skipinit.sweeping import workers
from skipinit.sweeping.engine import Outcome, run_sweep
from skipinit.sweeping.grid import Grid
from skipinit.sweeping.store import open_store, open_writer
from skipinit.training.records import EpochRecord
from support.processes import PROCESSES
from support.runs import SMALL
from support.torture import Torture

_KILLS = 10
_CONFIG = replace(SMALL, batch_size=512)
_TRIALS = Grid(tuple(replace(_CONFIG, seed=seed) for seed in range(24)))


def _work(out: Path) -> None:
    """All in one process: an instant with workers would mostly fall into their imports."""
    torch.set_num_threads(1)
    workers.usable_cores = lambda: 1
    run_sweep(_TRIALS, out, device="cpu", pack_size=4, checkpoint_seconds=0, progress=False)


def _results(out: Path) -> dict[str, Any]:
    with open_store(out) as store:
        return {
            trial.id: [
                {k: v for k, v in vars(epoch).items() if k != "images_per_second"}
                for epoch in store.curve(trial.id)
            ]
            for trial in store.trials()
            if trial.state == "finished"
        }


def test_a_driver_killed_at_random_instants_loses_and_repeats_nothing(
    tmp_path: Path, torture: Torture
) -> None:
    def train(out: Path, seconds: float | None = None) -> int | None:
        process = PROCESSES.Process(target=_work, args=(out,))
        process.start()
        process.join(seconds)
        process.kill()
        process.join()
        return process.exitcode

    assert train(tmp_path / "undisturbed") == 0
    undisturbed = _results(tmp_path / "undisturbed")
    assert len(undisturbed) == 24
    for seed in torture.cases(1):
        instants, out = random.Random(seed), tmp_path / f"killed{seed}"
        done: dict[str, Any] = {}
        for _ in range(_KILLS):
            ended = train(out, instants.uniform(0.05, 0.9))
            assert ended in (-signal.SIGKILL, 0)
            torture.count("kills", ended != 0)
            if (out / "sweep.sqlite").exists():
                now = _results(out)
                assert {id: now[id] for id in done} == done  # what was finished stays, to the bit
                done = now
        assert train(out) == 0
        assert _results(out) == undisturbed
        assert not list((out / "checkpoints").iterdir())
        torture.count("results compared", len(undisturbed))
        shutil.rmtree(out)


_LONG = Grid(tuple(replace(_CONFIG, epochs=12, seed=seed) for seed in range(4)))
_DRIVER = """
import sys
from pathlib import Path
from skipinit.sweeping import workers
from skipinit.sweeping.engine import run_sweep
from skipinit.sweeping.grid import Grid
from skipinit.sweeping.store import open_store

with open_store(Path(sys.argv[1])) as store:
    trials = tuple(trial.config for trial in store.trials())
workers.usable_cores = lambda: 2
print(repr(run_sweep(Grid(trials), Path(sys.argv[1]), checkpoint_seconds=0, progress=False)))
"""


def _curves(out: Path) -> dict[str, list[EpochRecord]]:
    with open_store(out) as store:
        return {trial.id: store.curve(trial.id) for trial in store.trials()}


def _epochs(out: Path) -> int:
    """Recorded so far, of all trials."""
    return sum(map(len, _curves(out).values()))


def _wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _drive(out: Path) -> subprocess.Popen[str]:
    """The sweep in a process of its own with two workers, in a group of its own as in a terminal."""
    return subprocess.Popen(
        [sys.executable, "-c", _DRIVER, str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _workers(driver: subprocess.Popen[str]) -> list[int]:
    """Its children; none if it has ended."""
    children = Path(f"/proc/{driver.pid}/task/{driver.pid}/children")
    with suppress(FileNotFoundError, ProcessLookupError):
        return [*map(int, children.read_text().split())]
    return []


def _gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_workers_killed_interrupted_and_left_behind_cost_nothing(tmp_path: Path) -> None:
    out = tmp_path / "killed"
    with open_writer(out) as writer:
        writer.add(_LONG.trials)

    with _drive(out) as driver:  # a worker is killed, then Ctrl-C goes to all of the group
        try:
            _wait_until(lambda: _epochs(out) >= 6)
            pids = _workers(driver)
            os.kill(pids[-1], signal.SIGKILL)
            _wait_until(lambda: len(set(_workers(driver)) | set(pids)) == 3)
            pids = _workers(driver)
            os.killpg(driver.pid, signal.SIGINT)
            printed, errors = driver.communicate(timeout=60)
        finally:
            driver.kill()
    found = re.fullmatch(r"Outcome\(results=(.), failures=0, left=(.), interrupted=True\)\n", printed)
    assert found, printed
    assert int(found[1]) + int(found[2]) == 4
    assert errors == "skipinit: a worker process (killed by SIGKILL) is lost; its trials resume on another\n"
    assert _gone(pids)
    before = _curves(out)

    with _drive(out) as driver:  # it goes on from there, and then itself is killed
        try:
            _wait_until(lambda: _epochs(out) > sum(map(len, before.values())))
            pids = _workers(driver)
        finally:
            driver.kill()
    _wait_until(lambda: _gone(pids))

    for place in (out, tmp_path / "undisturbed"):
        assert run_sweep(_LONG, place, device="cpu", progress=False) == Outcome(4, 0, 0)
    assert _results(out) == _results(tmp_path / "undisturbed")
    # Speeds are never the same twice: these were trained once. The newest of each may lack a checkpoint.
    after = _curves(out)
    for id, (*sure, _) in ((id, curve) for id, curve in before.items() if curve):
        assert after[id][: len(sure)] == sure


_SENT = (
    ["KILL"], ["group KILL"], ["TERM"], ["INT"], ["group INT"], ["INT", "INT"], ["HUP"], ["STOP", "CONT"],
    ["worker KILL"], ["worker STOP", "worker CONT"], ["group TERM"],
)  # fmt: skip


def _send(driver: subprocess.Popen[str], words: str) -> None:
    whom, _, name = words.rpartition(" ")
    number = signal.Signals[f"SIG{name}"]
    with suppress(ProcessLookupError):
        if whom == "group":
            os.killpg(driver.pid, number)
        elif whom == "worker":
            for pid in _workers(driver)[:1]:
                os.kill(pid, number)
        else:
            os.kill(driver.pid, number)


@pytest.mark.skipif("SKIPINIT_TORTURE" not in os.environ, reason="a minute; see `make torture`")
def test_signals_of_every_kind_to_driver_group_and_workers(tmp_path: Path, torture: Torture) -> None:
    assert run_sweep(_LONG, tmp_path / "undisturbed", device="cpu", progress=False) == Outcome(4, 0, 0)
    undisturbed = _results(tmp_path / "undisturbed")
    for seed in torture.cases(0):
        generator, out, pids = random.Random(seed), tmp_path / f"out{seed}", [0]
        with open_writer(out) as writer:
            writer.add(_LONG.trials)
        for _ in range(3):
            with _drive(out) as driver:
                try:
                    time.sleep(generator.uniform(0, 20))
                    pids = _workers(driver)
                    for words in generator.choice(_SENT):
                        _send(driver, words)
                        torture.count("kills")
                        time.sleep(generator.uniform(0, 0.5))
                    if driver.poll() is None and generator.random() < 0.5:
                        driver.kill()
                    _, errors = driver.communicate(timeout=300)
                finally:
                    driver.kill()
            # The driver of this test is a script, which an interrupt at its imports ends as Python does.
            assert "Traceback" not in errors or "KeyboardInterrupt" in errors, errors
            _wait_until(lambda pids=pids: _gone(pids))  # type: ignore[misc]
        assert run_sweep(_LONG, out, device="cpu", progress=False) == Outcome(4, 0, 0)
        assert _results(out) == undisturbed
        torture.count("results compared", len(undisturbed))
        shutil.rmtree(out)
