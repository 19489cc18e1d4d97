"""Run a user's model once under a trace, and restore its state."""

from __future__ import annotations

import copy
import random
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.jit import ScriptModule
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from ..errors import ConfigError, SkipinitError, one_line
from .inputs import Inputs, arguments_of, describe, tensors_given
from .tensors import local_part, norm_of, tensors_in, values_of
from .trace import Tracer

if TYPE_CHECKING:
    from .measure import StatisticsBuffer

Mode = Literal["training", "whole", "evaluation"]
"""How a model runs under a trace: as in training; as in training but without LayerDrop; as in evaluation."""


def copy_model(model: nn.Module) -> nn.Module:
    """A deep copy. A model may hold activations of its last forward, which `deepcopy` alone refuses."""
    held = (tensor for module in model.modules() for tensor in tensors_in(vars(module)))
    copies: dict[int, Any] = {id(tensor): tensor.detach().clone() for tensor in held if not tensor.is_leaf}
    try:
        return copy.deepcopy(model, copies)
    except Exception as error:
        reason = f"{type(model).__name__} cannot be copied ({one_line(error)}); make a fresh one"
        raise SkipinitError(reason) from error


@contextmanager
def traced(
    model: nn.Module,
    inputs: Inputs,
    mode: Mode,
    statistics: StatisticsBuffer | None = None,
    gradients: bool = False,
    around: Callable[[Tracer], AbstractContextManager[Any]] | None = None,
) -> Iterator[tuple[Tracer, Any]]:
    """Run the model once, in the context `around`; yields the trace and the model's output.

    When the body ends, the state of the model is restored. With `statistics`, the operands of residual adds
    are measured. With `gradients`, autograd is on, and a backward pass in the body gives the residual adds
    their gradient norms. Autograd is also on for a model that needs it, as to differentiate an energy.
    """
    check_model(model)
    if statistics is not None:
        check_values(model)
    around = around or (GradientHooks if gradients else nullcontext)
    run = partial(_run, model, inputs, mode, statistics, around)
    with ExitStack() as stack:
        try:
            found = stack.enter_context(run(gradients))
        except ConfigError as error:
            if gradients or type(error.__cause__) is not RuntimeError:
                raise
            try:
                found = stack.enter_context(run(True))
            except SkipinitError:
                raise error from error.__cause__
        yield found


@contextmanager
def _run(
    model: nn.Module,
    inputs: Inputs,
    mode: Mode,
    statistics: StatisticsBuffer | None,
    around: Callable[[Tracer], AbstractContextManager[Any]],
    gradients: bool,
) -> Iterator[tuple[Tracer, Any]]:
    with torch.inference_mode(False):
        args, kwargs = arguments_of(model, inputs)
    tensors = tensors_given((args, kwargs))
    if not tensors:
        raise ConfigError(
            f"inputs is a {type(inputs).__name__} without a tensor; give a tensor, a tuple of arguments, "
            "a dictionary of keyword arguments, or a shape such as (8, 3, 224, 224)"
        )
    if statistics is not None and not any(tensor.numel() for tensor in tensors):
        raise ConfigError(f"the batch is empty: {describe(*tensors)}; there is nothing to measure")
    for tensor in map(values_of, tensors):
        plain = tensor.is_floating_point() and tensor.layout is torch.strided and not tensor.is_meta
        if plain and not bool(tensor.isfinite().all()):
            raise ConfigError(f"the input {describe(tensor)} holds NaN or infinity before the model runs")
    tracer = Tracer(model, tensors, statistics)
    kept = tracer.modules.parameters_restored()
    # In inference mode torch dispatches whole layers, whose operations the tracer would not see.
    with torch.inference_mode(False), preserve_state(model, mode), torch.set_grad_enabled(gradients), kept:
        try:
            with tracer, around(tracer):
                output = model(*args, **kwargs)
        except SkipinitError:
            raise
        except Exception as error:
            reason = f"cannot take the inputs {describe(*tensors)}: {one_line(error)}"
            raise ConfigError(f"{type(model).__name__} {reason}") from error
        yield tracer, output


def check_model(model: object) -> None:
    """Raise if this is not a module in Python with all of its weights."""
    name = type(model).__name__
    if not isinstance(model, nn.Module):
        raise ConfigError(f"the model must be a torch.nn.Module; a {name} was given")
    for path, module in model.named_modules():
        if isinstance(module, ScriptModule):
            part = path or "the model itself"
            raise ConfigError(f"{name}: {part} is scripted, which hides its layers; give the Python module")
    for path, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise ConfigError(f"{name}: {path} has no size yet; call the model once on a batch first")


def check_values(model: nn.Module) -> None:
    """Raise if a weight is on the meta device."""
    for path, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise ConfigError(
                f"{type(model).__name__}: {path} is on the meta device and has no values; "
                "load the weights first (model.to_empty, load_state_dict)"
            )


class GradientHooks(TorchFunctionMode):
    """Keeps the norm of the gradient of each residual add, by a hook on its result.

    A dispatch mode works below autograd, where results have no history yet; at this level they have one.
    """

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the function; if that was a residual add, hook its result."""
        before = len(self.tracer.adds)
        result = function(*args, **(kwargs or {}))
        if len(self.tracer.adds) > before and isinstance(result, Tensor) and result.requires_grad:
            add = self.tracer.adds[-1]
            result.register_hook(lambda gradient: setattr(add, "gradient_norm", norm_of(gradient)))
        return result


_preserving = ContextVar("preserving", default=False)


def state_is_preserved() -> bool:
    """Whether the passes that run now leave no trace in the model: they are no part of its training."""
    return _preserving.get()


@contextmanager
def preserve_state(model: nn.Module, mode: Mode = "training") -> Iterator[None]:
    """Run the body with the model in that mode; then restore mode, buffers and random generators."""
    in_evaluation = {module for module in model.modules() if not module.training}
    with preserve_generators(), _eager_execution(), _preserve_buffers(model):
        outside = _preserving.set(True)
        try:
            model.train(mode != "evaluation")
            if mode == "whole":
                # LayerDrop is decided by the module around the layers; layers themselves stay in training.
                for module in model.modules():
                    if any(next(child.parameters(), None) is not None for child in module.children()):
                        module.training = False
            yield
        finally:
            _preserving.reset(outside)
            for module in model.modules():
                module.training = module not in in_evaluation


@contextmanager
def preserve_generators() -> Iterator[None]:
    """Restore every global generator. Dropout draws what the next forward would have drawn."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Run the body with every global generator at that seed, then restore them; None: leave them alone."""
    if seed is None:
        yield
        return
    with preserve_generators():
        torch.default_generator.manual_seed(seed)
        for generator in torch.cuda.default_generators:  # None are there until a GPU is used.
            generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        yield


@contextmanager
def _eager_execution() -> Iterator[None]:
    """Run fused attention layers and compiled modules operation by operation; they hide their additions.

    Autocast neither uses casts of weights that it made before, which have no history in this pass and may be
    out of date, nor keeps those that it makes now.
    """
    fast_path, cache = torch.backends.mha.get_fastpath_enabled(), torch.is_autocast_cache_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    torch.set_autocast_cache_enabled(False)
    with ExitStack() as stack:
        if {"torch._dynamo", "torch.nn.attention.flex_attention"} & sys.modules.keys():  # Else none compiles.
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            # Ignore its warning that hooks see both a compiled module and the module in it.
            stack.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", "Using `torch.compile")
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast_path)
            torch.set_autocast_cache_enabled(cache)


@contextmanager
def _preserve_buffers(model: nn.Module) -> Iterator[None]:
    """Restore the same tensor objects with the same contents, whether they were written or replaced."""
    saved = [(module, dict(module._buffers)) for module in model.modules() if module._buffers]
    tensors = [
        local_part(buffer) for _, buffers in saved for buffer in buffers.values() if buffer is not None
    ]
    if any(tensor.is_inference() for tensor in tensors):
        reason = "was made under torch.inference_mode, so its buffers cannot be written"
        raise ConfigError(f"{type(model).__name__} {reason}; give a copy.deepcopy of it, made outside")
    sparse = [(tensor, tensor.detach().clone()) for tensor in tensors if tensor.layout is not torch.strided]
    groups: defaultdict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        if tensor.layout is torch.strided and not _is_expanded(tensor):
            groups[tensor.device, tensor.dtype].append(tensor)
    # One copy per device and dtype: thousands of small tensors need more memory than their contents.
    copies = [torch.cat([tensor.detach().flatten() for tensor in group]) for group in groups.values()]
    shapes = [[tensor.shape for tensor in group] for group in groups.values()]
    try:
        yield
    finally:
        for module, buffers in saved:
            module._buffers.clear()
            module._buffers.update(buffers)
        with torch.no_grad():  # A detached tensor cannot be resized, and a sparse one gets the values alone.
            for group, copy, sizes in zip(groups.values(), copies, shapes, strict=True):
                parts = copy.split([shape.numel() for shape in sizes])
                for tensor, shape, values in zip(group, sizes, parts, strict=True):
                    if tensor.shape != shape:  # The observers of a quantization start without elements.
                        tensor.resize_(shape)
                    tensor.copy_(values.view(shape))
            for tensor, values in sparse:
                tensor.copy_(values)


def _is_expanded(tensor: Tensor) -> bool:
    """Whether several elements are one in memory, so that nothing can write into the tensor in place."""
    return any(size > 1 and step == 0 for size, step in zip(tensor.shape, tensor.stride(), strict=True))
