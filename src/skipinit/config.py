"""What a network and a training run are, as plain frozen data; a config's hash is its identity.

Nothing here imports torch: the command line parses and prints configs without paying for it. What a
name or an option means is decided by the part that owns it: `nets` for `ModelConfig`, `train` for
`TrainConfig`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from .errors import ConfigError

Schedule = Literal["cifar", "imagenet", "constant"]
Precision = Literal["float32", "tf32", "bfloat16"]
CropPadding = Literal["zero", "reflect", "symmetric"]
ClassifierInit = Literal["he", "lecun", "zero"]
Projection = Literal["activated", "raw"]
_CHOICES = {
    "schedule": get_args(Schedule),
    "precision": get_args(Precision),
    "crop_padding": get_args(CropPadding),
}


@dataclass(frozen=True)
class ModelConfig:
    """One network. `None` means: what the paper says for this architecture and scheme."""

    name: str
    scheme: str = "batchnorm"
    num_classes: int | None = None
    in_channels: int = 3
    alpha: float | str | None = None
    """Start of the branch scalar of SkipInit: a number, or "1/sqrt(d)" with d the number of blocks."""
    ghost_batch: int | None = None
    """Examples per group of batch statistics; the whole batch if not given."""
    batch_statistics_at_test: bool = False
    """Normalize by the test batch's own statistics instead of the running averages."""
    dropout: float | None = None
    """Drop probability of the one layer between global pooling and the classifier."""
    biases: bool | None = None
    """A bias in every convolution."""
    scalar_bias: bool | None = None
    """One scalar bias per block between merge and ReLU (ResNet-V1 with SkipInit)."""
    fixup_components: tuple[int, ...] | None = None
    """Which of Fixup's four components are on; all if not given."""
    classifier_init: ClassifierInit | None = None
    """How the classifier's weights start; the paper says how convolutions do and is silent about it."""
    projection: Projection | None = None
    """What the 1x1 convolution on a transition's skip sees: relu(x), as the branch does, or x itself."""

    def __post_init__(self) -> None:
        _make_floats(self, "alpha", "dropout")
        _require(isinstance(self.name, str), "name", repr(self.name), "the name of a model")
        _require(isinstance(self.scheme, str), "scheme", repr(self.scheme), "the name of a scheme")
        for option in ("num_classes", "in_channels", "ghost_batch"):
            _require_count(self.name, option, getattr(self, option), optional=option != "in_channels")
        drop = self.dropout
        probable = drop is None or (isinstance(drop, float) and 0 <= drop < 1)
        _require(probable, "dropout", drop, "in [0, 1)")
        for option, choices in (("classifier_init", ClassifierInit), ("projection", Projection)):
            given, kinds = getattr(self, option), get_args(choices)
            _require(given is None or given in kinds, option, repr(given), f"one of {', '.join(kinds)}")


@dataclass(frozen=True)
class TheoryConfig:
    """One of the networks of Figures 2 and 5, at the paper's size unless said otherwise."""

    name: str
    blocks: int = 100
    width: int | None = None
    in_channels: int | None = None

    def __post_init__(self) -> None:
        _require(isinstance(self.name, str), "name", repr(self.name), "the name of a theory network")
        for option in ("blocks", "width", "in_channels"):
            _require_count(self.name, option, getattr(self, option), optional=option != "blocks")


@dataclass(frozen=True)
class TrainConfig:
    """One training run: everything that decides its numbers, and nothing else."""

    model: ModelConfig
    data: str
    lr: float
    batch_size: int
    epochs: int
    seed: int = 0
    momentum: float = 0.9
    dampening: float = 0.0
    """v <- momentum v + (1 - dampening) g. The paper's learning rates are those of 0.9."""
    l2: float = 5e-4
    """Coefficient c of c/2 |w|^2 over convolution and dense weights."""
    schedule: Schedule = "cifar"
    precision: Precision = "float32"
    """Of the arithmetic; parameters and optimizer state are float32 in any case."""
    crop_padding: CropPadding = "zero"
    """What random crops see beyond the edge: zeros, or the image mirrored, its edge left out or repeated."""
    augment: bool = True
    clean_train_loss: bool = False
    """Also evaluate the loss over the clean training set after every epoch."""

    def __post_init__(self) -> None:
        _make_floats(self, "lr", "momentum", "dampening", "l2")
        _require(math.isfinite(self.lr) and self.lr > 0, "lr", self.lr, "a positive number")
        _require(self.batch_size >= 1, "batch_size", self.batch_size, "1 or more")
        _require(self.epochs >= 1, "epochs", self.epochs, "1 or more")
        _require(self.seed >= 0, "seed", self.seed, "0 or more")
        _require(0 <= self.momentum < 1, "momentum", self.momentum, "in [0, 1)")
        _require(0 <= self.dampening < 1, "dampening", self.dampening, "in [0, 1)")
        _require(math.isfinite(self.l2) and self.l2 >= 0, "l2", self.l2, "0 or more")
        for name, kinds in _CHOICES.items():
            _require(getattr(self, name) in kinds, name, getattr(self, name), f"one of {', '.join(kinds)}")


def _make_floats(config: object, *names: str) -> None:
    """Write 1 as 1.0, so that equal configs look equal; what is no number is left for whoever checks it."""
    for name in names:
        value = getattr(config, name)
        if isinstance(value, int) and not isinstance(value, bool):
            with contextlib.suppress(OverflowError):
                object.__setattr__(config, name, float(value))


def _require(holds: bool, name: str, given: object, allowed: str) -> None:
    if not holds:
        raise ConfigError(f"{name} {given} is not allowed; it must be {allowed}")


def _require_count(model: str, name: str, given: object, optional: bool) -> None:
    # type, not isinstance: True is no count.
    holds = (given is None and optional) or (type(given) is int and given >= 1)
    _require(holds, f"{model}: {name}", given, "a whole number, 1 or more")


Config = ModelConfig | TheoryConfig | TrainConfig


def to_dict(config: Config) -> dict[str, Any]:
    """The config as nested dictionaries that JSON can hold."""
    return json.loads(json.dumps(dataclasses.asdict(config)))  # type: ignore[no-any-return]


def model_from_dict(fields: dict[str, Any]) -> ModelConfig:
    """The config that `to_dict` took apart; raises TypeError or ValueError where it is another's."""
    components = fields.get("fixup_components")
    return ModelConfig(**{**fields, "fixup_components": None if components is None else tuple(components)})


def train_from_dict(fields: dict[str, Any]) -> TrainConfig:
    """The config that `to_dict` took apart; raises TypeError, KeyError or ValueError where it is none."""
    return TrainConfig(**{**fields, "model": model_from_dict(fields["model"])})


def identity(config: Config) -> str:
    """Sixteen hexadecimal digits that two configs share only if they are equal.

    Only what differs from the defaults counts, so that a field added later leaves old identities alone;
    therefore a default, once released, is never changed.
    """
    canonical = json.dumps(_given(config), sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _given(config: Config) -> dict[str, Any]:
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    changed = {name: value for name, value in values.items() if value != defaults[name]}
    return {
        name: _given(value) if isinstance(value, ModelConfig) else value for name, value in changed.items()
    }
