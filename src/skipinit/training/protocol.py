"""What a run is where the user does not say: the paper's protocol for the data set at hand."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from ..config import ModelConfig, TrainConfig
from ..data.catalog import describe
from ..errors import ConfigError
from ..nets.schemes import SCHEMES


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


# Digits fill their 8 x 8 pixels: shifted by one they lose strokes, and short trainings go nowhere.
_DIGITS = Defaults(10, 64, 5e-4, "cifar", lr_normalized=0.05, lr_unnormalized=0.025, augment=False)


_CIFAR = Defaults(200, 64, 5e-4, "cifar", lr_normalized=0.05, lr_unnormalized=0.025)


_IMAGENET = Defaults(90, 256, 1e-4, "imagenet", lr_normalized=0.1, lr_unnormalized=0.1)


_BY_DATA = {
    "digits": _DIGITS, "digits16": _DIGITS, "gaussian": _DIGITS, "cifar10": _CIFAR, "cifar100": _CIFAR,
}  # fmt: skip


def make_train_config(model: ModelConfig, data: str, **given: Any) -> TrainConfig:
    """A config; what is not given, or given as None, is the protocol's choice for the data set."""
    known = {field.name for field in fields(TrainConfig)} - {"model", "data"}
    for name in given:
        if name not in known:
            raise ConfigError(f"training option {name!r} is not known; there are {', '.join(sorted(known))}")
    default = _BY_DATA.get(data, _IMAGENET)
    options: dict[str, Any] = {
        "lr": 1.0,
        "batch_size": default.batch_size,
        "epochs": default.epochs,
        "l2": default.l2,
        "schedule": default.schedule,
        "augment": default.augment,
    }
    options |= {name: value for name, value in given.items() if value is not None}
    if model.num_classes is None:
        model = replace(model, num_classes=describe(data).num_classes)
    config = TrainConfig(model=model, data=data, **options)
    return config if given.get("lr") is not None else replace(config, lr=_rate(config, default))


def _rate(config: TrainConfig, default: Defaults) -> float:
    """In proportion to the batch size, as the optimal rate is (section 3); dampening shrinks every step."""
    scheme = SCHEMES.get(config.model.scheme)
    normalized = scheme is not None and scheme.has_norm
    rate = default.lr_normalized if normalized else default.lr_unnormalized
    undamped = round(1 - config.dampening, 12)  # 0.1 at 0.9, so that the paper's rates come out exactly
    return rate * config.batch_size / default.batch_size / undamped
