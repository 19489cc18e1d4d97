"""Axes over a training config become a list of trials, each once, in one order."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import ModelConfig, TrainConfig
from ..data.catalog import describe
from ..errors import ConfigError, unknown_name
from ..nets.architectures import find_architecture
from ..nets.schemes import resolve
from ..training.defaults import make_train_config
from .axis import AXES, MAX_TRIALS, axis_values

_MODEL_FIELDS = {field.name for field in dataclasses.fields(ModelConfig)} - {"name"}
_REQUIRED = [field.name for field in dataclasses.fields(TrainConfig) if field.default is dataclasses.MISSING]


@dataclass(frozen=True)
class Grid:
    """The trials of a sweep, each once, in the order of `AXES`."""

    trials: tuple[TrainConfig, ...]
    duplicates: int = 0
    """How many repeated trials were left out."""


def expand(axes: Mapping[str, object], base: TrainConfig | None = None) -> Grid:
    """Every combination of the axes' values; what no axis names comes from `base`.

    >>> grid = expand({"model": "wrn16_2", "data": "digits", "batch_size": 64, "epochs": 2,
    ...                "scheme": "skipinit,batchnorm", "lr": "2^-3..2^0", "seed": range(7)})
    >>> len(grid.trials)
    56
    """
    for name in axes:
        if name not in AXES:
            raise unknown_name("axis", name, AXES)
    values = {name: axis_values(name, axes[name]) for name in AXES if name in axes}
    if (count := math.prod(len(options) for options in values.values())) > MAX_TRIALS:
        raise ConfigError(f"the axes give {count:,} trials; a sweep holds at most {MAX_TRIALS:,}")
    fixed = flatten(base) if base else {}
    combinations = itertools.product(*values.values())
    trials = [_trial({**fixed, **dict(zip(values, chosen, strict=True))}) for chosen in combinations]
    for model in dict.fromkeys(trial.model for trial in trials):
        resolve(model, find_architecture(model.name))  # refuse now what could only fail in every trial
    return _distinct(trials)


def read_grid(path: Path) -> Grid:
    """The grid of a TOML file: axes at the top, and `[[part]]` tables for parts that differ from them.

    Parts are what a product cannot say: `alpha` for one scheme and not for another.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a TOML file ({error})") from None
    parts = table.pop("part", [{}])
    if not (isinstance(parts, list) and parts and all(isinstance(part, dict) for part in parts)):
        raise ConfigError(f"{path}: part must be one or more [[part]] tables of axes")
    return join(expand_protocol({**table, **part}) for part in parts)


def expand_protocol(axes: Mapping[str, object]) -> Grid:
    """The grid in which whatever no axis names is the protocol's choice for each data set."""
    for name in ("model", "data", "lr"):
        if name not in axes:
            raise ConfigError(f"{name} is not given; a sweep needs model, data and lr")
    return join(
        expand({**axes, "data": data}, _protocol(axis_values("model", axes["model"])[0], data))
        for data in axis_values("data", axes["data"])
    )


def _protocol(model: str, data: str) -> TrainConfig:
    entry = describe(data)
    network = ModelConfig(model, in_channels=entry.shape[0], num_classes=entry.num_classes)
    return make_train_config(network, data)


def join(grids: Iterable[Grid]) -> Grid:
    """Several grids as one."""
    parts = list(grids)
    whole = _distinct([trial for part in parts for trial in part.trials])
    return Grid(whole.trials, whole.duplicates + sum(part.duplicates for part in parts))


def flatten(config: TrainConfig) -> dict[str, Any]:
    """The config by the names of its axes; `depth` is left to `model`, which holds it."""
    flat = {**vars(config.model), **vars(config), "model": config.model.name}
    return {axis: flat[axis] for axis in AXES if axis != "depth"}


def _trial(flat: Mapping[str, Any]) -> TrainConfig:
    """The config of which `flat` is the `flatten`ed form."""
    if missing := [name for name in _REQUIRED if name not in flat]:
        raise ConfigError(f"{' and '.join(missing)} not given; a sweep needs {', '.join(_REQUIRED)}")
    name = flat["model"]
    if "depth" in flat:
        if not re.fullmatch(r"wrn\d+_\d+", name):
            raise ConfigError(f"depth {flat['depth']}: it is the n of wrn{{n}}_{{k}}, and {name} has none")
        name = re.sub(r"\d+", str(flat["depth"]), name, count=1)
    model = ModelConfig(name, **{key: flat[key] for key in _MODEL_FIELDS & flat.keys()})
    return TrainConfig(model, **{key: flat[key] for key in flat.keys() - _MODEL_FIELDS - {"model", "depth"}})


def _distinct(trials: Sequence[TrainConfig]) -> Grid:
    kept = tuple(dict.fromkeys(trials))
    return Grid(kept, len(trials) - len(kept))
