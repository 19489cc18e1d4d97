"""Data sets as tensors on the device or folders of photographs, and what is done to their images.

The names below load their module, and with it torch, on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .augment import crop_flip as crop_flip
    from .augment import standardize as standardize
    from .batches import folder_batches as folder_batches
    from .catalog import DATA_SETS as DATA_SETS
    from .catalog import DataSet as DataSet
    from .catalog import describe as describe
    from .decode import CentreCrop as CentreCrop
    from .decode import RandomCrop as RandomCrop
    from .folder import ImageFolder as ImageFolder
    from .folder import open_folder as open_folder
    from .images import ImageSet as ImageSet
    from .images import load as load
    from .plan import EpochPlan as EpochPlan
    from .plan import epoch_plan as epoch_plan

_HOME = {
    "DATA_SETS": "catalog",
    "DataSet": "catalog",
    "describe": "catalog",
    "ImageSet": "images",
    "load": "images",
    "standardize": "augment",
    "crop_flip": "augment",
    "EpochPlan": "plan",
    "epoch_plan": "plan",
    "ImageFolder": "folder",
    "open_folder": "folder",
    "CentreCrop": "decode",
    "RandomCrop": "decode",
    "folder_batches": "batches",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(_HOME)
