"""Configs of networks and training runs: frozen dataclasses. Each option is declared only here.

The flags of the command line, the axes of a sweep and the arguments in Python are made from these fields:
names, types and help. Nothing here imports torch. `nets` fills in the defaults of `ModelConfig`, `training`
those of `TrainConfig`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_type_hints

from .errors import ConfigError
from .notation import check_value, not_allowed

Schedule = Literal["cifar", "imagenet", "constant"]
Precision = Literal["float32", "tf32", "bfloat16"]
CropPadding = Literal["zero", "reflect", "symmetric"]
ClassifierInit = Literal["he", "lecun", "zero"]
Projection = Literal["activated", "raw"]
FixupComponent = Literal[1, 2, 3, 4]
Alpha = float | Literal["1/sqrt(d)"]
Convert = Literal["skipinit", "regularized-skipinit", "divide-sqrt2", "fixup", "fixup-dropout"]


def option(
    help: str,
    default: Any = dataclasses.MISSING,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    identifies: bool = True,
) -> Any:
    """A field with its help and the range of its values; without a default it is required.

    A field with `identifies=False` is ignored when configs are compared, named and stored.
    """
    within = f" in [{least}, {below})" if math.isfinite(below) else ""
    within = within or (f", {least} or more" if math.isfinite(least) else "")
    within = within or (f" above {above}" if math.isfinite(above) else "")
    in_range = lambda value: least <= value < below and value > above  # noqa: E731
    return dataclasses.field(
        default=default,
        compare=identifies,
        metadata={"help": help, "in_range": in_range if within else None, "within": within},
    )


@dataclass(frozen=True)
class ModelConfig:
    """One network. `None` means the paper's value for this architecture and scheme, or the data's."""

    name: str = option("Name of the network: see `skipinit models`; or package.module:factory for your own.")
    scheme: str = option("Scheme: see `skipinit schemes`; batchnorm if not given.", "batchnorm")
    num_classes: int | None = option("Number of classes; the data set's if not given.", None, least=1)
    in_channels: int | None = option("Channels of the input; the data set's if not given.", None, least=1)
    alpha: Alpha | None = option(
        "Initial value of SkipInit's branch scalar: a number, or 1/sqrt(d) for d blocks; 0 if not given.",
        None,
    )
    ghost_batch: int | None = option(
        "Examples per group of batch statistics; must divide the batch; the whole batch if not given.",
        None,
        least=1,
    )
    batch_statistics_at_test: bool = option(
        "At test time, normalize by the statistics of the batch instead of the running averages.", False
    )
    dropout: float | None = option(
        "Drop probability between global pooling and the classifier; the scheme's value if not given.",
        None,
        least=0,
        below=1,
    )
    biases: bool | None = option("Give every convolution a bias; the scheme decides if not given.", None)
    scalar_bias: bool | None = option(
        "Add a scalar bias per block between merge and ReLU (ResNet-V1 with SkipInit).", None
    )
    fixup_components: tuple[FixupComponent, ...] | None = option(
        "Components of Fixup to use, such as 1+2+3+4; all if not given.", None
    )
    classifier_init: ClassifierInit | None = option("Initialization of the classifier's weights.", None)
    projection: Projection | None = option(
        "Input of the skip convolution where the channels change: relu(x) (activated) or x itself (raw).",
        None,
    )

    def __post_init__(self) -> None:
        _check_options(self, f"{self.name}: ")


@dataclass(frozen=True)
class TheoryConfig:
    """One of the networks of Figures 2 and 5; by default at the paper's size."""

    name: str = option("Name of the network: see `skipinit models`.")
    blocks: int = option("Number of residual blocks.", 100, least=1)
    width: int | None = option("Width.", None, least=1)
    in_channels: int | None = option("Channels of the input.", None, least=1)

    def __post_init__(self) -> None:
        _check_options(self, f"{self.name}: ")


@dataclass(frozen=True)
class TrainConfig:
    """One training run: everything that its numbers depend on, and `watch`, on which they do not."""

    model: ModelConfig
    data: str = option(
        "digits, cifar10, cifar100, imagenet, gaussian, an .npz file, or a folder with train/ and val/."
    )
    lr: float = option("Learning rate, such as 0.25 or 2^-2.", above=0)
    batch_size: int = option("Examples per update, over all processes.", least=1)
    epochs: int = option("Passes over the training set; the schedule scales with it.", least=1)
    seed: int = option("Seed of weights, data order, augmentation and dropout.", 0, least=0)
    momentum: float = option("Momentum of SGD.", 0.9, least=0, below=1)
    dampening: float = option(
        "v <- momentum v + (1 - dampening) g; the paper's learning rates assume 0.9.", 0.0, least=0, below=1
    )
    l2: float = option(
        "Coefficient c of the penalty c/2 |w|^2 on convolution and dense weights.", 5e-4, least=0
    )
    schedule: Schedule = option("Schedule of the learning rate.", "cifar")
    precision: Precision = option("Arithmetic; parameters and optimizer state are float32.", "float32")
    crop_padding: CropPadding = option(
        "Padding of random crops: zeros, or the image mirrored without (reflect) or with its edge.",
        "zero",
    )
    augment: bool = option("Randomly crop and flip training images.", True)
    clean_train_loss: bool = option(
        "After every epoch, also measure the loss on the training set without augmentation.", False
    )
    convert: Convert | None = option(
        "Convert your own model to this scheme before training; none leaves it unchanged.", None
    )
    watch: int | None = option(
        "Steps between two measurements of every residual block; does not change the training.",
        None,
        least=1,
        identifies=False,
    )

    def __post_init__(self) -> None:
        if not isinstance(self.model, ModelConfig):
            raise ConfigError(f"model {self.model!r} is not allowed; it must be a ModelConfig")
        _check_options(self)


Config = ModelConfig | TheoryConfig | TrainConfig


_TYPES: dict[Any, dict[str, Any]] = {
    kind: get_type_hints(kind) for kind in (ModelConfig, TheoryConfig, TrainConfig)
}


def option_types(kind: type[Any]) -> dict[str, Any]:
    """The names and types of the options of a config."""
    return _TYPES[kind]


def option_help(kind: type[Any], name: str) -> str:
    """The help of an option."""
    return str(kind.__dataclass_fields__[name].metadata["help"])


def option_default(kind: type[Any], name: str) -> Any:
    """The default of an option; `dataclasses.MISSING` if it is required."""
    return kind.__dataclass_fields__[name].default


def _check_options(config: Config, owner: str = "") -> None:
    """Convert every value to the type of its option, or raise ConfigError."""
    kind: Any = type(config)
    for name in option_types(kind):
        if name == "model":
            continue
        value = getattr(config, name)  # not `vars`, which would allocate a dictionary in every config
        try:
            found = _checked(kind, name, value)
        except (ConfigError, TypeError):  # TypeError: a value that cannot be cached, such as a list
            found = _check_option(kind, name, value, owner)
        if found is not value:
            object.__setattr__(config, name, found)


@lru_cache(maxsize=4096, typed=True)  # typed: 1, 1.0 and True are different
def _checked(kind: Any, name: str, value: Any) -> Any:
    """Cached: thousands of trials have few different values."""
    return _check_option(kind, name, value, "")


def _check_option(kind: type[Config], name: str, value: Any, owner: str) -> Any:
    hint, metadata = option_types(kind)[name], kind.__dataclass_fields__[name].metadata
    in_range, within = metadata["in_range"], metadata["within"]
    found = check_value(f"{owner}{name}", value, hint, within)
    if in_range and found is not None and not in_range(found):
        raise not_allowed(f"{owner}{name}", value, hint, within)
    return found


def to_dict(config: Config) -> dict[str, Any]:
    """The fields that identify the config, as nested dictionaries for JSON."""
    return {
        field.name: _plain(getattr(config, field.name))
        for field in dataclasses.fields(config)
        if field.compare
    }


def _plain(value: Any) -> Any:
    if isinstance(value, ModelConfig):
        return to_dict(value)
    return list(value) if isinstance(value, tuple) else value


def model_from_dict(fields: dict[str, Any]) -> ModelConfig:
    """The inverse of `to_dict`; raises TypeError or ValueError if these are not the fields of a network."""
    return _model_of(json.dumps(fields))


@lru_cache(maxsize=1024)
def _model_of(text: str) -> ModelConfig:
    """Cached: thousands of trials share a few networks."""
    return ModelConfig(**json.loads(text))


def train_from_dict(fields: dict[str, Any]) -> TrainConfig:
    """The inverse of `to_dict`; raises TypeError, KeyError or ValueError if these are not a run's fields."""
    return TrainConfig(**{**fields, "model": model_from_dict(fields["model"])})


def rerun(config: TrainConfig, lr: Any, seed: Any) -> TrainConfig:
    """The config with another rate and seed; fast, because most trials of a sweep differ only in these."""
    other = object.__new__(TrainConfig)
    object.__setattr__(other, "__dict__", vars(config).copy())  # already checked
    for name, value in (("lr", lr), ("seed", seed)):
        object.__setattr__(other, name, _checked(TrainConfig, name, value))
    return other


def train_from_json(text: str) -> TrainConfig:
    """The config from `to_dict` as JSON with sorted keys."""
    parts = _RATE_AND_SEED.split(text)
    if len(parts) != 5:
        return train_from_dict(json.loads(text))
    before, lr, between, seed, after = parts
    return rerun(_shared_of(before, between, after), _number_of(lr), _number_of(seed))


_RATE_AND_SEED = re.compile(
    r'"lr": ([^,}]+)(.*)"seed": ([^,}]+)'
)  # quotes inside JSON strings are escaped, so they do not match


@lru_cache(maxsize=1024)
def _shared_of(before: str, between: str, after: str) -> TrainConfig:
    return train_from_dict(json.loads(f'{before}"lr": 1{between}"seed": 1{after}'))


_number_of = lru_cache(maxsize=4096)(json.loads)
