"""A sweep on a Ray cluster: the numbers of a sweep here, though a node dies; what cannot be is one line."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skipinit.cli import main
from skipinit.config import ModelConfig, to_dict
from skipinit.sweeping.engine import Outcome, run_sweep
from skipinit.sweeping.grid import Grid
from skipinit.sweeping.store import open_store
from skipinit.training.protocol import identity
from support.clusters import DRIVER, curves, numbers, processes, start, two_nodes
from support.own_models import GATE
from support.runs import DIVERGING, RAISING, SMALL

pytest.importorskip("ray", reason="needs Ray (extra `cluster`)")
pytestmark = pytest.mark.xdist_group("ray")  # one worker, one cluster

_LONG = [
    replace(SMALL, model=ModelConfig("support.own_models:gated_net"), epochs=4, seed=seed)
    for seed in range(2)
]
"""One for each node, and sent out first. They wait after three epochs: both train when the node is killed."""
_TRIALS = [*_LONG, *(replace(SMALL, seed=seed) for seed in range(2, 5)), DIVERGING, RAISING]
_OPTIONS = ["--data", "digits", "--lr", "0.05", "--batch-size", "256", "--engine", "ray"]
_COMMAND = ["sweep", "wrn10_1", "--scheme", "skipinit", *_OPTIONS]
_PATIENCE = 240


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file for which the long trials wait, on every node."""
    return tmp_path_factory.mktemp("gate") / "open"


@pytest.fixture(scope="module")
def cluster(gate: Path) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(GATE, str(gate))
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
        with two_nodes() as (cluster, _):
            yield cluster


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(
    ("address", "says"),
    [
        pytest.param(
            "auto",
            "start one with `ray start --head`",
            marks=pytest.mark.skipif(bool(processes("raylet")), reason="a Ray cluster runs on this machine"),
        ),
        pytest.param(f"127.0.0.1:{_free_port()}", "start one with `ray start --head`", id="nobody listens"),
        ("nonsense", "start one with `ray start --head`"),
        ("ray://127.0.0.1:10001", "run on a node"),
    ],
)
def test_an_address_without_a_cluster_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    address: str,
    says: str,
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert main([*_COMMAND, "--out", str(tmp_path / "sweep")]) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert address in printed.err
    assert printed.err.count("\n") == 1
    assert not (tmp_path / "sweep").exists()


def _states(out: Path) -> dict[str, str]:
    with open_store(out) as store:
        return {trial.id: trial.state for trial in store.trials()}


def _wait_until(holds: Callable[[], bool], driver: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not holds():
        assert driver.poll() is None, driver.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _both_have_begun(out: Path) -> bool:
    """The long trials run and have two epochs each: one of them is on the node that will die."""
    if not (out / "sweep.sqlite").exists():
        return False
    so_far, states = curves(out), _states(out)
    return all(states.get(id) == "running" and len(so_far.get(id, [])) >= 2 for id in map(identity, _LONG))


def test_a_node_killed_in_mid_sweep_costs_no_trial_and_changes_no_number(
    tmp_path: Path, cluster: Any, gate: Path
) -> None:
    out = tmp_path / "cluster"
    (victim,) = cluster.worker_nodes
    trials = json.dumps([to_dict(config) for config in _TRIALS])
    with start(["-c", DRIVER, trials, str(out)], cluster) as driver:
        try:
            _wait_until(lambda: _both_have_begun(out), driver)
            before = curves(out)
            cluster.remove_node(victim, allow_graceful=False)
            gate.touch()
            printed, errors = driver.communicate(timeout=_PATIENCE)
        finally:
            gate.touch()
            driver.kill()
    assert errors == "skipinit: a worker of the cluster is lost; its trials resume on another\n"
    assert json.loads(printed) == {"results": 6, "failures": 1, "left": 0, "interrupted": False}
    states = _states(out)
    assert states.pop(identity(DIVERGING)) == "diverged"
    assert states.pop(identity(RAISING)) == "failed"
    assert list(states.values()) == ["finished"] * 5
    assert not list((out / "checkpoints").iterdir())

    here = tmp_path / "here"
    assert run_sweep(Grid(tuple(_TRIALS)), here, device="cpu", progress=False) == Outcome(6, 1, 0)
    assert numbers(out) == numbers(here)
    with open_store(out) as store:
        failed = store.trial(identity(RAISING))
    assert "ghost_batch 48 does not divide" in failed.reason
    assert "ConfigError" in failed.traceback

    # Speeds are never the same twice: these epochs were trained once, so the lost trial went on from a
    # checkpoint. The newest epoch of each may have been recorded without one.
    after = curves(out)
    for id, (*sure, _) in ((id, curve) for id, curve in before.items() if curve):
        assert after[id][: len(sure)] == sure


def test_asked_to_stop_the_nodes_hand_over_their_checkpoints(
    tmp_path: Path, cluster: Any, gate: Path
) -> None:
    out = tmp_path / "stopped"
    gate.unlink(missing_ok=True)
    command = [
        "sweep",
        _LONG[0].model.name,
        *_OPTIONS,
        "--epochs",
        "40",
        "--device",
        "cpu",
        "--out",
        str(out),
    ]
    with start(["-m", "skipinit", *command], cluster) as driver:
        try:
            _wait_until(lambda: (out / "sweep.sqlite").exists() and any(curves(out).values()), driver)
            driver.send_signal(signal.SIGTERM)
            time.sleep(3)  # by then the node has been asked, while its trial waits
            gate.touch()
            printed, errors = driver.communicate(timeout=_PATIENCE)
        finally:
            gate.touch()
            driver.kill()
    # On a busy machine a line of progress comes each minute.
    remarks = [line for line in errors.splitlines() if not line.startswith("epochs of all trials, ")]
    assert (driver.returncode, remarks) == (130, ["run the same command again to resume"])
    assert printed == f"0 results, 0 failures, 1 left; in {out}\n"
    assert list(_states(out).values()) == ["pending"]
    assert len(list((out / "checkpoints").glob("*.pt"))) == 1

    (before,) = curves(out).values()
    with open_store(out) as store:
        (trial,) = store.trials()
    grid = Grid((trial.config,))
    for place in (out, tmp_path / "undisturbed"):
        assert run_sweep(grid, place, device="cpu", progress=False) == Outcome(1, 0, 0)
    assert numbers(out) == numbers(tmp_path / "undisturbed")
    assert curves(out)[trial.id][: len(before)] == before  # the speeds, too: these were not trained again


def test_a_gpu_that_no_node_has_is_refused_at_once(tmp_path: Path, cluster: Any) -> None:
    started = time.monotonic()
    command = [*_COMMAND, "--device", "cuda", "--out", str(tmp_path / "sweep")]
    with start(["-m", "skipinit", *command], cluster) as driver:
        printed, errors = driver.communicate(timeout=_PATIENCE)
    assert time.monotonic() - started < 30
    assert (driver.returncode, printed) == (2, "")
    assert errors.startswith("skipinit: no node of the cluster has a GPU; it has ")
    assert errors.count("\n") == 1
    assert not (tmp_path / "sweep").exists()


def test_without_ray_the_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main([*_COMMAND, "--out", str(tmp_path / "sweep")]) == 2
    assert capsys.readouterr().err == ("skipinit: engine ray needs ray; pip install 'skipinit[cluster]'\n")
    assert not (tmp_path / "sweep").exists()


def test_one_gpu_of_a_cluster_cannot_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*_COMMAND, "--device", "cuda:1", "--out", str(tmp_path / "sweep")]) == 2
    assert capsys.readouterr().err == (
        "skipinit: device 'cuda:1' cannot be chosen on a cluster; give auto, cpu or cuda\n"
    )
