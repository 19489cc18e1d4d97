"""A model that is looked at comes out as it went in, also when looking fails."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import Tensor, nn


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Run the body with the model in training mode; then restore mode, buffers and random generators."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, dict(module._buffers), {n: b.clone() for n, b in module._buffers.items() if b is not None})
        for module in model.modules()
        if module._buffers
    ]
    with ExitStack() as stack:
        stack.enter_context(_same_randomness(model))
        stack.enter_context(_plain_execution())
        try:
            model.train()
            yield
        finally:
            for module, mode in modes:
                module.training = mode
            for module, tensors, copies in buffers:
                _restore_buffers(module, tensors, copies)


def _restore_buffers(module: nn.Module, tensors: dict[str, Tensor | None], copies: dict[str, Tensor]) -> None:
    """Put back the same tensor objects with the same contents, whether they were written or replaced."""
    for name in set(module._buffers.keys()) - tensors.keys():
        delattr(module, name)
    for name, tensor in tensors.items():
        if module._buffers[name] is not tensor:
            setattr(module, name, tensor)
    with torch.no_grad():
        for name, copy in copies.items():
            tensor = tensors[name]
            assert tensor is not None
            tensor.copy_(copy)


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
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast_path)
