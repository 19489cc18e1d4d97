"""What holds for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Numbers are compared to the bit, and two test processes share the cores: a sweep has one, here too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skipinit.sweeping.workers.usable_cores", lambda: 1)
        yield
    torch.set_num_threads(threads)
