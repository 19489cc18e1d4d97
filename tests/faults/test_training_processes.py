"""Several processes that train one run: the same numbers as one process, and no hanging when one dies."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skipinit.config import ModelConfig, TrainConfig
from skipinit.errors import SkipinitError
from skipinit.sweeping.single import train
from support.processes import PROCESSES
from support.runs import StopAfter, state, tensors

_PATIENCE = 120


def _config(scheme: str, epochs: int = 2, **options: Any) -> TrainConfig:
    model = ModelConfig("wrn10_1", scheme, num_classes=10, in_channels=1, **options)
    return TrainConfig(
        model, "digits", lr=0.025, batch_size=128, epochs=epochs, seed=4, clean_train_loss=True
    )


def _work(rank: int, size: int, port: int, config: TrainConfig, out: Path, looks: int | None) -> None:
    """One process, with the environment that torchrun gives it."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    stop = None if looks is None or rank else StopAfter(looks)
    try:
        train(config, out, device="cpu", progress=False, stop=stop)
    except SkipinitError as error:
        out.with_suffix(f".error{rank}").write_text(str(error))
        sys.exit(error.exit_code)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _train(config: TrainConfig, out: Path, size: int = 2, looks: int | None = None) -> list[int]:
    """Exit codes of `size` processes training one run."""
    return _start(_work, size, config, out, looks)


def _start(work: Callable[..., None], size: int, *arguments: Any) -> list[int]:
    port = _free_port()
    processes = [PROCESSES.Process(target=work, args=(rank, size, port, *arguments)) for rank in range(size)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(_PATIENCE)
        assert process.exitcode is not None, "hangs"
    return [process.exitcode for process in processes]


def _metrics(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def _assert_same_numbers(out: Path, reference: Path) -> None:
    ours, theirs = _metrics(out), _metrics(reference)
    assert len(ours) == len(theirs) > 0
    for name in ("train_loss", "clean_train_loss", "test_loss"):
        np.testing.assert_allclose([r[name] for r in ours], [r[name] for r in theirs], rtol=0, atol=1e-5)
    assert [r["test_accuracy"] for r in ours] == [r["test_accuracy"] for r in theirs]


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        ("batchnorm", {"ghost_batch": 32}),
        ("batchnorm", {"ghost_batch": 32, "batch_statistics_at_test": True}),
        ("regularized-skipinit", {}),
    ],
)
def test_two_processes_have_the_numbers_of_one(tmp_path: Path, scheme: str, options: dict[str, Any]) -> None:
    config = _config(scheme, **options)
    assert _train(config, tmp_path / "two") == [0, 0]
    assert _train(config, tmp_path / "one", size=1) == [0]
    _assert_same_numbers(tmp_path / "two", tmp_path / "one")
    two, one = (tensors(state(tmp_path / name)) for name in ("two", "one"))
    assert two.keys() == one.keys()
    for name in two.keys() - {"losses"}:
        ours, theirs = two[name], one[name]
        scale = max(1.0, float(theirs.double().norm()))
        assert float((ours.double() - theirs.double()).norm()) <= 1e-3 * scale


def _in_double(factory: str) -> ModelConfig:
    """In float32, sums in another order carry activations across the kink of a ReLU; gradients jump there."""
    return ModelConfig(f"support.own_models:{factory}_in_double", "own", num_classes=10, in_channels=1)


@pytest.mark.parametrize("factory", ["ghost_batches", "whole_batch", "normalized_blocks", "compiled"])
def test_all_that_a_step_changes_is_as_in_one_process(tmp_path: Path, factory: str) -> None:
    config = replace(_config("batchnorm", epochs=1), model=_in_double(factory), batch_size=704, watch=1)
    assert _train(config, tmp_path / "two", looks=0) == [0, 0]
    assert _train(config, tmp_path / "one", size=1, looks=0) == [0]
    two, one = (state(tmp_path / name) for name in ("two", "one"))
    assert two["step"] == one["step"] == 1
    for name in tensors(two).keys() - {"losses"}:
        np.testing.assert_allclose(tensors(two)[name], tensors(one)[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("factory", ["batch_at_test", "without_averages"])
def test_the_statistics_of_a_test_batch_are_those_of_one_process(tmp_path: Path, factory: str) -> None:
    config = replace(_config("batchnorm", epochs=1), model=_in_double(factory))
    assert _train(config, tmp_path / "two") == [0, 0]
    assert _train(config, tmp_path / "one", size=1) == [0]
    _assert_same_numbers(tmp_path / "two", tmp_path / "one")


def _work_in_turn(rank: int, size: int, port: int, configs: Sequence[TrainConfig], out: Path) -> None:
    for config in configs:
        _work(rank, size, port, config, out / str(config.seed), None)
        if rank == 0:
            time.sleep(0.5)  # the other process is first at the next run


def test_the_same_processes_train_one_run_after_the_other(tmp_path: Path) -> None:
    configs = [replace(_config("batchnorm", epochs=1), seed=seed) for seed in range(2)]
    assert _start(_work_in_turn, 2, configs, tmp_path / "two") == [0, 0]
    assert _start(_work_in_turn, 1, configs, tmp_path / "one") == [0]
    for config in configs:
        _assert_same_numbers(tmp_path / "two" / str(config.seed), tmp_path / "one" / str(config.seed))


def test_a_model_of_which_a_part_is_not_in_the_loss_is_refused(tmp_path: Path) -> None:
    model = ModelConfig("support.own_models:with_an_unused_layer", "own", num_classes=10, in_channels=1)
    config = replace(_config("skipinit", epochs=1), model=model)
    assert _train(config, tmp_path / "two") == [2, 2]
    for rank in range(2):
        line = (tmp_path / f"two.error{rank}").read_text()
        assert line.startswith(f"{model.name}: its loss does not depend on 0.unused.")
    assert _train(config, tmp_path / "two", size=1) == [0]


def test_stopped_within_an_epoch_two_processes_go_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    config = _config("batchnorm", ghost_batch=32)
    assert _train(config, tmp_path / "stopped", looks=4) == [0, 0]
    assert not (tmp_path / "stopped" / "result.json").exists()
    assert state(tmp_path / "stopped")["step"] == 5
    assert _train(config, tmp_path / "stopped") == [0, 0]
    assert _train(config, tmp_path / "whole") == [0, 0]
    _assert_same_numbers(tmp_path / "stopped", tmp_path / "whole")


def test_models_of_the_users_own_are_shared_and_watched_by_one(tmp_path: Path) -> None:
    model = ModelConfig("support.own_models:plain_blocks", "own", num_classes=10, in_channels=1)
    config = replace(_config("skipinit", epochs=1), model=model, watch=4)
    assert _train(config, tmp_path / "two", looks=4) == [0, 0]
    assert state(tmp_path / "two")["step"] == 5
    assert _train(config, tmp_path / "two") == [0, 0]
    train(config, tmp_path / "one", device="cpu", progress=False)
    _assert_same_numbers(tmp_path / "two", tmp_path / "one")
    seen, alone = ((tmp_path / name / "balance.csv").read_text().splitlines() for name in ("two", "one"))
    assert len(seen) == len(alone) == 1 + 3 * 2, "steps 0, 4 and 8 of two blocks"
    columns = seen[0].split(",")
    for ours, theirs in zip(seen[1:], alone[1:], strict=True):  # of half the batch, and of the whole
        one, other = (dict(zip(columns, line.split(","), strict=True)) for line in (ours, theirs))
        assert float(one["update_ratio"]) == pytest.approx(float(other["update_ratio"]), rel=1e-3)
        assert float(one["branch_share"]) == pytest.approx(float(other["branch_share"]), rel=0.2)
        assert one["branch_share"] != other["branch_share"]


def test_what_processes_cannot_share_is_refused_with_the_reason(tmp_path: Path) -> None:
    ghosts = replace(_config("batchnorm", ghost_batch=32), batch_size=96)
    assert _train(ghosts, tmp_path / "ghosts") == [2, 2]
    line = (tmp_path / "ghosts.error0").read_text()
    assert line == "ghost_batch 32 does not divide the 48 examples of each process"
    assert _train(replace(_config("skipinit"), batch_size=127), tmp_path / "odd") == [2, 2]
    assert (tmp_path / "odd.error1").read_text() == "2 processes cannot share a batch of 127 evenly"
    assert not (tmp_path / "ghosts").exists()
    assert not (tmp_path / "odd").exists()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds torchrun's workers under /proc")
def test_a_dead_process_ends_the_job_which_then_goes_on(tmp_path: Path) -> None:
    config = replace(_config("skipinit", epochs=100), clean_train_loss=False)
    out = tmp_path / "run"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-port", str(_free_port()), "-m", "skipinit", "train", "wrn10_1"]
    command += ["--scheme", "skipinit", "--data", "digits", "--lr", "0.025", "--batch-size", "128"]
    command += ["--epochs", "100", "--seed", "4", "--augment", "--device", "cpu", "--out", str(out)]
    with subprocess.Popen(
        command,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as job:
        try:
            deadline = time.monotonic() + _PATIENCE
            while not (out / "metrics.jsonl").exists() or not _metrics(out):
                assert job.poll() is None, job.stderr.read()
                assert time.monotonic() < deadline
                time.sleep(0.01)
            leader = json.loads((out / "sweep.lock").read_text())["pid"]
            (other,) = (pid for pid in _children(job.pid) if pid != leader)
            os.kill(other, signal.SIGKILL)
            _, errors = job.communicate(timeout=_PATIENCE)
        finally:
            job.terminate()  # the workers go with it
    assert job.returncode != 0
    assert "skipinit: process 0 lost the others" in errors
    assert not (out / "result.json").exists()
    gone_on = train(config, out, device="cpu", progress=False, stop=StopAfter(1))
    assert (gone_on.state, gone_on.step) == ("stopped", 2)
