"""Packages that tests need and an installation may lack."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest


def package(name: str, *attributes: str) -> Any:
    """The module of that name; skips the test file where it or what is needed of it cannot be imported."""
    try:
        module = import_module(name)
        for attribute in attributes:  # Some packages import the rest only when it is asked for.
            getattr(module, attribute)
        return module
    except Exception as error:  # Such as torchvision's own, where its build does not fit torch's.
        pytest.skip(f"{name} does not import: {error}", allow_module_level=True)
