"""One watched forward pass over a user's model and batch, with their mistakes told in one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..errors import ConfigError, SkipinitError
from .untouched import untouched
from .watch import Sighting, Watcher

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
        raise ConfigError(f"the batch is {_describe(batch)}; it must be a tensor, or hold one")
    for value in inputs:
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise ConfigError(f"the batch {_describe(value)} holds NaN or infinity before the model saw it")
    watcher = Watcher(model, inputs, measure)
    with untouched(model), torch.set_grad_enabled(gradients):
        try:
            with watcher, GradientHooks(watcher) if gradients else nullcontext():
                output = model(*args, **kwargs)
        except SkipinitError:
            raise
        except Exception as error:
            message = " ".join(str(error).split()) or type(error).__name__
            given = ", ".join(_describe(value) for value in inputs)
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


def _describe(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    shape = "x".join(str(size) for size in value.shape)
    return f"{shape or 'scalar'} {str(value.dtype).removeprefix('torch.')}"
