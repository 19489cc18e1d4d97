"""What holds for every test, and which of them `--quick` leaves out."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from typing import Any

import pytest
import torch

_BACKWARD_PASSES = 10


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make quick` gives it."""
    parser.addoption("--quick", action="store_true", help="leave out tests that train or start a process")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Numbers are compared to the bit, and two test processes share the cores: a sweep has one, here too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skipinit.sweeping.workers.usable_cores", lambda: 1)
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session", autouse=True)
def backward_passes(request: pytest.FixtureRequest) -> Iterator[list[int]]:
    """How many the test has done. With --quick a test is skipped the moment it does what takes long.

    So what is quick follows from what a test does, and nobody keeps a list.
    """
    passes = [0]
    popen, backward = subprocess.Popen.__init__, torch.Tensor.backward

    def start_program(self: Any, args: Any, *rest: Any, **options: Any) -> None:
        if args[0] != "git":  # it says in milliseconds which commit this is
            pytest.skip("starts a process")
        popen(self, args, *rest, **options)

    def start_process(self: BaseProcess) -> None:
        pytest.skip("starts a process")

    def go_backward(self: torch.Tensor, *args: Any, **options: Any) -> None:
        passes[0] += 1
        if passes[0] > _BACKWARD_PASSES:
            pytest.skip("trains")
        backward(self, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("quick"):
            patch.setattr(subprocess.Popen, "__init__", start_program)
            patch.setattr(BaseProcess, "start", start_process)
            patch.setattr(torch.Tensor, "backward", go_backward)
        yield passes


@pytest.fixture(autouse=True)
def _count_anew(backward_passes: list[int]) -> None:
    backward_passes[0] = 0
