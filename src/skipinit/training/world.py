"""The processes that train one run together: one, or as many as torchrun started."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import ConfigError
from ..notation import count_text


@dataclass(frozen=True)
class World:
    """Which of how many processes this is, and the device it computes on."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def device_name(self) -> str:
        """The name of the GPU, or `cpu` with the number of threads if that is not 1."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        return "cpu" if cpu_threads() == 1 else f"cpu, {cpu_threads()} threads"

    @property
    def leads(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    @property
    def memory_format(self) -> torch.memory_format:
        """Of weights and images: channels last for a GPU's tensor cores, contiguous on the CPU.

        torch 2.13 corrupts the heap on CPUs without AVX-512, in the backward pass of a 1x1 convolution of
        stride 2, if weights or images are channels last and the images have fewer than 8 channels.
        """
        return torch.channels_last if self.device.type == "cuda" else torch.contiguous_format

    def lay_out(self, images: Tensor) -> Tensor:
        """Images in the memory format of the device."""
        if self.device.type == "cuda":
            return images.contiguous(memory_format=self.memory_format)
        return contiguous(images)

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
        """Wait until every process has called it."""
        if self.size > 1:
            dist.barrier()


def contiguous(images: Tensor) -> Tensor:
    """Images with the strides of a new tensor of their shape.

    It compares strides: torch also calls images of one channel contiguous if they are channels last.
    """
    plain = torch.empty(images.shape, device="meta").stride()
    return images if images.stride() == plain else images.clone(memory_format=torch.contiguous_format)


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
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise ConfigError(f"device {name!r} is not there; this machine has {count_text(count, 'GPU')}")
    return device


def cpu_threads() -> int:
    """Threads of a training on the CPU: one, or as many as OMP_NUM_THREADS says.

    The number of threads changes how sums are rounded, so it must not depend on the machine or its load.
    Threads also spin while they wait for each other: if another process uses one of their cores, two are
    slower than one (`benchmarks/cores.py`).
    """
    given = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, int(given)) if given.isdecimal() else 1


@contextmanager
def open_device(device: torch.device) -> Iterator[World]:
    """A world of one process: a GPU becomes the current device, the CPU gets `cpu_threads`."""
    if device.type == "cuda":
        # Streams and graphs are created on the current device.
        with torch.cuda.device(device):
            yield World(device)
        return
    before = torch.get_num_threads()
    torch.set_num_threads(cpu_threads())
    try:
        yield World(device)
    finally:
        torch.set_num_threads(before)


@contextmanager
def open_world(device_name: str) -> Iterator[World]:
    """A world of the processes that torchrun started (RANK, WORLD_SIZE, LOCAL_RANK), or of one process."""
    device = find_device(device_name)
    size = _count_processes(device)
    if size == 1:
        with open_device(device) as world:
            yield world
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield World(device, dist.get_rank(), size)
    except BaseException:
        dist.destroy_process_group()  # at once: where a process was lost, torchrun ends the others
        raise
    leave_group()


def _count_processes(device: torch.device) -> int:
    """The number of processes that torchrun started; its variables must be complete."""
    given = os.environ.get("WORLD_SIZE") or "1"
    size = int(given) if given.isdecimal() else 0
    needed = ["RANK", "MASTER_ADDR", "MASTER_PORT", *(["LOCAL_RANK"] if device.type == "cuda" else [])]
    missing = [name for name in needed if not os.environ.get(name)]
    if size < 1 or (size > 1 and missing):
        lacks = f"there is no {missing[0]}" if size else "that is no number of processes"
        raise ConfigError(f"WORLD_SIZE is {given!r}, but {lacks}; start with torchrun, or unset WORLD_SIZE")
    return size


def leave_group() -> None:
    """Destroy the process group without a deadlock.

    Gloo's thread needs Python's lock to drop the last reduction, and `destroy_process_group` holds that lock
    while it waits for the thread. Right after a reduction it would hang for ever.
    """
    time.sleep(0.1)
    dist.destroy_process_group()
