"""Reading and printing values: 2^-2, 90s, 8x3x224x224, `true`.

Nothing here imports torch, so that the command line can parse arguments without it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from .errors import ConfigError


def read_value(name: str, value: object, hint: Any) -> Any:
    """Convert a text or a value to the type `hint`, or raise ConfigError.

    Args:
        name: of the option, for the error.
        value: a text such as `2^-2`, or a value from Python or TOML.
        hint: the type of an option.
    """
    return _first_that_fits(name, value, hint, "", _read_text if isinstance(value, str) else _check)


def check_value(name: str, value: object, hint: Any, within: str) -> Any:
    """Convert a value to the type `hint`: 1 and 1.0 are the same number, "1" is not a number.

    `within` is the allowed range, for the error.
    """
    return _first_that_fits(name, value, hint, within, _check)


def _first_that_fits(
    name: str, value: object, hint: Any, within: str, convert: Callable[[Any, Any], object]
) -> Any:
    for kind in kinds_of(hint):
        try:
            return convert(kind, plain(value))
        except (ValueError, OverflowError):
            continue
    raise not_allowed(name, value, hint, within)


def plain(value: Any) -> Any:
    """Python's numbers and lists in place of those of NumPy and torch, such as `numpy.logspace` makes."""
    return value.tolist() if hasattr(value, "tolist") else value


def not_allowed(name: str, value: object, hint: Any, within: str) -> ConfigError:
    """The error for a value of the wrong type or out of range; it says what is allowed."""
    kinds = [kind for kind in kinds_of(hint) if kind is not NoneType]
    allowed = " or ".join(_WORDS.get(kind) or _describe(kind) for kind in kinds)
    return ConfigError(f"{name} {value!r} is not allowed; it must be {allowed}{within}")


@cache
def kinds_of(hint: Any) -> tuple[Any, ...]:
    """The members of a union type; str comes last, because every text is a str."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return tuple(sorted(kinds, key=lambda kind: kind is str))


_WORDS: dict[Any, str] = {
    int: "a whole number", float: "a finite number", bool: "true or false", str: "text", NoneType: "none",
}  # fmt: skip


def _describe(kind: Any) -> str:
    if get_origin(kind) is tuple:
        *most, last = map(str, get_args(get_args(kind)[0]))
        return f"a tuple out of {', '.join(most)} and {last}"
    choices = get_args(kind)
    return f'"{choices[0]}"' if len(choices) == 1 else f"one of {', '.join(choices)}"


def _read_text(kind: Any, text: str) -> object:
    """Parse `text` as a `kind`; raise ValueError if it is not one."""
    text = text.strip()
    if kind in (int, float):
        return _check(kind, number_of(text))
    if kind is bool and text in ("true", "false"):
        return text == "true"
    if kind is NoneType and text == "none":
        return None
    if get_origin(kind) is tuple:
        return _check(kind, [number_of(part) for part in text.split("+")])
    return _check(kind, text)


def _check(kind: Any, value: object) -> object:
    """Convert `value` to a `kind`; raise ValueError if it is not one."""
    whole = isinstance(value, int) and not isinstance(value, bool)  # True is no number
    if kind is int and whole and -(2**63) <= value < 2**63:  # type: ignore[operator]  # torch has 64-bit integers
        return value
    if kind is float and (whole or isinstance(value, float)) and math.isfinite(number := float(value)):  # type: ignore[arg-type]
        return number + 0.0  # -0.0 becomes 0.0: they are equal, so they must look equal
    if kind in (bool, str, NoneType) and isinstance(value, kind) and value != "":
        return value
    if get_origin(kind) is Literal and (whole or isinstance(value, str)) and value in get_args(kind):
        return value
    if get_origin(kind) is tuple and isinstance(value, list | tuple):
        return tuple(_check(get_args(kind)[0], part) for part in value)
    raise ValueError(value)


def number_of(text: str) -> int | float:
    """Parse a decimal number or 2^n; raise ValueError otherwise."""
    if power := re.fullmatch(r"2\^(-?\d{1,4})", text):
        exponent = int(power[1])
        return 2**exponent if exponent >= 0 else math.ldexp(1.0, exponent)
    return int(text) if re.fullmatch(r"[+-]?\d{1,18}", text) else float(text)


def read_seconds(text: str) -> float:
    """A time limit: 90s, 9m, 2h."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h)?", text)
    if found is None:
        raise ConfigError(f"time limit {text!r} is not allowed; write it as 90s, 9m or 2h")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2] or "s"]


def read_shape(text: str) -> tuple[int, ...]:
    """The shape of a batch: 8x3x224x224."""
    sizes = text.lower().split("x")
    if not all(re.fullmatch(r"0*[1-9][0-9]{0,17}", size) for size in sizes):  # below 2^63, as torch counts
        raise ConfigError(f"--input {text!r} is not a shape; write it like 8x3x224x224")
    return tuple(int(size) for size in sizes)


def check_seed(name: str, seed: object) -> int:
    """A seed that torch's generators take."""
    if type(seed) is not int or not -(2**63) <= seed < 2**64:
        raise ConfigError(f"{name} {seed!r} is not allowed; it must be a whole number of at most 64 bits")
    return seed


def value_text(value: object) -> str:
    """The value of an option as it can be given: none, true, 1+2."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return "+".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def rate_text(lr: float) -> str:
    """A learning rate as the paper writes it, such as 2^-2 for a power of two."""
    mantissa, exponent = math.frexp(lr)
    return f"2^{exponent - 1}" if mantissa == 0.5 else f"{lr:g}"


def rates_text(rates: Sequence[float]) -> str:
    """A short text for a set of rates: how many, the smallest and the largest."""
    if len(rates) < 2:
        return f"rate {', '.join(map(rate_text, rates))}" if rates else "rates not known"
    return f"{len(rates)} rates from {rate_text(min(rates))} to {rate_text(max(rates))}"


def duration_text(seconds: float) -> str:
    """45 s, 3 min 20 s, 2 h 5 min, 12 d."""
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours / 24:,.0f} d"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole} s" if minutes else f"{whole} s"


def utc_now() -> str:
    """The current time in UTC, in ISO format."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def bytes_text(count: int) -> str:
    """A number of bytes in GiB or MiB."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def count_text(number: int, what: str) -> str:
    """1 epoch, 2 epochs."""
    return f"{number:,} {what}{'s' * (number != 1)}"
