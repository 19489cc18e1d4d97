"""The processes that train one run together: one, or as many as torchrun started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import ConfigError


@dataclass(frozen=True)
class World:
    """Which of how many processes this is, and the device it computes on."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def share(self, batch: Tensor) -> Tensor:
        """This process's contiguous part of a global batch."""
        return batch.tensor_split(self.size)[self.rank] if self.size > 1 else batch

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def any(self, flag: bool) -> bool:
        """Whether the flag is up in any process."""
        return flag if self.size == 1 else bool(self.sum(torch.tensor(int(flag), device=self.device)))

    def wait(self) -> None:
        """Until every process is here."""
        if self.size > 1:
            dist.barrier()


def find_device(name: str) -> torch.device:
    """A device by name; `auto` is a GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device {name!r} is not known; it is auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device {name!r} is not supported; it is auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device {name!r} is not there; this machine has {torch.cuda.device_count()} GPUs")
    return device


@contextmanager
def open_world(device_name: str) -> Iterator[World]:
    """Join the processes torchrun started (RANK, WORLD_SIZE, LOCAL_RANK), or be alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    device = find_device(device_name)
    if size == 1:
        # Streams and graphs are made on the current device, which need not be the one asked for.
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            yield World(device)
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield World(device, dist.get_rank(), size)
    finally:
        dist.destroy_process_group()
