"""What holds for every test, and which of them `--quick` leaves out."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any

import pytest
import torch

_BACKWARD_PASSES = 10
_SECONDS = 0.5


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make quick` gives it."""
    parser.addoption(
        "--quick", action="store_true", help="leave out what trains, starts a process or builds for long"
    )


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Numbers are compared to the bit, and two test processes share the cores: a sweep has one, here too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skipinit.sweeping.workers.usable_cores", lambda: 1)
        yield
    torch.set_num_threads(threads)


@dataclass
class Work:
    """What the test that is running has done so far."""

    backward_passes: int = 0
    began: float = 0.0
    """In seconds of the CPU: what else runs on the machine changes nothing."""


@pytest.fixture(scope="session", autouse=True)
def work(request: pytest.FixtureRequest) -> Iterator[Work]:
    """Counted for every test. With --quick a test is skipped the moment it does what takes long.

    So what is quick follows from what a test does, and nobody keeps a list.
    """
    done = Work()
    popen, backward, build = subprocess.Popen.__init__, torch.Tensor.backward, torch.nn.Module.__init__

    def start_program(self: Any, args: Any, *rest: Any, **options: Any) -> None:
        if args[0] != "git":  # it says in milliseconds which commit this is
            pytest.skip("starts a process")
        popen(self, args, *rest, **options)

    def start_process(self: BaseProcess) -> None:
        pytest.skip("starts a process")

    def go_backward(self: torch.Tensor, *args: Any, **options: Any) -> None:
        done.backward_passes += 1
        if done.backward_passes > _BACKWARD_PASSES:
            pytest.skip("trains")
        backward(self, *args, **options)

    def build_module(self: torch.nn.Module, *args: Any, **options: Any) -> None:
        if time.process_time() - done.began > _SECONDS:
            pytest.skip("builds large networks, or many")
        build(self, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("quick"):
            patch.setattr(subprocess.Popen, "__init__", start_program)
            patch.setattr(BaseProcess, "start", start_process)
            patch.setattr(torch.Tensor, "backward", go_backward)
            patch.setattr(torch.nn.Module, "__init__", build_module)
        yield done


@pytest.fixture(autouse=True)
def _begin_anew(work: Work) -> None:
    work.backward_passes, work.began = 0, time.process_time()
