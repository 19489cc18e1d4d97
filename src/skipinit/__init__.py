"""Deep residual networks with and without normalization (De & Smith, NeurIPS 2020).

Public names are imported on first use, so `import skipinit` is fast and does not import torch. The names of
the laboratory (train, sweep, reproduce, report and others) need the extra `lab`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import need

__version__ = "0.1.0"


if TYPE_CHECKING:
    from .config import ModelConfig, TheoryConfig, TrainConfig
    from .converting.changes import Change, Conversion
    from .converting.convert import convert
    from .converting.recipe import RateSearch, Recipe, find_rate, recipe
    from .errors import ConfigError, DataError, SkipinitError
    from .nets.architectures import list_models
    from .nets.create import ResidualNet, build, create_model, from_pretrained
    from .nets.describe import BlockRow, Description, describe
    from .nets.layers import l2_parameters
    from .nets.merges import Add, DivideSqrt2, GhostBatchNorm2d, NormalizeOutput, NormalizeSkip, SkipInit
    from .nets.schemes import list_schemes
    from .paper.collect import Evidence, JudgedClaim, claims
    from .paper.reproduce import reproduce
    from .probing.balance import ProbeReport, ProbeRow
    from .probing.compare import Comparison, compare
    from .probing.depths import DepthCheck, DepthRow, depth_check
    from .probing.growth import Growth
    from .probing.history import Measurement, WatchReport, WatchRow
    from .probing.measure import find_residual_adds, probe
    from .probing.residual import ResidualAdd
    from .probing.verdict import CheckError, Verdict, Violation
    from .probing.watch import Watch, watch
    from .reporting.page import report
    from .sweeping.engine import Outcome, sweep
    from .sweeping.results import Progress, results, status, watched
    from .sweeping.single import train
    from .sweeping.trained import Evaluation, evaluate, export
    from .training.protocol import make_train_config
    from .training.records import TrainResult

_HOME = {
    "Add": "nets.merges",
    "BlockRow": "nets.describe",
    "Change": "converting.changes",
    "CheckError": "probing.verdict",
    "Comparison": "probing.compare",
    "ConfigError": "errors",
    "Conversion": "converting.changes",
    "DataError": "errors",
    "DepthCheck": "probing.depths",
    "DepthRow": "probing.depths",
    "Description": "nets.describe",
    "DivideSqrt2": "nets.merges",
    "Evaluation": "sweeping.trained",
    "Evidence": "paper.collect",
    "GhostBatchNorm2d": "nets.merges",
    "Growth": "probing.growth",
    "JudgedClaim": "paper.collect",
    "Measurement": "probing.history",
    "ModelConfig": "config",
    "NormalizeOutput": "nets.merges",
    "NormalizeSkip": "nets.merges",
    "Outcome": "sweeping.engine",
    "ProbeReport": "probing.balance",
    "ProbeRow": "probing.balance",
    "Progress": "sweeping.results",
    "RateSearch": "converting.recipe",
    "Recipe": "converting.recipe",
    "ResidualAdd": "probing.residual",
    "ResidualNet": "nets.create",
    "SkipInit": "nets.merges",
    "SkipinitError": "errors",
    "TheoryConfig": "config",
    "TrainConfig": "config",
    "TrainResult": "training.records",
    "Verdict": "probing.verdict",
    "Violation": "probing.verdict",
    "Watch": "probing.watch",
    "WatchReport": "probing.history",
    "WatchRow": "probing.history",
    "build": "nets.create",
    "claims": "paper.collect",
    "compare": "probing.compare",
    "convert": "converting.convert",
    "create_model": "nets.create",
    "depth_check": "probing.depths",
    "describe": "nets.describe",
    "evaluate": "sweeping.trained",
    "export": "sweeping.trained",
    "find_rate": "converting.recipe",
    "find_residual_adds": "probing.measure",
    "from_pretrained": "nets.create",
    "l2_parameters": "nets.layers",
    "list_models": "nets.architectures",
    "list_schemes": "nets.schemes",
    "make_train_config": "training.protocol",
    "probe": "probing.measure",
    "recipe": "converting.recipe",
    "report": "reporting.page",
    "reproduce": "paper.reproduce",
    "results": "sweeping.results",
    "status": "sweeping.results",
    "sweep": "sweeping.engine",
    "train": "sweeping.single",
    "watch": "probing.watch",
    "watched": "sweeping.results",
}

_LABORATORY = {"data", "training", "sweeping", "paper", "reporting"}

# Written out: type checkers take only these names as public, and they do not evaluate expressions.
__all__ = [
    "Add",
    "BlockRow",
    "Change",
    "CheckError",
    "Comparison",
    "ConfigError",
    "Conversion",
    "DataError",
    "DepthCheck",
    "DepthRow",
    "Description",
    "DivideSqrt2",
    "Evaluation",
    "Evidence",
    "GhostBatchNorm2d",
    "Growth",
    "JudgedClaim",
    "Measurement",
    "ModelConfig",
    "NormalizeOutput",
    "NormalizeSkip",
    "Outcome",
    "ProbeReport",
    "ProbeRow",
    "Progress",
    "RateSearch",
    "Recipe",
    "ResidualAdd",
    "ResidualNet",
    "SkipInit",
    "SkipinitError",
    "TheoryConfig",
    "TrainConfig",
    "TrainResult",
    "Verdict",
    "Violation",
    "Watch",
    "WatchReport",
    "WatchRow",
    "__version__",
    "build",
    "claims",
    "compare",
    "convert",
    "create_model",
    "depth_check",
    "describe",
    "evaluate",
    "export",
    "find_rate",
    "find_residual_adds",
    "from_pretrained",
    "l2_parameters",
    "list_models",
    "list_schemes",
    "make_train_config",
    "probe",
    "recipe",
    "report",
    "reproduce",
    "results",
    "status",
    "sweep",
    "train",
    "watch",
    "watched",
]


if not TYPE_CHECKING:  # with it, type checkers would accept every name

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if _HOME[name].partition(".")[0] in _LABORATORY:
            need("lab", f"{__name__}.{name}")
        value = globals()[name] = getattr(import_module(f".{_HOME[name]}", __name__), name)
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
