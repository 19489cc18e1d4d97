"""The processes that train one run together: one, or as many as torchrun started.

Each process computes its part of every batch. They add up losses, gradients and batch statistics, so that the
outputs and running averages of batch norm are those of one process.
"""

from __future__ import annotations

import functools
import itertools
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from ..errors import ConfigError
from ..nets.merges import GhostBatchNorm2d
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
    except (RuntimeError, TypeError):
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
def torch_as_new() -> Iterator[None]:
    """Inside, tensors are float32, on the CPU and with gradients by default, whatever the caller has set."""
    dtype, on_cpu = torch.get_default_dtype(), torch.get_default_device().type == "cpu"
    torch.set_default_dtype(torch.float32)
    try:
        with torch.inference_mode(False), nullcontext() if on_cpu else torch.device("cpu"):
            yield
    finally:
        if dtype != torch.float32:  # of all threads: another one may have set it back meanwhile
            torch.set_default_dtype(dtype)


@contextmanager
def open_device(device: torch.device) -> Iterator[World]:
    """A world of one process: a GPU becomes the current device, the CPU gets `cpu_threads`."""
    before = torch.get_num_threads()
    # Streams and graphs are created on the current device.
    with torch_as_new(), torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        if device.type == "cpu":
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
    if size > 1 and device.type == "cuda":
        device = find_device(f"cuda:{os.environ['LOCAL_RANK']}")
    with open_device(device) as alone:
        if size == 1:
            yield alone
            return
        _join_group("nccl" if device.type == "cuda" else "gloo")
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


def _join_group(backend: str) -> None:
    """Meet the other processes, for a run that may not be the first that they train.

    Each group has keys of its own: under those of an earlier group, a process that is ahead would find the
    addresses at which the others were, and hang.
    """
    store, rank, size = _meeting_place()
    store = dist.PrefixStore(f"run {next(_runs)}", store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)


@functools.cache
def _meeting_place() -> tuple[Any, int, int]:
    """The store that all processes reach, the rank of this one, and their number.

    Kept until the process ends: without torchrun the first process is its server, and another may meet there
    for the next run already.
    """
    found: tuple[Any, int, int] = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
    return found


_runs = itertools.count()
"""The groups that this process has joined. All processes train the same runs in the same order."""


def leave_group() -> None:
    """Destroy the process group without a deadlock.

    Gloo's thread needs Python's lock to drop the last reduction, and `destroy_process_group` holds that lock
    while it waits for the thread. Right after a reduction it would hang for ever.
    """
    time.sleep(0.1)
    dist.destroy_process_group()


def share_gradients(model: nn.Module) -> nn.Module:
    """The network, which averages its gradients, but not its running statistics, over all processes."""
    # It is about 1x1 kernels, where strides do not matter; each process would print five lines.
    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides", UserWarning)
    with warnings.catch_warnings():
        # The new name does not exist in torch 2.11.
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        return DistributedDataParallel(model, broadcast_buffers=False)


def ghost_of(norm: _BatchNorm) -> int | None:
    """Examples per group of batch statistics; None means the whole batch, as in torch's batch norm."""
    return norm.ghost_batch if isinstance(norm, GhostBatchNorm2d) else None


def by_batch_at_test(norm: _BatchNorm) -> bool:
    """Whether a test batch is normalized by its own statistics: by choice, or without running averages."""
    return norm.running_mean is None or getattr(norm, "batch_statistics_at_test", False)


def share_statistics(model: nn.Module, world: World) -> None:
    """Make batch norms use the statistics of the batch of all processes together, also of a test batch.

    torch's SyncBatchNorm works on GPUs only, and averages the unbiased variance.
    """
    # Not compiled: a graph break, because it waits for the other processes.
    eagerly = torch.compiler.disable(_normalize_together)
    for norm in model.modules():
        if isinstance(norm, _BatchNorm) and (ghost_of(norm) is None or by_batch_at_test(norm)):
            norm.forward = functools.partial(eagerly, norm, world)  # type: ignore[method-assign]


def _normalize_together(norm: _BatchNorm, world: World, x: Tensor) -> Tensor:
    """The forward pass of a batch norm whose batch is distributed over the processes."""
    joined = ghost_of(norm) is None if norm.training else by_batch_at_test(norm)
    if not joined:
        out: Tensor = type(norm).forward(norm, x)
        return out
    norm._check_input_dim(x)
    values = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    here = values.numel() // values.shape[1]
    # Parts of a batch are equal in training; those of a test batch may differ by an example.
    count = here * world.size if norm.training else int(world.sum(torch.tensor(here, device=x.device)))
    along_channels = (-1, *[1] * (values.dim() - 2))
    others = (0, *range(2, values.dim()))
    mean: Tensor = _Sum.apply(values.sum(others)) / count  # type: ignore[no-untyped-call]
    centred = values - mean.view(along_channels)
    variance: Tensor = _Sum.apply(centred.square().sum(others)) / count  # type: ignore[no-untyped-call]
    out = centred * (variance + norm.eps).rsqrt().view(along_channels)
    if norm.affine:
        out = out * norm.weight.view(along_channels) + norm.bias.view(along_channels)
    if norm.training and norm.running_mean is not None:
        _average(norm, mean, variance, count)
    return out.to(x.dtype)


@torch.no_grad()
def _average(norm: _BatchNorm, mean: Tensor, variance: Tensor, count: int) -> None:
    """r <- (1 - m) r + m s, with the variance of our batch norm (biased) or of torch's (unbiased)."""
    running_mean, running_var = _averages(norm)
    momentum = norm.momentum
    if not isinstance(norm, GhostBatchNorm2d):
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked += 1
        momentum = 1 / float(norm.num_batches_tracked) if momentum is None else momentum
        variance = variance * (count / (count - 1))
    assert momentum is not None
    running_mean.lerp_(mean, momentum)
    running_var.lerp_(variance, momentum)


class _Sum(torch.autograd.Function):
    """The sum over all processes. Each summand is in the losses of all, so its gradient is a sum as well."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        total = part.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _Sum.forward(ctx, gradient)


class RunningStatistics:
    """The running averages of ghost batches as one vector. Does nothing without ghosts or in one process."""

    def __init__(self, model: nn.Module, world: World, batch_size: int) -> None:
        self.world = world
        norms = [norm for norm in model.modules() if isinstance(norm, GhostBatchNorm2d) and norm.ghost_batch]
        self.active = bool(norms) and world.size > 1
        if not self.active:
            return
        self.averages = [average for norm in norms for average in _averages(norm)]

        def left_by(processes: int) -> Tensor:
            """By entry of the vector: what the ghosts of so many processes leave of an older value."""
            parts = []
            for norm in norms:
                assert norm.momentum is not None
                assert norm.ghost_batch is not None
                ghosts = processes * (batch_size // world.size // norm.ghost_batch)
                left = (1 - norm.momentum) ** ghosts
                parts += [torch.full_like(average, left) for average in _averages(norm)]
            return torch.cat(parts)

        self.left_by_one, self.left_by_all = left_by(1), left_by(world.size)
        self.left_by_later = left_by(world.size - 1 - world.rank)

    def remember(self) -> Tensor | None:
        """The averages before a step."""
        return self._flat() if self.active else None

    @torch.no_grad()
    def join(self, before: Tensor | None) -> None:
        """Set the averages to those of one process that started at `before` and saw all ghosts in turn."""
        if before is None:
            return
        own = self._flat() - self.left_by_one * before
        joined = self.world.sum(own * self.left_by_later)
        joined += self.left_by_all * before
        for average, value in zip(
            self.averages, joined.split([a.numel() for a in self.averages]), strict=True
        ):
            average.copy_(value)

    def _flat(self) -> Tensor:
        return torch.cat(self.averages)


def _averages(norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return norm.running_mean, norm.running_var
