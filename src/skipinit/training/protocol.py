"""The paper's protocol: defaults of a run, its learning rates, and its identity.

The protocol for the data set gives the options that the user does not. A settled config has every
option explicit. Its identity is a hash of what differs from the protocol, so it does not depend on how the
config was written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import ClassifierInit, CropPadding, ModelConfig, TrainConfig, train_from_dict
from ..data.catalog import DATA_SETS, describe
from ..errors import ConfigError, DataError
from ..nets.own import is_own, name_factory
from ..nets.schemes import SCHEMES, find_scheme
from ..nets.schemes import settle as settle_model

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Defaults:
    """Learning rates are heavy-ball ones, for the batch size beside them."""

    epochs: int
    batch_size: int
    l2: float
    schedule: str
    lr_normalized: float
    lr_unnormalized: float
    augment: bool = True
    crop_padding: CropPadding = "zero"
    classifier_init: ClassifierInit | None = None


# Digits fill their 8 x 8 pixels: shifted by one they lose strokes, and short trainings go nowhere.
_DIGITS = Defaults(10, 64, 5e-4, "cifar", lr_normalized=0.05, lr_unnormalized=0.025, augment=False)
# Not augmented: only the author of the file knows whether a mirrored image is still of its class.
_ARRAYS = _DIGITS
# Of what the paper leaves open, these bring all of Tables 1 and 3 at depth 16 nearest (docs/reproduce.md).
_CIFAR = Defaults(
    200, 64, 5e-4, "cifar", lr_normalized=0.05, lr_unnormalized=0.025, crop_padding="reflect",
    classifier_init="zero",
)  # fmt: skip
_IMAGENET = Defaults(90, 256, 1e-4, "imagenet", lr_normalized=0.1, lr_unnormalized=0.1)
_BY_DATA = {
    "digits": _DIGITS, "digits16": _DIGITS, "gaussian": _DIGITS, "cifar10": _CIFAR, "cifar100": _CIFAR,
}  # fmt: skip
_CHOSEN = ("batch_size", "epochs", "l2", "schedule", "augment", "crop_padding")


def make_train_config(
    model: ModelConfig | Callable[[], nn.Module], data: str | Path | tuple[Any, Any], **given: Any
) -> TrainConfig:
    """Make the config of a training run; options not given, or None, get the protocol's value for the data.

    Args:
        model: one of the paper's networks, or an importable function of yours that returns a model.
        data: a name or a path; or training and test split, each images and labels or a `Dataset` of them.
            Splits are written to a file named by its content, where data sets are looked for.
        given: options of `TrainConfig`.
    """
    if isinstance(model, str):
        raise ConfigError(f"model is the text {model!r}; give ModelConfig({model!r})")
    model = model if isinstance(model, ModelConfig) else ModelConfig(name_factory(model))
    data = name_data(data)
    known = {field.name for field in fields(TrainConfig)} - {"model", "data"}
    for name in given:
        if name not in known:
            raise ConfigError(f"training option {name!r} is not known; there are {', '.join(sorted(known))}")
    default = _defaults(data)
    options: dict[str, Any] = {"lr": 1.0, **{name: getattr(default, name) for name in _CHOSEN}}
    options |= {name: value for name, value in given.items() if value is not None}
    takes_start = not is_own(model.name) and not find_scheme(model.scheme).fixup
    if model.classifier_init is None and takes_start:
        model = replace(model, classifier_init=default.classifier_init)
    config = settle(TrainConfig(model=model, data=data, **options))
    return config if given.get("lr") is not None else replace(config, lr=_rate(config, default))


def _defaults(data: str) -> Defaults:
    return _BY_DATA.get(data, _ARRAYS if data.endswith(".npz") else _IMAGENET)


def name_data(data: Any) -> str:
    """The name of a data set, which is kept in a file if it is not one already."""
    if isinstance(data, str | Path):
        return str(data)
    from ..data.arrays import keep_arrays  # numpy comes with it

    if not isinstance(data, tuple | list) or len(data) != 2:
        raise DataError(f"data is a {type(data).__name__}; it must be a name, a path, or (train, test)")
    return keep_arrays(*data)


def _rate(config: TrainConfig, default: Defaults) -> float:
    """In proportion to the batch size, as the optimal rate is (section 3); dampening shrinks every step."""
    scheme = SCHEMES.get(config.model.scheme)
    normalized = config.convert is None if scheme is None else scheme.has_norm
    rate = default.lr_normalized if normalized else default.lr_unnormalized
    undamped = round(1 - config.dampening, 12)  # 0.1 at 0.9, so that the paper's rates come out exactly
    return rate * config.batch_size / default.batch_size / undamped


def settle(config: TrainConfig) -> TrainConfig:
    """The same run with every option explicit, so that two ways to write a run give one config.

    A ghost batch as large as the batch is none. Where no crop is padded, the padding is the data set's. A
    network that the paper does not define is refused.
    """
    model = config.model
    if config.convert is not None and not is_own(model.name):
        raise ConfigError(
            f"convert {config.convert!r} is for a model of your own; {model.name} has --scheme in its place"
        )
    if model.num_classes is None or model.in_channels is None:
        entry = describe(config.data)
        model = replace(
            model,
            num_classes=entry.num_classes if model.num_classes is None else model.num_classes,
            in_channels=entry.shape[0] if model.in_channels is None else model.in_channels,
        )
    if model.ghost_batch == config.batch_size:
        model = replace(model, ghost_batch=None)
    model = settle_model(model)
    padding = config.crop_padding if _pads_crops(config) else _defaults(config.data).crop_padding
    if (model, padding) == (config.model, config.crop_padding):
        return config
    return replace(config, model=model, crop_padding=padding)


def _pads_crops(config: TrainConfig) -> bool:
    """Whether training images are padded; photographs are cropped without."""
    entry = DATA_SETS.get(config.data)
    return config.augment and (config.data.endswith(".npz") if entry is None else entry.padding > 0)


def steps_per_epoch(examples: int, config: TrainConfig) -> int:
    """Whole batches only: the last partial one is dropped in training."""
    if config.batch_size > examples:
        raise ConfigError(
            f"batch_size {config.batch_size} is larger than the {examples} training examples of "
            f"{config.data}; it must be {examples} or less"
        )
    return examples // config.batch_size


def _constant_factor(step: int, total: int) -> float:
    """Always 1."""
    return 1.0


def _cifar_factor(step: int, total: int) -> float:
    """1 for the first half, then halved at once and after every twentieth (200 epochs: at 100, 110, ...)."""
    return 0.5 ** _halvings(step, total, parts=20)


def _imagenet_factor(step: int, total: int) -> float:
    """From 0 to 1 over an eighteenth, 1 to the half, then halved every eighteenth (90 epochs: every 5)."""
    if 18 * step < total:
        return 18 * step / total
    return 0.5 ** _halvings(step, total, parts=18)


def _halvings(step: int, total: int, parts: int) -> int:
    """How many `parts`-ths of the training have begun since its middle, the one at the middle included."""
    if 2 * step < total:
        return 0
    return 1 + (2 * parts * step - parts * total) // (2 * total)


_SCHEDULES: dict[str, Callable[[int, int], float]] = {
    "cifar": _cifar_factor,
    "imagenet": _imagenet_factor,
    "constant": _constant_factor,
}
"""By name: from the step and the number of all steps to a factor of the learning rate.

Their thresholds are fractions of the training, so a schedule fits any number of epochs, and is exact for the
paper's.
"""


def learning_rates(config: TrainConfig, batches: int) -> list[float]:
    """The learning rate of every step of a run whose epochs have so many batches."""
    total = config.epochs * batches
    factor = _SCHEDULES[config.schedule]
    return [config.lr * factor(step, total) for step in range(total)]


def check_fit(config: TrainConfig, channels: int, classes: int) -> None:
    """Refuse a network that does not fit the data; it would fail with an index error or a CUDA assertion."""
    model = config.model
    if model.in_channels != channels:
        raise ConfigError(
            f"in_channels {model.in_channels} does not fit {config.data}; it must be {channels}"
        )
    if model.num_classes is None or model.num_classes < classes:
        raise ConfigError(
            f"num_classes {model.num_classes} is too few for {config.data}; it must be {classes} or more"
        )


def identity(config: TrainConfig) -> str:
    """Sixteen hexadecimal digits that two configs share only if they are the same run.

    Only what differs from the defaults counts, so that an option added later leaves old identities alone;
    therefore a default, once released, is never changed.
    """
    settled = settle(config)
    options = ((name, getattr(settled, name)) for name in _STANDARD)
    differing = {name: value for name, value in options if value != _STANDARD[name]}
    differing["model"] = _differing_model(settled.model, settled.data)
    canonical = json.dumps(differing, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


_STANDARD = {field.name: field.default for field in fields(TrainConfig) if field.compare}


@lru_cache(maxsize=1024)
def _differing_model(model: ModelConfig, data: str) -> dict[str, Any]:
    """The options of the network that differ from the defaults of its scheme and data set."""
    entry = DATA_SETS.get(data)
    shaped: dict[str, Any] = (
        {} if entry is None else {"num_classes": entry.num_classes, "in_channels": entry.shape[0]}
    )
    usual = vars(settle_model(ModelConfig(model.name, model.scheme, **shaped)))
    given = {name: value for name, value in vars(model).items() if value != usual[name]}
    return {"name": model.name, "scheme": model.scheme, **given}


def settled_from_dict(content: dict[str, Any]) -> TrainConfig:
    """The settled config of a dictionary from `to_dict`; TypeError, KeyError or ValueError if invalid."""
    return settle(train_from_dict(content))
