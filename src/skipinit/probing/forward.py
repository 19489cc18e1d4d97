"""Run a user's model once under a trace, and restore its state.

This module also turns `inputs` into arguments, for `probe`, `find_residual_adds` and `convert`.
"""

from __future__ import annotations

import copy
import inspect
import random
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from .tensors import describe, local_part, norm_of, tensors_given, tensors_in, values_of
from .trace import Tracer

if TYPE_CHECKING:
    from .measure import StatisticsBuffer

Inputs = Tensor | torch.Size | tuple[Any, ...] | list[Any] | Mapping[str, Any]
"""The inputs of a model: a tensor, a tuple or list of arguments or a batch of a data loader, a mapping of
keyword arguments, or the shape of a tensor. A shape stands for standard Gaussian values."""
Mode = Literal["training", "whole", "evaluation"]
"""How a model runs under a trace: as in training; as in training but without LayerDrop; as in evaluation."""


def example_inputs(model: nn.Module, inputs: Inputs) -> Inputs:
    """`inputs`, with a shape replaced by Gaussian values of the parameters' dtype and device."""
    numbers = isinstance(inputs, (tuple, list)) and all(type(size) is int for size in inputs)
    if not isinstance(inputs, torch.Size) and not (numbers and inputs):
        return inputs
    sizes = [int(size) for size in inputs]
    if not sizes or min(sizes) < 1:
        raise ConfigError(f"inputs {tuple(sizes)} is not the shape of a batch; its sizes must be 1 or more")
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(()))
    # Drawn on the CPU whatever the default device is: the same values everywhere.
    generator = torch.Generator("cpu").manual_seed(0)
    values: Tensor = torch.randn(sizes, generator=generator, device="cpu").to(like)
    return values


def arguments_of(model: nn.Module, inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Copies of the positional and keyword arguments that `inputs` stands for."""
    inputs = example_inputs(model, inputs)
    if isinstance(inputs, Mapping):
        return copy_arguments((), inputs)
    return copy_arguments(_positional(model, inputs), {})


def copy_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same arguments with copies of their tensors, since models may write into their input.

    A tensor that is given twice is copied once. It need not be a leaf of a graph, as `deepcopy` wants it.
    """
    values = (*args, *kwargs.values())
    copies: dict[int, Any] = {id(tensor): tensor.detach().clone() for tensor in tensors_given(values)}
    copied = [copy.deepcopy(value, copies) if tensors_given(value) else value for value in values]
    return tuple(copied[: len(args)]), dict(zip(kwargs, copied[len(args) :], strict=True))


def _positional(model: nn.Module, inputs: Any) -> Sequence[Any]:
    """A tuple or list is the arguments. If forward cannot take so many, or if the second is one whole number
    for each example and forward need not have it, it is a data loader's batch: the first entry is the input,
    the second labels. If forward says that it takes a list, a list is that."""
    if not isinstance(inputs, (tuple, list)):
        return (inputs,)
    try:
        signature = inspect.signature(model.forward)
    except (TypeError, ValueError):
        return inputs
    first, second, *_ = (*signature.parameters.values(), None, None)
    wanted = "" if first is None else str(first.annotation)
    if isinstance(inputs, list) and "list[" in wanted.lower() and all(isinstance(i, Tensor) for i in inputs):
        return (inputs,)
    try:
        signature.bind(*inputs)
    except TypeError:
        return inputs[:1]
    optional = second is not None and second.default is not second.empty
    return inputs[:1] if optional and _is_labelled(inputs) else inputs


def _is_labelled(batch: Sequence[Any]) -> bool:
    """Whether this is a pair of examples and one whole number for each, as data loaders give them."""
    if len(batch) != 2 or not all(isinstance(entry, Tensor) for entry in batch):
        return False
    examples, labels = batch
    whole = not (labels.is_floating_point() or labels.is_complex() or labels.dtype is torch.bool)
    return bool(whole and examples.dim() > 1 and labels.shape == examples.shape[:1])


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
