"""A disk too small, files that may not grow, a clock that jumps: one line, and afterwards the same result."""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from skipinit import notation
from skipinit.cli import main
from skipinit.config import ModelConfig
from skipinit.sweeping.single import train
from skipinit.sweeping.store import open_store
from skipinit.training.protocol import make_train_config
from support.processes import PROCESSES
from support.torture import Torture

CONFIG = make_train_config(ModelConfig("wrn10_1", "skipinit"), "digits", lr=0.1, batch_size=512, epochs=2)
WORDS = "train wrn10_1 --scheme skipinit --data digits --lr 0.1 --batch-size 512 --epochs 2 --device cpu"


def _run(out: Path, errors: Path, most: int) -> None:
    """The command in a process of its own, whose files have at most so many bytes."""
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    raise SystemExit(main([*WORDS.split(), "--out", str(out)]))


def _train(out: Path, errors: Path, most: int = resource.RLIM_INFINITY) -> tuple[int | None, str]:
    process = PROCESSES.Process(target=_run, args=(out, errors, most))
    process.start()
    process.join()
    return process.exitcode, errors.read_text()


def _measured(out: Path) -> list[dict[str, Any]]:
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "images_per_second"} for line in lines]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("may not mount a file system")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def _assert_refused(code: int | None, said: str, number: int) -> None:
    assert code in (0, 1), said
    if code:
        assert said.startswith("skipinit: "), said
        assert said.count("\n") == 1, said
        assert os.strerror(number) in said or "the disk is full" in said, said


def test_a_disk_that_is_full(small_disk: Path, tmp_path: Path, torture: Torture) -> None:
    train(CONFIG, tmp_path / "whole", device="cpu", progress=False)
    for seed in torture.cases(1):
        size, out = random.Random(seed).randrange(1, 800), small_disk / f"run{seed}"
        subprocess.run(["mount", "-o", f"remount,size={size}k", small_disk], check=True)
        code, said = _train(out, tmp_path / "errors")
        _assert_refused(code, said, errno.ENOSPC)
        torture.count("injected errors", code == 1)
        subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
        assert _train(out, tmp_path / "errors") == (0, "")
        assert _measured(out) == _measured(tmp_path / "whole")
        torture.count("results compared")
        shutil.rmtree(out)


def test_files_that_may_not_grow(tmp_path: Path, torture: Torture) -> None:
    train(CONFIG, tmp_path / "whole", device="cpu", progress=False)
    for seed in torture.cases(1):
        out = tmp_path / f"run{seed}"
        code, said = _train(out, tmp_path / "errors", random.Random(seed).randrange(400_000))
        _assert_refused(code, said, errno.EFBIG)
        torture.count("injected errors", code == 1)
        assert _train(out, tmp_path / "errors") == (0, "")
        assert _measured(out) == _measured(tmp_path / "whole")
        torture.count("results compared")
        shutil.rmtree(out)


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """Two classes, four pictures of each to train on and to test."""
    generator = np.random.default_rng(0)
    for part in ("train", "val"):
        for name in ("cat", "dog"):
            folder = tmp_path / "photographs" / part / name
            folder.mkdir(parents=True)
            for number in range(4):
                pixels = generator.integers(0, 256, (40, 50, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path / "photographs"


def _train_photographs(
    folder: Path, out: Path, epochs: int, within: Sequence[str] = ()
) -> subprocess.Popen[str]:
    words = f"train support.own_models:for_photographs --data {folder} --batch-size 4 --epochs {epochs}"
    return subprocess.Popen(
        [*within, sys.executable, "-m", "skipinit", *words.split(), "--device", "cpu", "--out", str(out)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_shared_memory_that_is_too_small(photographs: Path, tmp_path: Path) -> None:
    """As in a container, where it has 64 MB. A batch of four has 600 KB."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("needs user and mount namespaces (unshare -rm)")
    mounted = 'mount -t tmpfs -o size=300k none /dev/shm && exec "$@"'
    within = ["unshare", "-rm", "sh", "-c", mounted, "sh"]
    with _train_photographs(photographs, tmp_path / "run", 1, within) as process:
        try:
            _, said = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 1
    assert said.startswith("skipinit: /dev/shm: no room for images that worker processes decode (")
    assert said.endswith("make it larger, as by docker run --shm-size=8g, or use fewer cores (taskset)\n")
    assert said.count("\n") == 1


def test_a_decoder_that_is_killed(photographs: Path, tmp_path: Path) -> None:
    """As for lack of memory."""
    out = tmp_path / "run"
    with _train_photographs(photographs, out, 2000) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        try:
            deadline = time.monotonic() + 120
            while process.poll() is None and not (out / "metrics.jsonl").exists():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            while process.poll() is None:  # those of an epoch that has just ended are not missed
                assert time.monotonic() < deadline
                with suppress(OSError, IndexError):
                    os.kill(int(children.read_text().split()[0]), signal.SIGKILL)
                time.sleep(0.2)
            _, said = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 1
    # Before it, Python may report an error that torch raised in a hook of fork, where it is ignored.
    last = said.splitlines()[-1]
    assert last.startswith("skipinit: DataLoader worker")
    assert last.endswith("; run the command again to resume")


class _Jumping:
    """Stands in for `datetime`: each look at it is years from the last."""

    def __init__(self, seed: int) -> None:
        self.generator, self.looks = random.Random(seed), 0

    def now(self, zone: tzinfo) -> datetime:
        self.looks += 1
        return datetime.now(zone) + timedelta(days=self.generator.uniform(-4000, 4000))


def test_a_clock_that_jumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torture: Torture) -> None:
    """Wall clocks are for people. What is measured, and the order of results, does not depend on them."""
    whole = train(CONFIG, tmp_path / "whole", device="cpu", progress=False)
    for seed in torture.cases(1):
        clock = _Jumping(seed)
        with monkeypatch.context() as patch:
            patch.setattr(notation, "datetime", clock)
            out = tmp_path / f"jumping{seed}"
            result = train(CONFIG, out, device="cpu", progress=False)
        assert clock.looks > 3
        assert [epoch.train_loss for epoch in result.records] == [epoch.train_loss for epoch in whole.records]
        with open_store(out) as store:
            (trial,) = store.trials()
            assert [epoch.epoch for epoch in store.curve(trial.id)] == [1, 2]
        assert trial.seconds > 0
        assert all(epoch.images_per_second > 0 for epoch in result.records)
        assert main(["status", str(out)]) == main(["results", str(out)]) == 0
        torture.count("clocks set")
        shutil.rmtree(out)
