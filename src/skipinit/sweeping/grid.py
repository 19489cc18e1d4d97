"""Plans a sweep: expands axes over a training config into trials, and groups trials into packs.

A trial is in the list once, and the order is fixed. A pack is trials that step together.

An axis has the name of an option of `TrainConfig` or of its network (the network's name is `model`), or it is
`depth`, the n of wrn{n}_{k}. Its values are a list, one value, or text:

    skipinit,batchnorm      these values
    2^-6..2^0               powers of two, both ends included
    0..6                    whole numbers, both ends included
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from ..config import ModelConfig, TrainConfig, option_types, rerun
from ..data.catalog import DATA_SETS, describe
from ..errors import ConfigError, DataError, printable, unknown_name
from ..files import read_whole
from ..nets.own import name_factory
from ..notation import kinds_of, plain, rate_text, read_value
from ..training.protocol import (
    check_fit,
    identity,
    make_train_config,
    name_data,
    settle,
    steps_per_epoch,
)

MAX_TRIALS = 1_000_000


def _axis_types() -> dict[str, Any]:
    model, train = dict(option_types(ModelConfig)), dict(option_types(TrainConfig))
    del train["model"]
    # The seed is the slowest axis: if a sweep stops early, it has each cell once before any cell twice.
    return {"seed": train.pop("seed"), "model": model.pop("name"), "depth": int, **model, **train}


AXES: dict[str, Any] = _axis_types()
"""Every axis and the type of its values, slowest first: the order of trials."""


def axis_values(axis: str, given: object) -> list[Any]:
    """The values of an axis from text, a list, an array or one value, each of the axis's type."""
    given = plain(given)
    if isinstance(given, str):
        items = [item for part in given.split(",") for item in _items(axis, part.strip())]
    elif isinstance(given, Sequence):
        items = list(given)
    else:
        items = [given]
    if not items or "" in items:
        raise ConfigError(f"axis {axis}: {given!r} has an empty place; give one value or more")
    return [read_value(f"axis {axis}:", item, AXES[axis]) for item in items]


def _items(axis: str, text: str) -> Sequence[object]:
    """The numbers of a range, or the text itself."""
    span = re.fullmatch(r"(2\^)?(-?\d{1,9})\.\.(2\^)?(-?\d{1,9})", text)
    if span is None:
        if ".." in text and not {int, float}.isdisjoint(kinds_of(AXES[axis])):
            raise ConfigError(f"axis {axis}: {text!r} is no range; write 2^-6..2^0 or 0..6, or each value")
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


@dataclass(frozen=True)
class Grid:
    """The trials of a sweep, each once, in the order of `AXES`."""

    trials: tuple[TrainConfig, ...]
    duplicates: int = 0
    """How many repeated trials were left out."""

    @property
    def identity(self) -> str:
        """A hash of the trials, sixteen hexadecimal digits; their order does not matter."""
        ids = ",".join(sorted(map(identity, self.trials)))
        return hashlib.sha256(ids.encode()).hexdigest()[:16]


def expand(axes: Mapping[str, object]) -> Grid:
    """Every combination of the axes' values; other options are the protocol's choice for each data set.

    >>> grid = expand({"model": "wrn16_2", "data": "digits", "scheme": "skipinit,batchnorm",
    ...                "lr": "2^-3..2^0", "seed": range(7)})
    >>> len(grid.trials)
    56
    """
    axes = {name: _named(name, given) for name, given in axes.items()}
    for name in axes:
        if name not in AXES:
            raise unknown_name("axis", name, AXES)
    for name in ("model", "data", "lr"):
        if name not in axes:
            raise ConfigError(f"{name} is not given; a sweep needs model, data and lr")
    values = {name: axis_values(name, axes[name]) for name in AXES if name in axes}
    if (count := math.prod(len(options) for options in values.values())) > MAX_TRIALS:
        raise ConfigError(f"the axes give {count:,} trials; a sweep holds at most {MAX_TRIALS:,}")
    return make_grid(_combine(values))


def _combine(values: Mapping[str, Sequence[Any]]) -> Iterator[TrainConfig]:
    """A trial for every combination; those that only differ in rate and seed are settled once."""
    settled: dict[str, TrainConfig] = {}
    for combination in itertools.product(*values.values()):
        chosen = dict(zip(values, combination, strict=True))
        lr, seed = chosen.pop("lr"), chosen.pop("seed", 0)
        shared = repr(chosen)
        if shared not in settled:
            settled[shared] = _trial({**chosen, "lr": 1.0})
        yield rerun(settled[shared], lr, seed)


def _named(axis: str, given: object) -> object:
    """Replace factories and data by their names; a list of names or paths is several data sets."""
    if axis == "model" and not isinstance(given, str):
        several = given if isinstance(given, list | tuple) else [given]
        return [name_factory(each) if callable(each) else each for each in several]
    if axis != "data" or isinstance(given, str):
        return given
    if isinstance(given, Sequence) and all(isinstance(each, str | Path) for each in given):
        return [str(each) for each in given]
    return [name_data(given)]


def make_grid(trials: Iterable[TrainConfig]) -> Grid:
    """Settled trials, each once."""
    everything = [settle(trial) for trial in trials]
    distinct = tuple(dict.fromkeys(everything))
    return Grid(distinct, len(everything) - len(distinct))


def read_grid(path: Path) -> Grid:
    """The grid of a TOML file: axes at the top, and `[[part]]` tables for parts that differ from them.

    Parts express what a product cannot, such as `alpha` for one scheme and not for another.
    """
    try:
        table = tomllib.loads(read_whole(path).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a TOML file ({error})") from None
    parts = table.pop("part", [{}])
    if not (isinstance(parts, list) and parts and all(isinstance(part, dict) for part in parts)):
        raise ConfigError(f"{path}: part must be one or more [[part]] tables of axes")
    grids = []
    for number, part in enumerate(parts, 1):
        try:
            grids.append(expand({**table, **part}))
        except ConfigError as error:
            place = f"{path}, part {number}" if len(parts) > 1 else path
            raise ConfigError(f"{place}: {error}") from error
    return join(grids)


def join(grids: Iterable[Grid]) -> Grid:
    """Several grids as one."""
    parts = list(grids)
    whole = make_grid(trial for part in parts for trial in part.trials)
    return Grid(whole.trials, whole.duplicates + sum(part.duplicates for part in parts))


def _place(axis: str) -> str:
    """Where a config has the value of an axis."""
    if axis == "model":
        return "model.name"
    return axis if axis in option_types(TrainConfig) else f"model.{axis}"


_FLAT = [axis for axis in AXES if axis not in ("depth", "watch")]
_values = attrgetter(*map(_place, _FLAT))
cell_key = attrgetter(*(_place(axis) for axis in _FLAT if axis not in ("lr", "seed")))
"""Equal for configs that only differ in rate and seed."""


def flatten(config: TrainConfig) -> dict[str, Any]:
    """The config by the names of its axes, without `depth`, which is in `model`, and without `watch`."""
    return dict(zip(_FLAT, _values(config), strict=True))


def config_name(config: TrainConfig) -> str:
    """The config in a few words, for people."""
    network = f"{config.model.name}, {config.convert or config.model.scheme}"
    return printable(f"{network}, {config.data}, lr {rate_text(config.lr)}, seed {config.seed}")


def _trial(chosen: dict[str, Any]) -> TrainConfig:
    """The config of one combination."""
    name, depth = chosen.pop("model"), chosen.pop("depth", None)
    if depth is not None:
        if not re.fullmatch(r"wrn\d+_\d+", name):
            raise ConfigError(f"depth {depth}: it is the n of wrn{{n}}_{{k}}, and {name} has none")
        name = re.sub(r"\d+", str(depth), name, count=1)
    network = {key: chosen.pop(key) for key in option_types(ModelConfig) if key in chosen}
    config = make_train_config(ModelConfig(name, **network), **chosen)
    _check_batch_and_data(config)
    return config


def _check_batch_and_data(config: TrainConfig) -> None:
    """Refuse a batch or network that does not fit the data. Folders of photographs are checked later."""
    ghost, size = config.model.ghost_batch, config.batch_size
    if ghost is not None and size % ghost:
        raise ConfigError(f"ghost_batch {ghost} does not divide batch_size {size}")
    if config.data.endswith(".npz") or (config.data in DATA_SETS and DATA_SETS[config.data].in_memory):
        with suppress(DataError):  # the file is not here, but a node of a cluster may have it
            entry = describe(config.data)
            check_fit(config, entry.shape[0], entry.num_classes)
            steps_per_epoch(entry.train_size, config)


@dataclass(frozen=True)
class PackKey:
    """What the trials of a pack share."""

    data: str
    batch_size: int
    epochs: int
    position: int
    """Steps taken already."""


def group(trials: Sequence[tuple[TrainConfig, int]]) -> dict[PackKey, list[TrainConfig]]:
    """Trials, given with the steps they have taken, grouped by what a pack must share."""
    groups: defaultdict[PackKey, list[TrainConfig]] = defaultdict(list)
    for config, position in trials:
        groups[PackKey(config.data, config.batch_size, config.epochs, position)].append(config)
    return dict(groups)


def split(configs: Sequence[TrainConfig], size: int) -> Iterator[list[TrainConfig]]:
    """Packs of at most `size`."""
    for first in range(0, len(configs), size):
        yield list(configs[first : first + size])
