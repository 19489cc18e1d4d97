"""What a conversion is asked to do: its options, and which part of the model it may change.

Options are checked before anything is loaded or run, so nothing here imports torch until there is a model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
        require("alpha", alpha, is_number(alpha) and math.isfinite(alpha), "a finite number")
    require("biases", biases, biases is None or isinstance(biases, bool), "True, False or None")
    if biases is not None and keep_function:
        raise ConfigError(f"biases {biases} is not allowed with keep_function; folding adds those it needs")
    require("dropout", dropout, is_number(dropout) and 0 <= dropout < 1, "in [0, 1)")
    whole = type(seed) is int and -(2**63) <= seed < 2**64
    require("seed", seed, seed is None or whole, "a whole number of at most 64 bits")
    starts = get_args(ClassifierStart)
    require("classifier_init", classifier_init, classifier_init in starts, f"one of {', '.join(starts)}")
    if keep_function or found.fixup or found.merge != "scale":
        # The classifier is kept, or Fixup zeroes it, or the scheme is for comparison only.
        classifier_init = "he"
    start = 1.0 if keep_function or found.alpha is None else found.alpha
    return Plan(
        scheme=found,
        keep_function=keep_function,
        alpha=start if alpha is None else float(alpha),
        biases=found.conv_biases != "never" if biases is None else biases,
        dropout=dropout,
        seed=seed,
        classifier_init=classifier_init,
    )


def require(name: str, value: object, allowed: bool, what: str) -> None:
    """Raise if the value of an option is not allowed; `what` says which values are."""
    if not allowed:
        raise ConfigError(f"{name} {value!r} is not allowed; it must be {what}")


def is_number(value: object) -> bool:
    """Whether this is a number; True and False are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


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

    modules: Mapping[str, nn.Module]
    """The modules of the given model, by every name they have."""
    exclude: tuple[Choice, ...]
    only: tuple[Choice, ...]
    norms: tuple[type[nn.Module], ...]
    """The user's own types that only normalize."""

    def __contains__(self, name: str) -> bool:
        return not self._within(name, self.exclude) and (not self.only or self._within(name, self.only))

    def _within(self, name: str, choices: Sequence[Choice]) -> bool:
        return any(_matches(self.modules, around, choice) for around in outwards(name) for choice in choices)


def _matches(modules: Mapping[str, nn.Module], name: str, choice: Choice) -> bool:
    """Whether the choice is, or includes, the module of that name."""
    if isinstance(choice, str):
        return fnmatchcase(name, choice)
    return isinstance(modules.get(name), choice)


def make_selection(
    model: nn.Module,
    exclude: Choice | Sequence[Choice],
    only: Choice | Sequence[Choice],
    norms: type[nn.Module] | Sequence[type[nn.Module]],
) -> Selection:
    """The selection; raises if a choice matches no module, or if a norm is no type of module."""
    from torch import nn

    def is_type(choice: object) -> bool:
        return isinstance(choice, type) and issubclass(choice, nn.Module)

    modules = dict(model.named_modules(remove_duplicate=False))
    names = [name for name, _ in model.named_modules()]
    selection = Selection(modules, _as_tuple(exclude), _as_tuple(only), _as_tuple(norms))
    for option, choices in (("exclude", selection.exclude), ("only", selection.only)):
        for choice in choices:
            if not isinstance(choice, str) and not is_type(choice):
                raise ConfigError(f"{option} {choice!r} is neither the name nor the type of a module")
            if not any(_matches(modules, name, choice) for name in names):
                what = repr(choice) if isinstance(choice, str) else choice.__name__
                raise ConfigError(
                    f"{option} {what} matches no module of {type(model).__name__}; "
                    "print(model) shows names and types, * matches any text"
                )
    for kind in selection.norms:
        if not is_type(kind):
            raise ConfigError(f"norms {kind!r} is not a type of module; give classes: norms=(MyNorm,)")
    return selection


def _as_tuple(given: Any) -> tuple[Any, ...]:
    """The values of an option that takes one value or several."""
    return tuple(given) if isinstance(given, Iterable) and not isinstance(given, (str, type)) else (given,)


def outwards(name: str) -> Iterator[str]:
    """The name of the module and of each module around it, up to the model."""
    while name:
        yield name
        name = name.rpartition(".")[0]
    yield ""
