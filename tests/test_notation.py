"""Numbers as users write and read them, each against its value by hand."""

from __future__ import annotations

import pytest

from skipinit.errors import ConfigError
from skipinit.notation import (
    bytes_text,
    check_seed,
    count_text,
    duration_text,
    number_of,
    rate_text,
    rates_text,
    read_seconds,
    read_shape,
    read_value,
    value_text,
)


@pytest.mark.parametrize(
    ("text", "number"),
    [("2^-2", 0.25), ("2^0", 1), ("2^10", 1024), ("-3", -3), ("+7", 7), ("1e-3", 0.001), ("0.5", 0.5)],
)
def test_a_number_is_a_decimal_or_a_power_of_two(text: str, number: float) -> None:
    assert number_of(text) == number
    assert type(number_of(text)) is type(number)


@pytest.mark.parametrize("text", ["3^2", "2^", "2^1.5", "2^-2 ", "--1", ""])
def test_other_text_is_no_number(text: str) -> None:
    with pytest.raises(ValueError, match="could not convert"):
        number_of(text)


@pytest.mark.parametrize(
    ("value", "hint", "read"),
    [
        ("2^-2", float, 0.25),
        (3, float, 3.0),
        ("4", int | None, 4),
        ("none", int | None, None),
        (" true ", bool, True),
        ("false", bool, False),
        ("-0.0", float, 0.0),
        ("1+3", tuple[int, ...], (1, 3)),
        (2**63 - 1, int, 2**63 - 1),
        (-(2**63), int, -(2**63)),
        ("7", float | str, 7.0),
        ("seven", float | str, "seven"),
    ],
)
def test_a_value_becomes_the_first_type_that_fits(value: object, hint: object, read: object) -> None:
    found = read_value("option", value, hint)
    assert (found, type(found), str(found)) == (read, type(read), str(read))


@pytest.mark.parametrize(
    ("value", "hint", "text"),
    [
        (None, int | None, "none"),
        (True, bool, "true"),
        (False, bool, "false"),
        ((1, 2), tuple[int, ...], "1+2"),
        (0.25, float, "0.25"),
        ("seven", float | str, "seven"),
    ],
)
def test_a_value_is_printed_as_it_can_be_given(value: object, hint: object, text: str) -> None:
    assert value_text(value) == text
    assert read_value("option", text, hint) == value


@pytest.mark.parametrize(
    ("value", "hint"),
    [("1.5", int), (True, int), (2**63, int), ("inf", float), ("nan", float), (1, bool), ("", str)],
)
def test_a_value_of_no_type_that_fits_is_refused(value: object, hint: object) -> None:
    with pytest.raises(ConfigError, match=r"^option .* is not allowed; it must be "):
        read_value("option", value, hint)


@pytest.mark.parametrize(
    ("text", "seconds"), [("45", 45), ("90s", 90), ("9m", 540), ("2h", 7200), ("1.5h", 5400), ("0.5m", 30)]
)
def test_a_time_limit_has_a_unit(text: str, seconds: float) -> None:
    assert read_seconds(text) == seconds


@pytest.mark.parametrize("text", ["2d", "h", "-1s", "1 h", ""])
def test_other_time_limits_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write it as 90s, 9m or 2h"):
        read_seconds(text)


def test_a_shape_has_an_x_between_its_sizes() -> None:
    assert read_shape("8x3x224X224") == (8, 3, 224, 224)
    assert read_shape("12") == (12,)
    for text in ("8x0", "8x", "-1x3", "8x3.5", "1" + "0" * 18):
        with pytest.raises(ConfigError, match="is not a shape"):
            read_shape(text)


def test_a_seed_has_at_most_64_bits() -> None:
    for seed in (0, 2**64 - 1, -(2**63)):
        assert check_seed("seed", seed) == seed
    for wrong in (2**64, -(2**63) - 1, True, 1.0, "1"):
        with pytest.raises(ConfigError, match="at most 64 bits"):
            check_seed("seed", wrong)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (45, "45 s"),
        (59.6, "1 min 0 s"),
        (200, "3 min 20 s"),
        (3599, "59 min 59 s"),
        (7500, "2 h 5 min"),
        (48 * 3600 - 1, "47 h 59 min"),
        (48 * 3600, "2 d"),
        (12 * 86400, "12 d"),
        (1500 * 86400, "1,500 d"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_rates() -> None:
    assert [rate_text(lr) for lr in (0.25, 1.0, 2.0, 0.3, 1e-7)] == ["2^-2", "2^0", "2^1", "0.3", "1e-07"]
    assert rates_text([]) == "rates not known"
    assert rates_text([0.5]) == "rate 2^-1"
    assert rates_text([0.5, 4.0, 0.1]) == "3 rates from 0.1 to 2^2"


def test_bytes_and_counts() -> None:
    assert [bytes_text(count) for count in (3 << 20, (1 << 30) - 1, 1 << 30, 5 << 29)] == [
        "3 MiB", "1024 MiB", "1.0 GiB", "2.5 GiB",
    ]  # fmt: skip
    assert [count_text(number, "epoch") for number in (0, 1, 2, 1000)] == [
        "0 epochs", "1 epoch", "2 epochs", "1,000 epochs",
    ]  # fmt: skip
