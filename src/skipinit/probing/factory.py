"""A user's own model by the path `package.module:factory`."""

from __future__ import annotations

import sys
from importlib import import_module

from torch import nn

from ..errors import ConfigError


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
