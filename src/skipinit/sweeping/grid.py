"""Axes over a training config become a list of trials, each once, in one order.

An axis is a field of `TrainConfig` or of its network under its own name (the network's name is `model`), or
`depth`, the n of wrn{n}_{k}. Its values are a list, one value, or a line of text:

    skipinit,batchnorm      these values
    2^-6..2^0               powers of two, both ends included
    0..6                    whole numbers, both ends included
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ..config import ModelConfig, TrainConfig
from ..data.catalog import describe
from ..errors import ConfigError, unknown_name
from ..nets.architectures import find_architecture
from ..nets.schemes import resolve
from ..training.protocol import make_train_config

MAX_TRIALS = 1_000_000


def _axis_types() -> dict[str, Any]:
    model, train = get_type_hints(ModelConfig), get_type_hints(TrainConfig)
    del train["model"]
    # The seed is the slowest axis: a sweep cut short has every cell once before it has any cell twice.
    return {"seed": train.pop("seed"), "model": model.pop("name"), "depth": int, **model, **train}


AXES: dict[str, Any] = _axis_types()
"""Every axis and the type of its values, slowest first: the order of trials."""


def axis_values(axis: str, given: object) -> list[Any]:
    """The values that a text, a list or a lone value stands for, each of the axis's type."""
    if isinstance(given, str):
        items = [item for part in given.split(",") for item in _items(axis, part.strip())]
    elif isinstance(given, Sequence):
        items = list(given)
    else:
        items = [given]
    if not items or "" in items:
        raise ConfigError(f"axis {axis}: {given!r} has an empty place; give one value or more")
    return [_convert(axis, item) for item in items]


def _items(axis: str, text: str) -> Sequence[object]:
    """The numbers of a range, or else the text itself."""
    span = re.fullmatch(r"(2\^)?(-?\d{1,9})\.\.(2\^)?(-?\d{1,9})", text)
    if span is None:
        return [text]
    first, last = int(span[2]), int(span[4])
    if span[1] != span[3]:
        raise ConfigError(f"axis {axis}: {text} mixes 2^n with n; write 2^-6..2^0 or 0..6")
    if first > last:
        raise ConfigError(f"axis {axis}: {text} is empty; the smaller end comes first")
    if last - first >= MAX_TRIALS:
        raise ConfigError(f"axis {axis}: {text} has {last - first + 1:,} values; at most {MAX_TRIALS:,}")
    numbers = range(first, last + 1)
    return [f"2^{exponent}" for exponent in numbers] if span[1] else numbers


def _convert(axis: str, value: object) -> Any:
    """`value` in the axis's one type: equal values must have equal identities."""
    hint = AXES[axis]
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    for kind in sorted(kinds, key=lambda kind: kind is str):  # text takes anything, so it is tried last
        try:
            return _read(kind, value.strip() if isinstance(value, str) else value)
        except (ValueError, OverflowError):
            continue
    raise ConfigError(f"axis {axis}: {value!r} is not {' or '.join(_describe(kind) for kind in kinds)}")


def _read(kind: Any, value: object) -> object:
    """`value` as a `kind`; ValueError where it is none."""
    if kind in (int, float):
        return _read_number(kind, value)
    if get_origin(kind) is tuple:
        parts = value.split("+") if isinstance(value, str) else value
        if isinstance(parts, list | tuple):
            return tuple(_read_number(int, part) for part in parts)
    if get_origin(kind) is Literal and value in get_args(kind):
        return value
    if kind is str and isinstance(value, str) and value:
        return value
    if kind is bool and value in (True, False, "true", "false") and isinstance(value, bool | str):
        return value in (True, "true")
    if kind is NoneType and value in (None, "none"):
        return None
    raise ValueError(value)


def _read_number(kind: type[int] | type[float], value: object) -> int | float:
    number = number_of(value) if isinstance(value, str) else value
    if isinstance(number, int) and not isinstance(number, bool):
        return kind(number)
    if isinstance(number, float) and kind is float and math.isfinite(number):
        return number + 0.0  # -0.0 becomes 0.0: they are equal, so their identities must be
    raise ValueError(value)


def number_of(text: str) -> int | float:
    """A decimal number, or 2^n; ValueError where it is neither."""
    if power := re.fullmatch(r"2\^(-?\d{1,4})", text):
        exponent = int(power[1])
        return 2**exponent if exponent >= 0 else math.ldexp(1.0, exponent)
    return int(text) if re.fullmatch(r"[+-]?\d{1,18}", text) else float(text)


def _describe(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", NoneType: "none"}
    return names.get(kind, "whole numbers joined by +")


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
