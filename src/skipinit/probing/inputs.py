"""The `inputs` that a user gives to `probe`, `find_residual_adds` and `convert`, as arguments of a model."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from .tensors import contents

Inputs = Tensor | torch.Size | tuple[Any, ...] | list[Any] | Mapping[str, Any]
"""The inputs of a model: a tensor, a tuple or list of arguments or a batch of a data loader, a mapping of
keyword arguments, or the shape of a tensor. A shape stands for standard Gaussian values."""
_NO_DATA = (nn.Module, type, FunctionType, MethodType, ModuleType)
"""Objects whose attributes are no arguments of a model."""


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


def tensors_given(arguments: Any) -> list[Tensor]:
    """All tensors in arguments of a model, also in the attributes of an object, such as a batch of graphs."""
    found, seen, waiting = list[Tensor](), set[int](), [arguments]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Tensor):
            found.append(value)
        elif id(value) not in seen:
            seen.add(id(value))
            plain = hasattr(value, "__dict__") and not isinstance(value, _NO_DATA)
            waiting += reversed(contents(value) or (list(vars(value).values()) if plain else ()))
    return found


def describe(*tensors: Tensor) -> str:
    """Their shapes and types, such as 8x3x32x32 float32."""
    shapes = ("x".join(str(size) for size in tensor.shape) or "scalar" for tensor in tensors)
    kinds = (str(tensor.dtype).removeprefix("torch.") for tensor in tensors)
    return ", ".join(map(" ".join, zip(shapes, kinds, strict=True)))
