"""Flags that several commands share. Those of networks and runs are made from the fields of their configs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, make_dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import tyro

from ..config import ModelConfig, TrainConfig, option_default, option_help, option_types
from ..errors import ConfigError
from ..notation import kinds_of, read_value


def given(metavar: str, help: str | None = None) -> Any:
    """A flag whose help shows no default; the text says what happens without it."""
    return tyro.conf.arg(metavar=metavar, help=help, help_behavior_hint="")


Json = Annotated[bool, tyro.conf.arg(name="json", help="Print JSON.", help_behavior_hint="")]
Csv = Annotated[bool, tyro.conf.arg(name="csv", help_behavior_hint="")]
Model = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
Count = Annotated[int | None, given("INT")]
Flag = Annotated[bool, tyro.conf.arg(help_behavior_hint="")]


def refuse_both(as_json: bool, as_csv: bool) -> None:
    """Raise if both forms of output were asked for."""
    if as_json and as_csv:
        raise ConfigError("--json and --csv exclude each other; give one")


@dataclass(frozen=True)
class OptionFlags:
    """Options as the user wrote them: text, or None if not given; a boolean has the flags `x` and `no_x`."""

    def of(self, kind: type[Any]) -> dict[str, Any]:
        """The given options of a config, converted to their types."""
        hints = option_types(kind)
        found = {name: self._value(name) for name in hints}
        return {
            name: read_value(f"--{_dashed(name)}", value, hints[name])
            for name, value in found.items()
            if value is not None
        }

    def refuse(self, name: str, why: str) -> None:
        """Raise if an option of a network was given to something that has none."""
        if options := self.of(ModelConfig):
            flags = ", ".join(f"--{_dashed(option)}" for option in options)
            raise ConfigError(f"{flags}: not for {name}, {why}")

    def texts(self) -> dict[str, str]:
        """The given options, as text."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def _value(self, name: str) -> Any:
        value, opposite = getattr(self, name, None), getattr(self, f"no_{name}", None)
        if value and opposite:
            raise ConfigError(f"--{_dashed(name)} and --no-{_dashed(name)} exclude each other; give one")
        if opposite:
            return False
        return None if value is False else value  # an empty text is a mistake, not an option left out


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _make_flags(name: str, options: Iterator[tuple[str, Any, str, Any]], axes: bool = False) -> Any:
    """A dataclass with a flag for each option; with `axes`, each flag takes a list of values."""
    fields: list[Any] = []
    for option, hint, help, default in options:
        if axes or bool not in kinds_of(hint):
            metavar = "VALUES" if axes else _metavar(hint)
            fields.append((option, Annotated[str | None, given(metavar, help)], field(default=None)))
            continue
        fields.append((option, Annotated[bool, given("", help)], field(default=False)))
        if default is not False:
            words = f"The opposite of --{_dashed(option)}."
            fields.append((f"no_{option}", Annotated[bool, given("", words)], field(default=False)))
    return make_dataclass(name, fields, bases=(OptionFlags,), frozen=True)


def _options(kind: type[Any], left_out: Sequence[str]) -> Iterator[tuple[str, Any, str, Any]]:
    for name, hint in option_types(kind).items():
        if name not in left_out:
            yield name, hint, option_help(kind, name), option_default(kind, name)


def _metavar(hint: Any) -> str:
    kinds = kinds_of(hint)
    for kind in kinds:
        if get_origin(kind) is Literal and len(get_args(kind)) > 1:
            return f"{{{','.join(get_args(kind))}}}"
    return "INT" if int in kinds else "NUMBER" if float in kinds else "TEXT" if str in kinds else "INT+INT"


if TYPE_CHECKING:

    class NetworkFlags(OptionFlags):
        """The options of `ModelConfig`."""

    class RunFlags(OptionFlags):
        """The options of `ModelConfig` and `TrainConfig`."""

    class AxisFlags(OptionFlags):
        """Lists of values for these options."""

else:
    _NETWORK, _RUN = [*_options(ModelConfig, ["name"])], [*_options(TrainConfig, ["model", "data"])]
    _SWEPT = [
        ("depth", int, "Depth n of the Wide-ResNets wrn{n}_{k}.", None),
        *_NETWORK,
        *_options(TrainConfig, ["model"]),
    ]
    NetworkFlags = _make_flags("NetworkFlags", _NETWORK)
    RunFlags = _make_flags("RunFlags", [*_NETWORK, *_RUN])
    AxisFlags = _make_flags("AxisFlags", _SWEPT, axes=True)
