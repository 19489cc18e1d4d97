"""A run that is killed at any instant and started again ends bit-equal to one that was left alone."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from skipinit.config import ModelConfig, TrainConfig
from skipinit.sweeping.single import train
from support.processes import PROCESSES
from support.runs import FILES, StopAfter, state, tensors
from support.torture import Torture

_CONFIG = TrainConfig(
    ModelConfig("wrn10_1", "regularized-skipinit", num_classes=10, in_channels=1),
    "digits",
    lr=0.025,
    batch_size=128,
    epochs=3,
)
_NORMALIZED = replace(
    _CONFIG, model=ModelConfig("wrn10_1", num_classes=10, in_channels=1, ghost_batch=32), epochs=2
)


def _work(config: TrainConfig, out: Path) -> None:
    torch.set_num_threads(1)
    train(config, out, device="cpu", checkpoint_seconds=0, progress=False)


def _dying_at_a_rename(config: TrainConfig, out: Path, number: int, before: bool) -> None:
    """Train, and die at the `number`-th file that gets its name: just before or just after."""
    rename, count = os.replace, 0

    def rename_and_die(*paths: Any) -> None:
        nonlocal count
        count += 1
        if count == number and before:
            os.kill(os.getpid(), signal.SIGKILL)
        rename(*paths)
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = rename_and_die
    _work(config, out)


def _without_speed(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in record.items() if name != "images_per_second"} for record in records
    ]


def _assert_same_end(folder: Path, reference: Path) -> None:
    metrics = [
        _without_speed([json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()])
        for place in (folder, reference)
    ]
    assert metrics[0] == metrics[1]
    ours, theirs = state(folder), state(reference)
    assert tensors(ours).keys() == tensors(theirs).keys()
    assert all(torch.equal(tensor, tensors(theirs)[name]) for name, tensor in tensors(ours).items())
    assert ours["step"] == theirs["step"]
    assert torch.equal(ours["generator"]["state"], theirs["generator"]["state"])
    assert _without_speed(ours["records"]) == _without_speed(theirs["records"])
    assert {path.name for path in folder.iterdir()} == FILES


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A run left alone, and how long it took."""
    for attempt in range(2):  # the first also waits for the server's imports
        out = tmp_path_factory.mktemp(f"undisturbed{attempt}")
        began = time.monotonic()
        process = PROCESSES.Process(target=_work, args=(_CONFIG, out))
        process.start()
        process.join()
        assert process.exitcode == 0
    return out, time.monotonic() - began


def test_killed_at_random_instants(tmp_path: Path, undisturbed: tuple[Path, float], torture: Torture) -> None:
    reference, seconds = undisturbed
    for seed in torture.cases(4):
        instants, out, kills = random.Random(seed), tmp_path / f"run{seed}", 0
        while kills < 5 and not (out / "result.json").exists():
            process = PROCESSES.Process(target=_work, args=(_CONFIG, out))
            process.start()
            process.join(instants.uniform(0, 0.6 * seconds))
            process.kill()
            process.join()
            kills += process.exitcode == -signal.SIGKILL
        _work(_CONFIG, out)
        _assert_same_end(out, reference)
        torture.count("kills", kills)
        torture.count("results compared")
        shutil.rmtree(out)


@pytest.mark.parametrize(("number", "before", "lives"), [(3, True, 4), (2, False, 5)])
def test_killed_at_every_file_that_gets_its_name(
    tmp_path: Path, undisturbed: tuple[Path, float], number: int, before: bool, lives: int
) -> None:
    """Each life rewrites the metrics and gets one checkpoint further, the last one to the result."""
    reference, _ = undisturbed
    exits = []
    while 0 not in exits and len(exits) <= lives:
        process = PROCESSES.Process(target=_dying_at_a_rename, args=(_CONFIG, tmp_path, number, before))
        process.start()
        process.join()
        exits.append(process.exitcode)
    assert exits == [-signal.SIGKILL] * lives + [0]
    _assert_same_end(tmp_path, reference)


@pytest.mark.parametrize(
    ("number", "config"), [(signal.SIGTERM, _CONFIG), (signal.SIGINT, _NORMALIZED)], ids=["SIGTERM", "Ctrl-C"]
)
def test_a_signal_leaves_a_checkpoint_within_the_epoch_to_go_on_from(
    tmp_path: Path, number: int, config: TrainConfig
) -> None:
    # Wide, so that an epoch is long enough to be stopped in on a busy machine.
    model = replace(config.model, name="wrn10_4")
    config = replace(config, model=model, batch_size=32, epochs=2)
    command = [sys.executable, "-m", "skipinit", "train", "wrn10_4", "--data", "digits"]
    command += [
        "--scheme",
        config.model.scheme,
        "--lr",
        str(config.lr),
        "--batch-size",
        "32",
        "--epochs",
        "2",
    ]
    command += ["--augment", "--device", "cpu", "--out", str(tmp_path / "stopped")]
    if config.model.ghost_batch:
        command += ["--ghost-batch", str(config.model.ghost_batch)]
    process = subprocess.Popen(
        command,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = tmp_path / "stopped" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (metrics.exists() and metrics.stat().st_size):  # the first of two epochs is over
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    time.sleep(0.1)  # past the evaluation, into the second epoch
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "run the same command again to resume" in out
    assert err == ""
    step = state(tmp_path / "stopped")["step"]
    assert 45 < step < 90
    assert not (tmp_path / "stopped" / "result.json").exists()

    resumed = train(config, tmp_path / "stopped", device="cpu", progress=False)
    whole = train(config, tmp_path / "whole", device="cpu", progress=False)
    assert resumed.state == whole.state == "finished"
    _assert_same_end(tmp_path / "stopped", tmp_path / "whole")


@pytest.mark.parametrize("scheme", ["batchnorm", "regularized-skipinit"])
def test_stopped_after_every_few_steps_a_run_is_bit_equal(tmp_path: Path, scheme: str) -> None:
    model = ModelConfig("wrn10_1", scheme, num_classes=10, in_channels=1)
    config = replace(_CONFIG, model=model, epochs=2, clean_train_loss=True)
    states = []
    while "finished" not in states:
        result = train(config, tmp_path / "often", device="cpu", progress=False, stop=StopAfter(looks=4))
        states.append(result.state)
    assert states.count("stopped") >= 4
    train(config, tmp_path / "never", device="cpu", progress=False)
    _assert_same_end(tmp_path / "often", tmp_path / "never")
