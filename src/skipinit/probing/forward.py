"""A user's model and batch: load it, run it once under a trace, leave it as it was, say mistakes in one
line.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..errors import ConfigError, SkipinitError
from .trace import Sighting, Watcher


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


def load_model(path: str) -> nn.Module:
    """Import the module and call the factory without arguments: this runs the user's code."""
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise ConfigError(f"{path!r} is not a path of the form package.module:factory")
    if "" not in sys.path:
        sys.path.insert(0, "")  # An installed command does not look into the current folder by itself.
    try:
        found = import_module(module_name)
    except Exception as error:
        raise ConfigError(f"module {module_name!r} does not import: {_line(error)}") from error
    factory = getattr(found, attribute, None)
    if factory is None:
        raise ConfigError(f"module {module_name!r} has no {attribute!r}")
    if isinstance(factory, nn.Module):
        return factory
    if not callable(factory):
        raise ConfigError(f"{path} is a {type(factory).__name__}; it must be a function that returns a model")
    try:
        model = factory()
    except Exception as error:
        raise ConfigError(f"{path}() failed: {_line(error)}; it is called without arguments") from error
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{path}() returned a {type(model).__name__}; it must return a torch.nn.Module")
    return model


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


Batch = Tensor | tuple[Any, ...] | list[Any] | Mapping[str, Any]


@contextmanager
def watched(
    model: nn.Module, batch: Batch, measure: bool, gradients: bool = False
) -> Iterator[tuple[Watcher, Any]]:
    """Run the model once, in training mode; the body gets what was seen and the model's output.

    The model is as it was when the body ends. With `gradients`, autograd is on, and the sightings get their
    gradient norms as the body goes backward.
    """
    args, kwargs = _arguments(batch)
    inputs = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    if not inputs:
        raise ConfigError(f"the batch is {_shape_text(batch)}; it must be a tensor, or hold one")
    for value in inputs:
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise ConfigError(f"the batch {_shape_text(value)} holds NaN or infinity before the model saw it")
    watcher = Watcher(model, inputs, measure)
    with untouched(model), torch.set_grad_enabled(gradients):
        try:
            with watcher, GradientHooks(watcher) if gradients else nullcontext():
                output = model(*args, **kwargs)
        except SkipinitError:
            raise
        except Exception as error:
            message = " ".join(str(error).split()) or type(error).__name__
            given = ", ".join(_shape_text(value) for value in inputs)
            raise ConfigError(f"{type(model).__name__} cannot take the batch {given}: {message}") from error
        yield watcher, output


class GradientHooks(TorchFunctionMode):
    """Hangs a hook on the result of each residual add that keeps the norm of its gradient.

    The dispatch mode works below autograd, where results have no history yet; here they have.
    """

    def __init__(self, watcher: Watcher) -> None:
        super().__init__()
        self.watcher = watcher

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the function; if that was a residual add, hook its result."""
        seen = len(self.watcher.sightings)
        result = function(*args, **(kwargs or {}))
        if len(self.watcher.sightings) > seen and isinstance(result, Tensor) and result.requires_grad:
            result.register_hook(partial(_keep_norm, self.watcher.sightings[-1]))
        return result


def _keep_norm(sighting: Sighting, gradient: Tensor) -> None:
    sighting.gradient_norm = gradient.detach().to(torch.float64).norm()


def _arguments(batch: Batch) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments; tensors are copied, since models may write into their input."""
    if isinstance(batch, Mapping):
        return (), {name: _copy(value) for name, value in batch.items()}
    values = batch if isinstance(batch, (tuple, list)) else (batch,)
    return tuple(_copy(value) for value in values), {}


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _shape_text(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    shape = "x".join(str(size) for size in value.shape)
    return f"{shape or 'scalar'} {str(value.dtype).removeprefix('torch.')}"
