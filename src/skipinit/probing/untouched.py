"""A model that is looked at comes out as it went in, also when looking fails."""

from __future__ import annotations

import random
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Run the body with the model in training mode; then restore mode, buffers and random generators."""
    resting = {module for module in model.modules() if not module.training}
    with ExitStack() as stack:
        stack.enter_context(_same_randomness(model))
        stack.enter_context(_plain_execution())
        stack.enter_context(_same_buffers(model))
        try:
            model.train()
            yield
        finally:
            for module in model.modules():
                module.training = module not in resting


@contextmanager
def _same_buffers(model: nn.Module) -> Iterator[None]:
    """Put back the same tensor objects with the same contents, whether they were written or replaced."""
    homes = [module for module in model.modules() if module._buffers]
    names = [name for module in homes for name in module._buffers]
    tensors = [tensor for module in homes for tensor in module._buffers.values()]
    counts = [len(module._buffers) for module in homes]
    copies = _room_for(tensors)
    for tensor, copy in _pairs(tensors, copies):
        copy.copy_(tensor)
    try:
        yield
    finally:
        buffers = zip(names, tensors, strict=True)
        for module, count in zip(homes, counts, strict=True):
            _put_back(module, dict(islice(buffers, count)))
        for tensor, copy in _pairs(tensors, copies):
            tensor.copy_(copy)


def _put_back(module: nn.Module, buffers: dict[str, Tensor | None]) -> None:
    for name in set(module._buffers) - buffers.keys():
        delattr(module, name)
    for name, tensor in buffers.items():
        if module._buffers[name] is not tensor:
            setattr(module, name, tensor)


_Kind = tuple[torch.device, torch.dtype]


def _room_for(tensors: Iterable[Tensor | None]) -> dict[_Kind, Tensor]:
    """One piece of memory for all of a kind: thousands of buffers have a few numbers each."""
    sizes: Counter[_Kind] = Counter()
    for tensor in tensors:
        if tensor is not None:
            sizes[tensor.device, tensor.dtype] += tensor.numel()
    return {kind: torch.empty(size, device=kind[0], dtype=kind[1]) for kind, size in sizes.items()}


def _pairs(tensors: Iterable[Tensor | None], room: dict[_Kind, Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Each tensor with its place in the room."""
    used: Counter[_Kind] = Counter()
    for tensor in tensors:
        if tensor is not None:
            kind, size = (tensor.device, tensor.dtype), tensor.numel()
            yield tensor.detach(), room[kind][used[kind] : used[kind] + size].view(tensor.shape)
            used[kind] += size


@contextmanager
def _same_randomness(model: nn.Module) -> Iterator[None]:
    """Leave every global generator as it was; dropout draws what the next forward would have drawn."""
    devices = {t.device for t in (*model.parameters(), *model.buffers()) if t.device.type == "cuda"}
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[device.index for device in devices]):
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)


@contextmanager
def _plain_execution() -> Iterator[None]:
    """Fused attention layers and compiled modules hide their additions: run them operation by operation."""
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules:  # Nothing is compiled otherwise, and importing it takes a second.
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            # It warns that hooks see a compiled module and the one in it: two names for one call, no harm.
            stack.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", "Using `torch.compile")
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast_path)
