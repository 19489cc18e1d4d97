"""Which part of a model a conversion may change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn

from ..errors import ConfigError

Choice = str | type[nn.Module]
"""A module by its qualified name, in which * stands for anything, or modules by their type."""


@dataclass(frozen=True)
class Selection:
    """Everything outside `exclude` and, if `only` names something, inside it; with all that lies within."""

    model: nn.Module
    exclude: tuple[Choice, ...]
    only: tuple[Choice, ...]

    def __contains__(self, name: str) -> bool:
        outwards = list(_outwards(name))
        if any(self._matches(path, self.exclude) for path in outwards):
            return False
        return not self.only or any(self._matches(path, self.only) for path in outwards)

    def _matches(self, name: str, choices: Sequence[Choice]) -> bool:
        return any(matches(self.model, name, choice) for choice in choices)


def matches(model: nn.Module, name: str, choice: Choice) -> bool:
    """Whether the module of that name is meant."""
    if isinstance(choice, str):
        return fnmatchcase(name, choice)
    return isinstance(model.get_submodule(name), choice)


def make_selection(
    model: nn.Module, exclude: Choice | Sequence[Choice], only: Choice | Sequence[Choice]
) -> Selection:
    """Check that each choice means something."""
    names = [name for name, _ in model.named_modules()]
    chosen = []
    for option, given in (("exclude", exclude), ("only", only)):
        choices = (given,) if isinstance(given, (str, type)) else tuple(given)
        for choice in choices:
            if not isinstance(choice, str) and not (
                isinstance(choice, type) and issubclass(choice, nn.Module)
            ):
                raise ConfigError(f"{option} {choice!r} is neither the name nor the type of a module")
            if not any(matches(model, name, choice) for name in names):
                what = repr(choice) if isinstance(choice, str) else choice.__name__
                raise ConfigError(f"{option} {what} matches no module of {type(model).__name__}")
        chosen.append(choices)
    return Selection(model, *chosen)


def _outwards(name: str) -> Iterator[str]:
    """The module itself and all around it, up to the model."""
    while name:
        yield name
        name = name.rpartition(".")[0]
    yield ""
