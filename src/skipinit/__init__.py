"""Deep residual networks with and without normalization (De & Smith, NeurIPS 2020).

The public names load on first use: importing this package costs nothing, torch comes with the first
name that needs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"


if TYPE_CHECKING:
    from .config import ModelConfig, TheoryConfig, TrainConfig
    from .converting.convert import convert
    from .errors import ConfigError, DataError, SkipinitError
    from .nets.architectures import list_models
    from .nets.create import create_model, from_pretrained
    from .nets.describe import describe
    from .nets.layers import l2_parameters
    from .nets.merges import GhostBatchNorm2d
    from .nets.schemes import list_schemes
    from .paper.claims.claim import Finding
    from .paper.collect import JudgedClaim, claims
    from .paper.reproduce import reproduce
    from .probing.measure import find_residual_adds, probe
    from .reporting.page import report
    from .sweeping.engine import Outcome, sweep
    from .sweeping.results import results
    from .sweeping.single import Evaluation, evaluate, export, train
    from .training.protocol import make_train_config
    from .training.records import TrainResult

_HOME = {
    "ConfigError": "errors",
    "DataError": "errors",
    "Evaluation": "sweeping.single",
    "Finding": "paper.claims.claim",
    "GhostBatchNorm2d": "nets.merges",
    "JudgedClaim": "paper.collect",
    "ModelConfig": "config",
    "Outcome": "sweeping.engine",
    "SkipinitError": "errors",
    "TheoryConfig": "config",
    "TrainConfig": "config",
    "TrainResult": "training.records",
    "claims": "paper.collect",
    "convert": "converting.convert",
    "create_model": "nets.create",
    "describe": "nets.describe",
    "evaluate": "sweeping.single",
    "export": "sweeping.single",
    "find_residual_adds": "probing.measure",
    "from_pretrained": "nets.create",
    "l2_parameters": "nets.layers",
    "list_models": "nets.architectures",
    "list_schemes": "nets.schemes",
    "make_train_config": "training.protocol",
    "probe": "probing.measure",
    "report": "reporting.page",
    "reproduce": "paper.reproduce",
    "results": "sweeping.results",
    "sweep": "sweeping.engine",
    "train": "sweeping.single",
}

__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_HOME[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
