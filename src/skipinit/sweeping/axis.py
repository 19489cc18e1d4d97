"""What an axis may be and what its text means: names, types, values.

An axis is a field of `TrainConfig` or of its network under its own name (the network's name is `model`), or
`depth`, the n of wrn{n}_{k}. Its values are a list, one value, or a line of text:

    skipinit,batchnorm      these values
    2^-6..2^0               powers of two, both ends included
    0..6                    whole numbers, both ends included
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ..config import ModelConfig, TrainConfig
from ..errors import ConfigError

MAX_TRIALS = 1_000_000


def _axis_types() -> dict[str, Any]:
    model, train = get_type_hints(ModelConfig), get_type_hints(TrainConfig)
    del train["model"]
    # The seed is the slowest axis: a sweep cut short has every cell once before it has any cell twice.
    return {"seed": train.pop("seed"), "model": model.pop("name"), "depth": int, **model, **train}


AXES: dict[str, Any] = _axis_types()
"""Every axis and the type of its values, slowest first: the order of trials."""


def axis_values(axis: str, given: object) -> list[Any]:
    """The values that a text, a list or a lone value stands for, each of the axis's type."""
    if isinstance(given, str):
        items = [item for part in given.split(",") for item in _items(axis, part.strip())]
    elif isinstance(given, Sequence):
        items = list(given)
    else:
        items = [given]
    if not items or "" in items:
        raise ConfigError(f"axis {axis}: {given!r} has an empty place; give one value or more")
    return [_convert(axis, item) for item in items]


def _items(axis: str, text: str) -> Sequence[object]:
    """The numbers of a range, or else the text itself."""
    span = re.fullmatch(r"(2\^)?(-?\d{1,9})\.\.(2\^)?(-?\d{1,9})", text)
    if span is None:
        return [text]
    first, last = int(span[2]), int(span[4])
    if span[1] != span[3]:
        raise ConfigError(f"axis {axis}: {text} mixes 2^n with n; write 2^-6..2^0 or 0..6")
    if first > last:
        raise ConfigError(f"axis {axis}: {text} is empty; the smaller end comes first")
    if last - first >= MAX_TRIALS:
        raise ConfigError(f"axis {axis}: {text} has {last - first + 1:,} values; at most {MAX_TRIALS:,}")
    numbers = range(first, last + 1)
    return [f"2^{exponent}" for exponent in numbers] if span[1] else numbers


def _convert(axis: str, value: object) -> Any:
    """`value` in the axis's one type: equal values must have equal identities."""
    hint = AXES[axis]
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    for kind in sorted(kinds, key=lambda kind: kind is str):  # text takes anything, so it is tried last
        try:
            return _read(kind, value.strip() if isinstance(value, str) else value)
        except (ValueError, OverflowError):
            continue
    raise ConfigError(f"axis {axis}: {value!r} is not {' or '.join(_describe(kind) for kind in kinds)}")


def _read(kind: Any, value: object) -> object:
    """`value` as a `kind`; ValueError where it is none."""
    if kind in (int, float):
        return _read_number(kind, value)
    if get_origin(kind) is tuple:
        parts = value.split("+") if isinstance(value, str) else value
        if isinstance(parts, list | tuple):
            return tuple(_read_number(int, part) for part in parts)
    if get_origin(kind) is Literal and value in get_args(kind):
        return value
    if kind is str and isinstance(value, str) and value:
        return value
    if kind is bool and value in (True, False, "true", "false") and isinstance(value, bool | str):
        return value in (True, "true")
    if kind is NoneType and value in (None, "none"):
        return None
    raise ValueError(value)


def _read_number(kind: type[int] | type[float], value: object) -> int | float:
    number = number_of(value) if isinstance(value, str) else value
    if isinstance(number, int) and not isinstance(number, bool):
        return kind(number)
    if isinstance(number, float) and kind is float and math.isfinite(number):
        return number + 0.0  # -0.0 becomes 0.0: they are equal, so their identities must be
    raise ValueError(value)


def number_of(text: str) -> int | float:
    """A decimal number, or 2^n; ValueError where it is neither."""
    if power := re.fullmatch(r"2\^(-?\d{1,4})", text):
        exponent = int(power[1])
        return 2**exponent if exponent >= 0 else math.ldexp(1.0, exponent)
    return int(text) if re.fullmatch(r"[+-]?\d{1,18}", text) else float(text)


def _describe(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", NoneType: "none"}
    return names.get(kind, "whole numbers joined by +")
