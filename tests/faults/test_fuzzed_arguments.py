"""Odd values for every flag and every argument: an exit code and one line, never another exception."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

import skipinit
from skipinit.cli import main
from skipinit.config import ModelConfig, TheoryConfig, TrainConfig
from skipinit.errors import SkipinitError
from support.torture import Torture

fuzzed = settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))


def fuzz(torture: Torture, check: Callable[..., None], **strategies: st.SearchStrategy[Any]) -> None:
    """Try `check` with a few dozen values at a time; each case draws its own."""
    for case in torture.cases(1):
        seed(case)(fuzzed(given(**strategies)(check)))()
        torture.count("fuzzed calls", fuzzed.max_examples)


ODD_TEXTS = st.sampled_from(
    ["", " ", "999999999999", "9" * 18,
     "nan", "inf", "-inf", "1e309", "1e-400", "-1", "0", "2^-9999", "2^99999", "2^", "9" * 400, "0x10",
     "1_000", "true", "None", "[]", "{}", "1,2", "1..", "..", "../..", "~", "a\x00b"[:1], "é", "𝟏", "\u202e1",
     "\x1b[31m", "<script>", "'; DROP TABLE trials; --", "%s", "{0}", "--", "-h=", "1+2", "1/sqrt(d)"]
)  # fmt: skip
TEXTS = st.one_of(ODD_TEXTS, st.text(max_size=20).filter(lambda text: "\x00" not in text))
VALUES: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(), st.sampled_from([10**12, 10**18, -(2**63), 2**64]), st.floats(),
    TEXTS, st.binary(max_size=4), st.lists(st.integers()),
    st.tuples(st.integers()), st.dictionaries(TEXTS, st.integers(), max_size=2), st.complex_numbers(),
    st.just(object()), st.just(int),
)  # fmt: skip

COMMANDS = {
    "describe": (["describe", "wrn10_1"], ModelConfig),
    "sweep": (["sweep", "wrn10_1", "--dry-run", "--out", "/dev/null/never"], TrainConfig),
    "train": (["train", "wrn10_1", "--out", "/dev/null/never"], TrainConfig),
}


def flags_of(kind: type[Any]) -> list[str]:
    return [
        f"--{field.name.replace('_', '-')}" for field in fields(kind) if field.name not in ("name", "model")
    ]


@pytest.mark.parametrize("command", COMMANDS)
def test_flags(command: str, torture: Torture, capsys: pytest.CaptureFixture[str]) -> None:
    words, kind = COMMANDS[command]
    pairs = st.tuples(st.sampled_from(flags_of(kind) + flags_of(ModelConfig)), TEXTS)

    def check(given_flags: list[tuple[str, str]]) -> None:
        arguments = [*words, *(word for pair in given_flags for word in pair)]
        capsys.readouterr()
        try:
            code = main(arguments)
        except SystemExit as ended:  # the parser's own way
            code = ended.code
        shown = capsys.readouterr()
        assert code in (0, 1, 2), arguments
        assert "Traceback" not in shown.err + shown.out, arguments
        if code and shown.err.startswith("skipinit: "):
            assert re.fullmatch(r"skipinit: [^\x00-\x1f\x7f]+\n", shown.err), (arguments, shown.err)

    fuzz(torture, check, given_flags=st.lists(pairs, max_size=4))


def some_fields(kind: type[Any]) -> st.SearchStrategy[dict[str, Any]]:
    names = [field.name for field in fields(kind)]
    return st.dictionaries(st.sampled_from(names), VALUES, max_size=2)


@pytest.mark.parametrize("kind", [ModelConfig, TheoryConfig, TrainConfig])
def test_fields(kind: type[Any], torture: Torture) -> None:
    required = {"name": "wrn10_1"} if kind is not TrainConfig else {
        "model": ModelConfig("wrn10_1"), "data": "digits", "lr": 0.1, "batch_size": 8, "epochs": 1,
    }  # fmt: skip

    def check(options: dict[str, Any]) -> None:
        try:
            config = kind(**{**required, **options})
        except SkipinitError as error:
            line = str(error)
        else:
            assert kind(**vars(config)) == config
            return
        assert "\n" not in line

    fuzz(torture, check, options=some_fields(kind))


def test_create_model(torture: Torture) -> None:
    def check(name: Any, options: dict[str, Any]) -> None:
        options.pop("name", None)
        try:
            skipinit.create_model(name if isinstance(name, str) else "wrn10_1", **options)
        except SkipinitError as error:
            line = str(error)
        else:
            return
        assert "\n" not in line

    fuzz(torture, check, name=VALUES, options=some_fields(ModelConfig))
