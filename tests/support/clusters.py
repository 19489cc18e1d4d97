"""A Ray cluster of two nodes on this machine, and drivers of sweeps on it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skipinit.sweeping.store import open_store
from skipinit.training.records import EpochRecord

DRIVER = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from skipinit.config import train_from_dict
from skipinit.sweeping.engine import run_sweep
from skipinit.sweeping.grid import Grid

trials = tuple(train_from_dict(fields) for fields in json.loads(sys.argv[1]))
outcome = run_sweep(Grid(trials), Path(sys.argv[2]), engine="ray", checkpoint_seconds=0, progress=False)
print(json.dumps(asdict(outcome)))
"""
"""Trains the trials of its first argument, as JSON, into the folder of its second."""
NODE = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": 80_000_000, "include_dashboard": False}


@contextmanager
def two_nodes() -> Iterator[tuple[Any, str]]:
    """A cluster with a CPU on each node, and its folder; none of its processes outlives the tests."""
    from ray.cluster_utils import Cluster

    quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500}
    with (
        tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        # Ray writes its address into its default folder, whatever `temp_dir` says, but does not make it.
        patch.setenv("RAY_TMPDIR", folder)
        Path(folder, "ray").mkdir()
        cluster = Cluster()
        try:
            cluster.add_node(temp_dir=folder, _system_config=quick, **NODE)
            cluster.add_node(temp_dir=folder, **NODE)
            yield cluster, folder
        finally:
            cluster.shutdown()
            deadline = time.monotonic() + 10
            while processes(folder) and time.monotonic() < deadline:
                time.sleep(0.1)
            left = processes(folder)
            for pid in left:
                os.kill(pid, signal.SIGKILL)
        assert not left, "processes of the cluster outlived it"


def processes(word: str) -> list[int]:
    """Those whose command line has the word."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if word in (place / "cmdline").read_text(errors="replace"):
                found.append(int(place.name))
        except OSError:  # it has just ended
            continue
    return found


def start(arguments: list[str], cluster: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=os.environ | {"RAY_ADDRESS": cluster.address, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def curves(out: Path) -> dict[str, list[EpochRecord]]:
    with open_store(out) as store:
        return {trial.id: store.curve(trial.id) for trial in store.trials()}


def numbers(out: Path) -> dict[str, list[EpochRecord]]:
    """All that was measured but speed."""
    return {
        id: [replace(epoch, images_per_second=0.0) for epoch in curve] for id, curve in curves(out).items()
    }
