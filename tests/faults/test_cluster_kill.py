"""A sweep on a Ray cluster whose nodes, workers and drivers are killed has the numbers of a sweep here."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from skipinit.config import to_dict
from skipinit.sweeping.engine import Outcome, run_sweep
from skipinit.sweeping.grid import Grid
from support.clusters import DRIVER, NODE, numbers, processes, start, two_nodes
from support.runs import SMALL
from support.torture import Torture

pytest.importorskip("ray", reason="needs Ray (extra `cluster`)")
pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.skipif("SKIPINIT_TORTURE" not in os.environ, reason="minutes; see `make torture`"),
]

_TRIALS = tuple(replace(SMALL, epochs=12, seed=seed) for seed in range(4))
_KILLS = 5


def _workers(folder: str) -> list[int]:
    """Those that train. Their titles say nothing of the cluster, but their parents' do."""
    nodes = set(processes(folder))
    found = []
    for pid in processes("ray::stream_share"):
        with suppress(OSError):
            if int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) in nodes:
                found.append(pid)
    return found


def test_nodes_workers_and_drivers_killed_at_random(tmp_path: Path, torture: Torture) -> None:
    assert run_sweep(Grid(_TRIALS), tmp_path / "here", device="cpu", progress=False) == Outcome(4, 0, 0)
    expected = numbers(tmp_path / "here")
    trials = json.dumps([to_dict(config) for config in _TRIALS])
    with two_nodes() as (cluster, folder):
        for seed in torture.cases(0):
            generator, out = random.Random(seed), tmp_path / f"out{seed}"
            for _ in range(_KILLS):
                with start(["-c", DRIVER, trials, str(out)], cluster) as driver:
                    try:
                        time.sleep(generator.uniform(3, 25))
                        match generator.choice(["driver", "worker", "node"]):
                            case "driver":
                                driver.kill()
                            case "worker":
                                for pid in _workers(folder)[:1]:
                                    os.kill(pid, signal.SIGKILL)
                            case "node":
                                (victim,) = cluster.worker_nodes
                                cluster.remove_node(victim, allow_graceful=False)
                                cluster.add_node(temp_dir=folder, **NODE)
                        torture.count("kills")
                        _, errors = driver.communicate(timeout=240)
                    finally:
                        driver.kill()
                assert "Traceback" not in errors, errors
            assert run_sweep(Grid(_TRIALS), out, device="cpu", progress=False) == Outcome(4, 0, 0)
            assert numbers(out) == expected
            torture.count("results compared", len(expected))
            shutil.rmtree(out)
