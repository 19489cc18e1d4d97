"""The options of a conversion, checked before anything is loaded or run. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from ..errors import ConfigError, unknown_name
from ..nets.schemes import SCHEMES, Scheme

ClassifierStart = Literal["small", "he", "zero"]


@dataclass(frozen=True)
class Plan:
    """A scheme with its options."""

    scheme: Scheme
    keep_function: bool
    alpha: float
    """Start of the branch scalars."""
    biases: bool
    """Whether every convolution gets a bias."""
    dropout: float
    seed: int | None
    classifier_init: ClassifierStart


CONVERSIONS = tuple(scheme.name for scheme in SCHEMES.values() if not scheme.has_norm)
"""The schemes that a model can be converted to: those of the paper without normalization."""


def make_plan(
    scheme: str,
    keep_function: bool,
    alpha: float | None,
    biases: bool | None,
    dropout: float,
    seed: int | None,
    classifier_init: str = "small",
) -> Plan:
    """The plan for these options; the defaults of `alpha` and `biases` are those of the scheme."""
    found = _find_scheme(scheme, keep_function)
    if alpha is not None:
        if not found.alpha_is_free or keep_function:
            why = "with keep_function it is 1" if found.alpha_is_free else "it belongs to SkipInit"
            raise ConfigError(f"alpha {alpha} is not allowed for scheme {scheme!r}; {why}")
        if not (isinstance(alpha, (int, float)) and math.isfinite(alpha)):
            raise ConfigError(f"alpha {alpha!r} is not allowed; it must be a finite number")
    if not (biases is None or isinstance(biases, bool)):
        raise ConfigError(f"biases {biases!r} is not allowed; it must be True, False or None")
    if not (isinstance(dropout, (int, float)) and 0 <= dropout < 1):
        raise ConfigError(f"dropout {dropout!r} is not allowed; it must be in [0, 1)")
    if seed is not None and type(seed) is not int:
        raise ConfigError(f"seed {seed!r} is not allowed; it must be a whole number")
    starts: tuple[ClassifierStart, ...] = get_args(ClassifierStart)
    begin = next((name for name in starts if name == classifier_init), None)
    if begin is None:
        raise ConfigError(
            f"classifier_init {classifier_init!r} is not allowed; it must be {', '.join(starts)}"
        )
    if keep_function or found.fixup or found.merge != "scale":
        begin = "he"  # Kept, zero by Fixup, or for comparison alone.
    start = 1.0 if keep_function or found.alpha is None else found.alpha
    biased = found.conv_biases != "never" if biases is None else biases
    first = start if alpha is None else float(alpha)
    return Plan(found, keep_function, first, biased, dropout, seed, begin)


def _find_scheme(name: str, keep_function: bool) -> Scheme:
    """The scheme of that name, if it has no norms and does not change a function that is to be kept."""
    if name not in CONVERSIONS:
        if name in SCHEMES:
            raise ConfigError(f"scheme {name!r} has norms; a model can become {', '.join(CONVERSIONS)}")
        raise unknown_name("scheme", name, CONVERSIONS)
    scheme = SCHEMES[name]
    if keep_function and _changes_function(scheme):
        kept = ", ".join(n for n in CONVERSIONS if not _changes_function(SCHEMES[n]))
        raise ConfigError(f"scheme {name!r} changes what a model computes; keep_function goes with {kept}")
    return scheme


def _changes_function(scheme: Scheme) -> bool:
    return scheme.fixup or scheme.merge == "divide-sqrt2"
