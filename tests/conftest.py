"""What holds for every test, and which of them `--quick` leaves out."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is first imported

_BACKWARD_PASSES, _MODULES, _PICTURES = 10, 200, 2
"""Of one test, from which on it is not quick."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make quick` gives it."""
    parser.addoption(
        "--quick", action="store_true", help="leave out what takes long: training, processes, large networks"
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


@pytest.fixture(scope="session", autouse=True)
def work_done(request: pytest.FixtureRequest) -> Iterator[Counter[str]]:
    """What the test has done so far. With --quick it is skipped the moment it does what takes long.

    So what is quick follows from what a test does, and nobody keeps a list.
    """
    done: Counter[str] = Counter()

    def limited(function: Callable[..., Any], what: str, most: int) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            done[what] += 1
            if done[what] > most:
                pytest.skip(what)
            return function(*args, **options)

        return call

    popen = subprocess.Popen.__init__

    def start_program(self: Any, args: Any, *rest: Any, **options: Any) -> None:
        if args[0] != "git":  # it says in milliseconds which commit this is
            pytest.skip("starts a process")
        popen(self, args, *rest, **options)

    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("quick"):
            patch.setattr(subprocess.Popen, "__init__", start_program)
            for owner, name, what, most in (
                (BaseProcess, "start", "starts a process", 0),
                (torch.Tensor, "backward", "trains", _BACKWARD_PASSES),
                (torch.nn.Module, "__init__", "builds large networks, or many", _MODULES),
                (Figure, "savefig", "draws many pictures", _PICTURES),
            ):
                patch.setattr(owner, name, limited(getattr(owner, name), what, most))
        yield done


@pytest.fixture(autouse=True)
def _drawn_alike() -> None:
    """A test draws the same weights and inputs in every run, alone or after others."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _count_anew(work_done: Counter[str]) -> None:
    """For every test; what it shares with others is made before and does not count."""
    work_done.clear()
