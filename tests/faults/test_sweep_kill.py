"""A sweep whose driver is killed at any instant ends with every result, once, as if left alone."""

from __future__ import annotations

import multiprocessing
import random
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from skipinit.config import ModelConfig, TrainConfig
from skipinit.sweeping.engine import run_sweep
from skipinit.sweeping.grid import Grid
from skipinit.sweeping.store import open_store

_KILLS = 25
_CONFIG = TrainConfig(
    ModelConfig("wrn10_1", "skipinit", num_classes=10, in_channels=1),
    "digits",
    lr=0.05,
    batch_size=512,
    epochs=2,
    augment=False,
)
_TRIALS = Grid(tuple(replace(_CONFIG, seed=seed) for seed in range(60)))

# Processes fork from a server that has imported torch: the instants fall into the sweep, not into imports.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["skipinit.sweeping.engine", "skipinit.data.images"])


def _work(out: Path) -> None:
    torch.set_num_threads(1)
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


def test_a_driver_killed_at_25_random_instants_loses_and_repeats_nothing(tmp_path: Path) -> None:
    instants = random.Random(2)
    done: dict[str, Any] = {}
    for _ in range(_KILLS):
        process = _PROCESSES.Process(target=_work, args=(tmp_path / "killed",))
        process.start()
        process.join(instants.uniform(0.05, 0.9))
        process.kill()
        process.join()
        assert process.exitcode in (-signal.SIGKILL, 0)
        if (tmp_path / "killed" / "sweep.sqlite").exists():
            now = _results(tmp_path / "killed")
            assert {id: now[id] for id in done} == done  # what was finished stays, to the bit
            done = now
    assert len(done) < 60, "the kills came too late to mean anything"
    for name in ("killed", "undisturbed"):
        process = _PROCESSES.Process(target=_work, args=(tmp_path / name,))
        process.start()
        process.join()
        assert process.exitcode == 0
    killed, undisturbed = _results(tmp_path / "killed"), _results(tmp_path / "undisturbed")
    assert len(killed) == 60
    assert killed == undisturbed
