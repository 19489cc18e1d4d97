"""The modules of a model during a pass: which one is running, and which parameters a storage holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from .tensors import local_part, overwritten_by, storage_of


class ModuleCall(NamedTuple):
    """A module that is running."""

    module: nn.Module
    name: str
    number: int


class Modules:
    """The modules of `model`. As a context manager it follows which one is running."""

    def __init__(self, model: nn.Module) -> None:
        self._names = {module: name for name, module in model.named_modules()}
        self._calls = [ModuleCall(model, "", 0)]
        self._count = 0
        self._owners: dict[Any, nn.Module] = {}
        self._kept: dict[nn.Parameter, Tensor] = {}
        self._is_sharded = any(local_part(parameter) is not parameter for parameter in model.parameters())
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                self._owners.setdefault(storage_of(parameter), module)

    def __enter__(self) -> Modules:
        self._thread = get_ident()
        # Two global hooks instead of two on each of thousands of modules.
        self._hooks = (
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
        )
        return self

    def __exit__(self, *exception: Any) -> None:
        for hook in self._hooks:
            hook.remove()

    @property
    def running(self) -> ModuleCall:
        """The innermost module that is running."""
        return self._calls[-1]

    def parameters_in(self, storage: Any) -> tuple[str, ...]:
        """The names of the parameters that are in a storage."""
        owner = self._owners.get(storage)
        if owner is None and self._is_sharded:  # A module that runs has copies, gathered for it alone.
            owner = self.running.module
        if owner is None:
            return ()
        named = owner.named_parameters(self._names[owner], recurse=False)
        return tuple(name for name, parameter in named if storage_of(parameter) is storage)

    def keep_parameters(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Copy the parameters that an operation is about to write into."""
        for tensor in overwritten_by(function, args, kwargs):
            storage = storage_of(tensor)
            owner = self._owners.get(storage)
            for parameter in () if owner is None else owner.parameters(recurse=False):
                if storage_of(parameter) is storage and parameter not in self._kept:
                    self._kept[parameter] = parameter.detach().clone()

    @contextmanager
    def parameters_restored(self) -> Iterator[None]:
        """Run the body, then write back what it changed."""
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, values in self._kept.items():
                    parameter.copy_(values)

    def _enter_module(self, module: nn.Module, _: Any) -> None:
        # A mode is one thread's; hooks also see the model's modules run in others.
        if module in self._names and get_ident() == self._thread:
            self._count += 1
            self._calls.append(ModuleCall(module, self._names[module], self._count))

    def _leave_module(self, module: nn.Module, *_: Any) -> None:
        # The call of the model itself began before a watch opened its trace.
        if module in self._names and len(self._calls) > 1 and get_ident() == self._thread:
            self._calls.pop()


def differentiates() -> bool:
    """Whether autograd runs: its operations mirror those of the forward, and sum the gradients of streams."""
    return torch._C._current_autograd_node() is not None
