"""The paper's schemes, as data: what is normalized, what scales the branch, how weights start.

Schemes and networks do not depend on each other: `resolve` combines a scheme with the options of a
`ModelConfig` into a `Design`, from which the layers are built. What the paper does not define is refused
here, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from ..config import Alpha, ClassifierInit, FixupComponent, ModelConfig
from ..errors import ConfigError, unknown_name
from .architectures import Architecture, find_architecture
from .own import is_own

MergeKind = Literal["add", "scale", "divide-sqrt2", "norm-output", "norm-skip"]


@dataclass(frozen=True)
class Scheme:
    """One way to normalize, scale and initialize residual blocks; some of them do not train when deep."""

    name: str
    equation: str
    source: str
    branch_norm: bool = False
    """Batch norm before every activation of the branch (after every convolution in ResNet-V1)."""
    final_norm: bool = False
    """Batch norm before the last ReLU of the network (pre-activation networks)."""
    merge: MergeKind = "add"
    alpha: float | None = None
    """Start of the learnable branch scalar; None: there is none."""
    alpha_is_free: bool = False
    """Whether the user may choose `alpha`."""
    conv_biases: Literal["never", "imagenet", "always"] = "never"
    scalar_bias_allowed: bool = False
    dropout: bool = False
    fixup: bool = False
    post_activation: bool = True
    """Whether it is defined on ResNet-V1, which has no identity skip and no final norm."""

    @property
    def has_norm(self) -> bool:
        """Whether the network has any norm."""
        return self.branch_norm or self.final_norm


_ALL = (
    Scheme("batchnorm", "x + f(BN(x))", "section 2.1", branch_norm=True, final_norm=True),
    Scheme("none", "x + f(x)", "section 2.1"),
    Scheme(
        "skipinit", "x + alpha f(x), alpha = 0", "section 2.2",
        merge="scale", alpha=0.0, alpha_is_free=True, conv_biases="imagenet", scalar_bias_allowed=True,
    ),
    Scheme(
        "regularized-skipinit", "x + alpha f(x), alpha = 0, conv biases, dropout", "section 4",
        merge="scale", alpha=0.0, alpha_is_free=True, conv_biases="always", scalar_bias_allowed=True,
        dropout=True,
    ),
    Scheme("divide-sqrt2", "(x + f(x)) / sqrt(2)", "section 2.1", merge="divide-sqrt2"),
    Scheme(
        "batchnorm-divide-sqrt2", "(x + f(BN(x))) / sqrt(2)", "Table 4",
        branch_norm=True, final_norm=True, merge="divide-sqrt2", post_activation=False,
    ),
    Scheme(
        "batchnorm-block-end", "BN(x + f(BN(x)))", "Table 4",
        branch_norm=True, final_norm=True, merge="norm-output", post_activation=False,
    ),
    Scheme(
        "batchnorm-on-skip", "BN(x) + f(BN(x))", "appendix D.2, the other reading of Table 4",
        branch_norm=True, final_norm=True, merge="norm-skip", post_activation=False,
    ),
    Scheme(
        "batchnorm-final-only", "x + f(x), one BN before the last ReLU", "Table 4",
        final_norm=True, post_activation=False,
    ),
    Scheme(
        "fixup", "x + m f(x + b), m = 1, b = 0, last convolution of f = 0", "section 6; Zhang et al. 2019",
        merge="scale", alpha=1.0, fixup=True,
    ),
    Scheme(
        "fixup-dropout", "fixup with dropout", "Table 2",
        merge="scale", alpha=1.0, fixup=True, dropout=True,
    ),
)  # fmt: skip

SCHEMES = {scheme.name: scheme for scheme in _ALL}
OWN = "own"
"""The scheme of the user's own models."""

FIXUP_COMPONENTS: dict[FixupComponent, str] = {
    1: "classifier and last convolution of each branch start at zero",
    2: "other branch convolutions start scaled by d^(-1/(2m-2))",
    3: "a scalar multiplier per branch, starting at 1",
    4: "a scalar bias before every convolution, ReLU and dense layer, starting at 0",
}


def find_scheme(name: str) -> Scheme:
    """The scheme of that name; raises ConfigError with the nearest names if there is none."""
    if name not in SCHEMES:
        raise unknown_name("scheme", name, SCHEMES)
    return SCHEMES[name]


def list_schemes() -> list[str]:
    """The names of all schemes, for `create_model(..., scheme=...)`.

    >>> list_schemes()[:3]
    ['batchnorm', 'none', 'skipinit']
    """
    return list(SCHEMES)


@dataclass(frozen=True)
class Design:
    """A scheme with all options decided for one network; the layers are built from it."""

    branch_norm: bool
    final_norm: bool
    ghost_batch: int | None
    batch_statistics_at_test: bool
    merge: MergeKind
    alpha: float
    conv_bias: bool
    merge_bias: bool
    layer_biases: bool
    dropout: float
    zero_last: bool
    depth_scaled: bool
    classifier_init: ClassifierInit
    raw_projection: bool


def resolve(config: ModelConfig, architecture: Architecture) -> Design:
    """Combine scheme, options and architecture; raise ConfigError for what the paper does not define."""
    scheme = find_scheme(config.scheme)
    _refuse_undefined(config, scheme, architecture)
    components = _fixup_components(config, scheme)
    biased = scheme.conv_biases == "always" or (scheme.conv_biases == "imagenet" and architecture.imagenet)
    drop = architecture.dropout if scheme.dropout else 0.0
    return Design(
        branch_norm=scheme.branch_norm,
        final_norm=scheme.final_norm and not architecture.post_activation,
        ghost_batch=config.ghost_batch,
        batch_statistics_at_test=config.batch_statistics_at_test,
        merge="add" if scheme.fixup and 3 not in components else scheme.merge,
        alpha=_alpha(config, scheme, architecture.num_blocks),
        conv_bias=biased if config.biases is None else config.biases,
        merge_bias=bool(config.scalar_bias),
        layer_biases=4 in components,
        dropout=drop if config.dropout is None else config.dropout,
        zero_last=1 in components,
        depth_scaled=2 in components,
        classifier_init=config.classifier_init or ("zero" if 1 in components else "he"),
        raw_projection=config.projection == "raw",
    )


@lru_cache(maxsize=1024)  # thousands of trials share a few networks
def settle(config: ModelConfig) -> ModelConfig:
    """The same network with every option explicit; raises ConfigError for what the paper does not define."""
    if is_own(config.name):
        return _settle_own(config)
    architecture = find_architecture(config.name)
    design = resolve(config, architecture)
    scheme = SCHEMES[config.scheme]
    root = 1 / math.sqrt(architecture.num_blocks)
    alpha: Alpha = "1/sqrt(d)" if math.isclose(design.alpha, root) else design.alpha
    return replace(
        config,
        num_classes=architecture.num_classes if config.num_classes is None else config.num_classes,
        in_channels=3 if config.in_channels is None else config.in_channels,
        alpha=alpha if scheme.alpha_is_free else None,
        dropout=design.dropout,
        biases=design.conv_bias,
        scalar_bias=design.merge_bias,
        fixup_components=tuple(sorted(_fixup_components(config, scheme))) if scheme.fixup else None,
        classifier_init=None if scheme.fixup else design.classifier_init,
        projection=None if architecture.post_activation else "raw" if design.raw_projection else "activated",
    )


def _settle_own(config: ModelConfig) -> ModelConfig:
    """The user's own model has no options but the numbers of classes and channels."""
    for option, usual in vars(ModelConfig(config.name)).items():
        value = getattr(config, option)
        if option == "scheme" and value not in (usual, OWN):
            raise ConfigError(
                f"{config.name}: scheme {value!r} is for the paper's networks; use convert for a model of "
                "your own, as in --convert skipinit"
            )
        if option not in ("name", "scheme", "num_classes", "in_channels") and value != usual:
            raise ConfigError(f"{config.name}: {option} is for the paper's networks; set it in your factory")
    return replace(config, scheme=OWN)


def _refuse_undefined(config: ModelConfig, scheme: Scheme, architecture: Architecture) -> None:
    def refuse(what: str, why: str) -> None:
        raise ConfigError(f"{architecture.name}, scheme {scheme.name}: {what} is not defined; {why}")

    if architecture.post_activation and not scheme.post_activation:
        refuse("this scheme", "the paper defines it for pre-activation networks: wrn*, resnet*_v2")
    if config.alpha is not None and not scheme.alpha_is_free:
        refuse("alpha", f"it belongs to {_names(lambda s: s.alpha_is_free)}")
    if config.ghost_batch is not None and not scheme.has_norm:
        refuse("ghost_batch", "nothing is normalized")
    if config.batch_statistics_at_test and not scheme.has_norm:
        refuse("batch_statistics_at_test", "nothing is normalized")
    if config.biases and scheme.branch_norm:
        refuse("biases", "batch norm removes a convolution's bias and adds its own shift")
    if config.biases and scheme.fixup:
        refuse("biases", "Fixup has scalar biases in their place (component 4)")
    if config.scalar_bias and not scheme.scalar_bias_allowed:
        refuse("scalar_bias", f"it belongs to {_names(lambda s: s.scalar_bias_allowed)}")
    if config.scalar_bias and not architecture.post_activation:
        refuse("scalar_bias", "it sits between merge and ReLU, which only resnet*_v1 has")
    if config.fixup_components is not None and not scheme.fixup:
        refuse("fixup_components", f"they belong to {_names(lambda s: s.fixup)}")
    if config.classifier_init is not None and scheme.fixup:
        refuse("classifier_init", "Fixup starts the classifier at zero (component 1)")
    if config.projection is not None and architecture.post_activation:
        refuse("projection", "it chooses between x and relu(x), which only pre-activation networks have")


def _names(belongs: Callable[[Scheme], bool]) -> str:
    return " and ".join(scheme.name for scheme in SCHEMES.values() if belongs(scheme))


def _fixup_components(config: ModelConfig, scheme: Scheme) -> frozenset[FixupComponent]:
    if not scheme.fixup:
        return frozenset()
    return frozenset(FIXUP_COMPONENTS if config.fixup_components is None else config.fixup_components)


def _alpha(config: ModelConfig, scheme: Scheme, num_blocks: int) -> float:
    if config.alpha is None:
        return 1.0 if scheme.alpha is None else scheme.alpha
    return 1 / math.sqrt(num_blocks) if config.alpha == "1/sqrt(d)" else config.alpha
