"""The user's own models, given as package.module:factory. Torch is imported only when one is loaded."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from ..errors import ConfigError, one_line

if TYPE_CHECKING:
    from torch import nn


_NAMED = 8
"""How many names of a module an error lists."""


def is_own(name: str) -> bool:
    """Whether a name is the path of a factory; names of the paper's networks have no colon."""
    return ":" in name


def name_factory(factory: Callable[[], nn.Module]) -> str:
    """The path package.module:factory, by which another process or a later run finds the factory."""
    name = getattr(factory, "__qualname__", "")
    home = sys.modules.get(getattr(factory, "__module__", None) or "")
    if home is None or home.__name__ == "__main__" or getattr(home, name, None) is not factory:
        what = name or f"a {type(factory).__name__}"
        raise ConfigError(
            f"model {what}: runs are resumed and sent to workers by name, and this has none; put a function "
            "that returns the model into a module, such as mymodels.py, and import it from there"
        )
    return f"{home.__name__}:{name}"


def load_model(path: str) -> nn.Module:
    """The model at package.module:factory; an `nn.Module` there is the model itself."""
    from torch import nn

    found = _find(path)
    return found if isinstance(found, nn.Module) else load_factory(path)()


def load_factory(path: str) -> Callable[[], nn.Module]:
    """Import package.module, which runs the user's code, and return a function that makes a new model."""
    from torch import nn

    factory = _find(path)
    if isinstance(factory, nn.Module) or not callable(factory):
        raise ConfigError(f"{path} is a {type(factory).__name__}; it must be a function that returns a model")

    def make() -> nn.Module:
        try:
            model = factory()
        except Exception as error:
            reason = f"{type(error).__name__}: {one_line(error)}"
            raise ConfigError(f"{path}() failed: {reason}; it is called without arguments") from error
        if not isinstance(model, nn.Module):
            raise ConfigError(f"{path}() returned a {type(model).__name__}; it must return a torch.nn.Module")
        return model

    return make


def _find(path: str) -> object:
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute or "/" in module_name or module_name.endswith(".py"):
        dotted = module_name.strip("./").removesuffix(".py").replace("/", ".")
        hint = f"; did you mean {dotted}:{attribute}?" if dotted and attribute else ""
        raise ConfigError(f"{path!r} is not a path of the form package.module:factory{hint}")
    if "" not in sys.path:
        sys.path.insert(0, "")  # A console script does not search the current folder.
    try:
        found = import_module(module_name)
    except Exception as error:
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise ConfigError(f"module {module_name!r} does not import: {reason}") from error
    if getattr(found, attribute, None) is None:
        named = (name for name, value in vars(found).items() if _defined_in(found, value))
        there = [name for name in named if not name.startswith("_")]
        hint = f"; it defines {', '.join(there[:_NAMED])}" if there else ""
        raise ConfigError(f"module {module_name!r} has no {attribute!r}{hint}")
    return getattr(found, attribute)


def _defined_in(module: ModuleType, value: object) -> bool:
    return getattr(value, "__module__", None) == module.__name__
