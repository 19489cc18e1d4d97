"""What a conversion is asked to do: its options, and which part of the model it may change.

Options are checked before anything is loaded or run, so nothing here imports torch until there is a model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal, Union, get_args

from ..errors import ConfigError, unknown_name
from ..nets.schemes import SCHEMES, Scheme

if TYPE_CHECKING:
    from torch import nn

ClassifierStart = Literal["small", "he", "zero"]
Choice = Union[str, "type[nn.Module]"]
"""A module by its qualified name, in which * matches any text, or modules by their type."""


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
    classifier_init: ClassifierStart = "small",
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
    if not (seed is None or (type(seed) is int and -(2**63) <= seed < 2**64)):
        raise ConfigError(f"seed {seed!r} is not allowed; it must be a whole number of at most 64 bits")
    starts = get_args(ClassifierStart)
    if classifier_init not in starts:
        raise ConfigError(
            f"classifier_init {classifier_init!r} is not allowed; it must be one of {', '.join(starts)}"
        )
    if keep_function or found.fixup or found.merge != "scale":
        classifier_init = (
            "he"  # The classifier is kept, or Fixup zeroes it, or the scheme is for comparison only.
        )
    start = 1.0 if keep_function or found.alpha is None else found.alpha
    biased = found.conv_biases != "never" if biases is None else biases
    first = start if alpha is None else float(alpha)
    return Plan(found, keep_function, first, biased, dropout, seed, classifier_init)


def _find_scheme(name: str, keep_function: bool) -> Scheme:
    """The scheme of that name, if it has no norms and does not change a function that is to be kept."""
    if name not in CONVERSIONS:
        if isinstance(name, str) and name in SCHEMES:
            raise ConfigError(f"scheme {name!r} has norms; a model can become {', '.join(CONVERSIONS)}")
        raise unknown_name("scheme", str(name), CONVERSIONS)
    scheme = SCHEMES[name]
    if keep_function and _changes_function(scheme):
        kept = ", ".join(n for n in CONVERSIONS if not _changes_function(SCHEMES[n]))
        raise ConfigError(f"scheme {name!r} changes what a model computes; keep_function goes with {kept}")
    return scheme


def _changes_function(scheme: Scheme) -> bool:
    return scheme.fixup or scheme.merge == "divide-sqrt2"


@dataclass(frozen=True)
class Selection:
    """The modules that may change: outside of `exclude` and, if `only` is given, inside of `only`."""

    model: nn.Module
    exclude: tuple[Choice, ...]
    only: tuple[Choice, ...]

    def __contains__(self, name: str) -> bool:
        names = list(outwards(name))
        return not self._matched(names, self.exclude) and (not self.only or self._matched(names, self.only))

    def _matched(self, names: Sequence[str], choices: Sequence[Choice]) -> bool:
        return any(_matches(self.model, name, choice) for name in names for choice in choices)


def _matches(model: nn.Module, name: str, choice: Choice) -> bool:
    """Whether the choice is, or includes, the module of that name."""
    if isinstance(choice, str):
        return fnmatchcase(name, choice)
    return isinstance(model.get_submodule(name), choice)


def make_selection(
    model: nn.Module, exclude: Choice | Sequence[Choice], only: Choice | Sequence[Choice]
) -> Selection:
    """The selection; raises if a choice matches no module."""
    from torch import nn

    names = [name for name, _ in model.named_modules()]
    chosen = []
    for option, given in (("exclude", exclude), ("only", only)):
        choices = as_choices(given)
        for choice in choices:
            if not isinstance(choice, str) and not (
                isinstance(choice, type) and issubclass(choice, nn.Module)
            ):
                raise ConfigError(f"{option} {choice!r} is neither the name nor the type of a module")
            if not any(_matches(model, name, choice) for name in names):
                what = repr(choice) if isinstance(choice, str) else choice.__name__
                raise ConfigError(f"{option} {what} matches no module of {type(model).__name__}")
        chosen.append(choices)
    return Selection(model, *chosen)


def as_choices(given: object) -> tuple[Any, ...]:
    """The values of an option that takes one value or several; the caller checks them."""
    return tuple(given) if isinstance(given, Iterable) and not isinstance(given, (str, type)) else (given,)


def outwards(name: str) -> Iterator[str]:
    """The name of the module and of each module around it, up to the model."""
    while name:
        yield name
        name = name.rpartition(".")[0]
    yield ""
