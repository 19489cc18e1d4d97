"""Packages that tests need and an installation may lack."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest


def package(name: str) -> Any:
    """The module of that name; skips the test file where it is missing or cannot be imported."""
    try:
        return import_module(name)
    except Exception as error:  # Such as torchvision's own, where its build does not fit torch's.
        pytest.skip(f"{name} does not import: {error}", allow_module_level=True)
