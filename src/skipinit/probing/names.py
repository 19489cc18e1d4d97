"""Qualified names of a model's modules, put together when asked for: a deep network has thousands."""

from __future__ import annotations

from torch import nn


class ModuleNames:
    """The names that `named_modules` gives, as a tree: of each module only the one that holds it is kept."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._parents = {
            module: model.get_submodule(name.rpartition(".")[0])
            for name, module in model.named_modules()
            if module is not model
        }

    def __contains__(self, module: nn.Module) -> bool:
        return module is self._model or module in self._parents

    def of(self, module: nn.Module) -> str:
        """The path from the model to the module; empty for the model itself."""
        keys: list[str] = []
        while module is not self._model:
            parent = self._parents[module]
            found = (key for key, child in parent._modules.items() if child is module)
            keys.append(next(found, type(module).__name__))  # A forward may have put another in its place.
            module = parent
        return ".".join(reversed(keys))
