"""What a network and a training run are, as plain frozen data. Each option is declared here and nowhere else.

The command line, the axes of a sweep and the arguments from Python are made from these fields: their names,
types and helps. Nothing here imports torch. What is not given is settled by the part that owns it: `nets` for
`ModelConfig`, `training` for `TrainConfig`.
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
    """A field with its help and the range of its values; without a default it must be given.

    What does not identify is left out where configs are compared, named and stored.
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
    """One network. `None` means: what the paper says for this architecture and scheme, and the data has."""

    name: str = option("Name of the network: see `skipinit models`; or package.module:factory, for your own.")
    scheme: str = option("How the network is kept trainable: see `skipinit schemes`.", "batchnorm")
    num_classes: int | None = option("Number of classes; the data set's if not given.", None, least=1)
    in_channels: int | None = option("Channels of the input; the data set's if not given.", None, least=1)
    alpha: Alpha | None = option(
        "Start of SkipInit's branch scalar: a number, or 1/sqrt(d) with d the number of blocks.", None
    )
    ghost_batch: int | None = option(
        "Examples per group of batch statistics, which must divide the batch; the whole batch if not given.",
        None,
        least=1,
    )
    batch_statistics_at_test: bool = option(
        "Normalize by the test batch's own statistics instead of the running averages.", False
    )
    dropout: float | None = option(
        "Drop probability between global pooling and the classifier.", None, least=0, below=1
    )
    biases: bool | None = option("A bias in every convolution.", None)
    scalar_bias: bool | None = option(
        "A scalar bias per block between merge and ReLU (ResNet-V1 with SkipInit).", None
    )
    fixup_components: tuple[FixupComponent, ...] | None = option(
        "Which of Fixup's components are on, such as 1+2+3+4; all if not given.", None
    )
    classifier_init: ClassifierInit | None = option("How the classifier's weights start.", None)
    projection: Projection | None = option(
        "What the skip of a transition convolves: relu(x), as the branch does, or x itself.", None
    )

    def __post_init__(self) -> None:
        _check_options(self, f"{self.name}: ")


@dataclass(frozen=True)
class TheoryConfig:
    """One of the networks of Figures 2 and 5, at the paper's size unless said otherwise."""

    name: str = option("Name of the network: see `skipinit models`.")
    blocks: int = option("Residual blocks.", 100, least=1)
    width: int | None = option("Width.", None, least=1)
    in_channels: int | None = option("Channels of the input.", None, least=1)

    def __post_init__(self) -> None:
        _check_options(self, f"{self.name}: ")


@dataclass(frozen=True)
class TrainConfig:
    """One training run: everything that decides its numbers, and what is measured besides."""

    model: ModelConfig
    data: str = option(
        "digits, cifar10, cifar100, imagenet, gaussian, an .npz file, or a folder of train/ and val/."
    )
    lr: float = option("Learning rate: 0.25, or 2^-2.", above=0)
    batch_size: int = option("Examples per update, over all processes.", least=1)
    epochs: int = option("Passes over the training set; the schedule scales with it.", least=1)
    seed: int = option("Seed of weights, data order, augmentation and dropout.", 0, least=0)
    momentum: float = option("Momentum of SGD.", 0.9, least=0, below=1)
    dampening: float = option(
        "v <- momentum v + (1 - dampening) g; the paper's learning rates go with 0.9.", 0.0, least=0, below=1
    )
    l2: float = option("Coefficient c of c/2 |w|^2 over convolution and dense weights.", 5e-4, least=0)
    schedule: Schedule = option("Schedule of the learning rate.", "cifar")
    precision: Precision = option("Arithmetic; parameters and optimizer state are float32.", "float32")
    crop_padding: CropPadding = option(
        "What random crops see beyond the edge: zeros, or the image mirrored, its edge left out or repeated.",
        "zero",
    )
    augment: bool = option("Crop and mirror training images at random.", True)
    clean_train_loss: bool = option(
        "Also evaluate the loss over the unaugmented training set after every epoch.", False
    )
    convert: Convert | None = option(
        "Remove normalization from a model of your own before it is trained; none: leave it as it is.", None
    )
    watch: int | None = option(
        "Measure every residual block at every so many steps; changes no number of the training.",
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
    """Names and types of a config's options."""
    return _TYPES[kind]


def option_help(kind: type[Any], name: str) -> str:
    """What an option does."""
    return str(kind.__dataclass_fields__[name].metadata["help"])


def option_default(kind: type[Any], name: str) -> Any:
    """What an option is where it is not given; `dataclasses.MISSING` where it must be."""
    return kind.__dataclass_fields__[name].default


def _check_options(config: Config, owner: str = "") -> None:
    """Bring every value to its option's one type, or refuse it."""
    kind: Any = type(config)
    for name in option_types(kind):
        if name == "model":
            continue
        value = getattr(config, name)  # not `vars`, which gives every config a dictionary to keep
        try:
            found = _checked(kind, name, value)
        except (ConfigError, TypeError):  # TypeError: a list, say, cannot be remembered
            found = _check_option(kind, name, value, owner)
        if found is not value:
            object.__setattr__(config, name, found)


@lru_cache(maxsize=4096, typed=True)  # which tells 1 from 1.0 and True
def _checked(kind: Any, name: str, value: Any) -> Any:
    """Remembered: thousands of trials have few values."""
    return _check_option(kind, name, value, "")


def _check_option(kind: type[Config], name: str, value: Any, owner: str) -> Any:
    hint, metadata = option_types(kind)[name], kind.__dataclass_fields__[name].metadata
    in_range, within = metadata["in_range"], metadata["within"]
    found = check_value(f"{owner}{name}", value, hint, within)
    if in_range and found is not None and not in_range(found):
        raise not_allowed(f"{owner}{name}", value, hint, within)
    return found


def to_dict(config: Config) -> dict[str, Any]:
    """What identifies the config, as nested dictionaries that JSON can hold."""
    values = dataclasses.asdict(config)
    kept = {field.name: values[field.name] for field in dataclasses.fields(config) if field.compare}
    return json.loads(json.dumps(kept))  # type: ignore[no-any-return]


def model_from_dict(fields: dict[str, Any]) -> ModelConfig:
    """The config that `to_dict` took apart; raises TypeError or ValueError where it is another's."""
    return _model_of(json.dumps(fields))


@lru_cache(maxsize=1024)
def _model_of(text: str) -> ModelConfig:
    """Trials by the thousand share a few networks."""
    return ModelConfig(**json.loads(text))


def train_from_dict(fields: dict[str, Any]) -> TrainConfig:
    """The config that `to_dict` took apart; raises TypeError, KeyError or ValueError where it is none."""
    return TrainConfig(**{**fields, "model": model_from_dict(fields["model"])})


def rerun(config: TrainConfig, lr: Any, seed: Any) -> TrainConfig:
    """The config at another rate and seed, in which alone trials by the hundred thousand differ."""
    other = object.__new__(TrainConfig)
    object.__setattr__(other, "__dict__", vars(config).copy())  # what was checked once
    for name, value in (("lr", lr), ("seed", seed)):
        object.__setattr__(other, name, _checked(TrainConfig, name, value))
    return other


def train_from_json(text: str) -> TrainConfig:
    """The config of what `to_dict` made, as JSON with sorted keys."""
    parts = _RATE_AND_SEED.split(text)
    if len(parts) != 5:
        return train_from_dict(json.loads(text))
    before, lr, between, seed, after = parts
    return rerun(_shared_of(before, between, after), _number_of(lr), _number_of(seed))


_RATE_AND_SEED = re.compile(r'"lr": ([^,}]+)(.*)"seed": ([^,}]+)')  # within JSON's texts, quotes are escaped


@lru_cache(maxsize=1024)
def _shared_of(before: str, between: str, after: str) -> TrainConfig:
    return train_from_dict(json.loads(f'{before}"lr": 1{between}"seed": 1{after}'))


_number_of = lru_cache(maxsize=4096)(json.loads)
