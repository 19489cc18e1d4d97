"""Flags that several commands share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from ..config import ClassifierInit, ModelConfig, Projection
from ..errors import ConfigError
from ..sweeping.grid import number_of


def given(metavar: str) -> Any:
    """A flag without a default of its own to show: what happens without it, its help says."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


Json = Annotated[bool, tyro.conf.arg(name="json", help="Print JSON.", help_behavior_hint="")]
Model = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]


@dataclass(frozen=True)
class NetworkFlags:
    """The network's scheme and options; what is not given is what the paper says."""

    scheme: str = "batchnorm"
    """How the network is kept trainable: see `skipinit schemes`."""
    num_classes: Annotated[int | None, given("INT")] = None
    """Number of classes."""
    in_channels: Annotated[int | None, given("INT")] = None
    """Channels of the input."""
    alpha: Annotated[str | None, given("NUMBER")] = None
    """Start of SkipInit's branch scalar: a number, or 1/sqrt(d) with d the number of blocks."""
    ghost_batch: Annotated[int | None, given("INT")] = None
    """Examples per group of batch statistics; must divide the batch."""
    batch_statistics_at_test: bool = False
    """Normalize by the test batch's own statistics instead of the running averages."""
    dropout: Annotated[float | None, given("NUMBER")] = None
    """Drop probability before the classifier."""
    biases: Annotated[bool | None, given("{True,False}")] = None
    """A bias in every convolution."""
    scalar_bias: Annotated[bool | None, given("{True,False}")] = None
    """A scalar bias between merge and ReLU (ResNet-V1 with SkipInit)."""
    fixup_components: Annotated[tuple[int, ...] | None, given("INT ...")] = None
    """Which of Fixup's components 1 2 3 4 are on."""
    classifier_init: Annotated[ClassifierInit | None, given("{he,lecun,zero}")] = None
    """How the classifier's weights start."""
    projection: Annotated[Projection | None, given("{activated,raw}")] = None
    """What the skip of a transition convolves: relu(x), or x itself."""

    def config(self, name: str, in_channels: int = 3, num_classes: int | None = None) -> ModelConfig:
        """The network's config, for data of that many channels and classes unless a flag says otherwise."""
        return ModelConfig(
            name=name,
            scheme=self.scheme,
            num_classes=num_classes if self.num_classes is None else self.num_classes,
            in_channels=in_channels if self.in_channels is None else self.in_channels,
            alpha=_number_or_text(self.alpha),
            ghost_batch=self.ghost_batch,
            batch_statistics_at_test=self.batch_statistics_at_test,
            dropout=self.dropout,
            biases=self.biases,
            scalar_bias=self.scalar_bias,
            fixup_components=self.fixup_components,
            classifier_init=self.classifier_init,
            projection=self.projection,
        )


def _number_or_text(text: str | None) -> float | str | None:
    """Text that is no number is left for the network to refuse, with its own reason."""
    if text is None:
        return None
    try:
        return float(number_of(text))
    except (ValueError, OverflowError):
        return text


def rate_of(text: str) -> float:
    """A learning rate as the paper writes them, 2^-2, or as a decimal number."""
    try:
        return float(number_of(text))
    except (ValueError, OverflowError):
        raise ConfigError(f"lr {text!r} is not allowed; it must be a number, such as 0.25 or 2^-2") from None


def seconds_of(text: str) -> float:
    """A time limit: 90s, 9m, 2h."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h)?", text)
    if found is None:
        raise ConfigError(f"time limit {text!r} is not allowed; write it as 90s, 9m or 2h")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2] or "s"]
