"""Which schemes a model can be converted to: those of the paper that normalize nothing. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigError, unknown_name
from ..nets.schemes import SCHEMES, Scheme


@dataclass(frozen=True)
class Plan:
    """A scheme with its options settled."""

    scheme: Scheme
    keep_function: bool
    alpha: float
    biases: bool
    dropout: float
    seed: int | None


CONVERSIONS = tuple(scheme.name for scheme in SCHEMES.values() if not scheme.has_norm)


def find_scheme(name: str, keep_function: bool) -> Scheme:
    """The scheme of that name; refused if it has norms, or would change a function that is to be kept."""
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
