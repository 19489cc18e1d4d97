"""Data sets as tensors on the device or as folders of photographs, and the preprocessing of their images.

The names below load their module, and with it torch, on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ..errors import need

if TYPE_CHECKING:
    from .catalog import DATA_SETS as DATA_SETS
    from .catalog import DataSet as DataSet
    from .catalog import describe as describe
    from .images import EpochPlan as EpochPlan
    from .images import ImageSet as ImageSet
    from .images import crop_flip as crop_flip
    from .images import epoch_plan as epoch_plan
    from .images import load as load
    from .images import standardize as standardize
    from .photographs import CentreCrop as CentreCrop
    from .photographs import ImageFolder as ImageFolder
    from .photographs import RandomCrop as RandomCrop
    from .photographs import folder_batches as folder_batches
    from .photographs import open_folder as open_folder

_HOME = {
    "CentreCrop": "photographs",
    "DATA_SETS": "catalog",
    "DataSet": "catalog",
    "EpochPlan": "images",
    "ImageFolder": "photographs",
    "ImageSet": "images",
    "RandomCrop": "photographs",
    "crop_flip": "images",
    "describe": "catalog",
    "epoch_plan": "images",
    "folder_batches": "photographs",
    "load": "images",
    "open_folder": "photographs",
    "standardize": "images",
}
# Written out for type checkers, which do not evaluate expressions.
__all__ = [
    "DATA_SETS",
    "CentreCrop",
    "DataSet",
    "EpochPlan",
    "ImageFolder",
    "ImageSet",
    "RandomCrop",
    "crop_flip",
    "describe",
    "epoch_plan",
    "folder_batches",
    "load",
    "open_folder",
    "standardize",
]


if not TYPE_CHECKING:  # with it, type checkers would accept every name

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        need("lab", f"{__name__}.{name}")
        return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(_HOME)
