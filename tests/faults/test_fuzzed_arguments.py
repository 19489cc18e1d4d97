"""Odd values for every flag and every argument: an exit code and one line, never another exception.

`SKIPINIT_TORTURE=10000` tries so many; without it, a fixed few hundred.
"""

from __future__ import annotations

import os
import re
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import skipinit
from skipinit.cli import main
from skipinit.config import ModelConfig, TheoryConfig, TrainConfig
from skipinit.errors import SkipinitError

TRIES = int(os.environ.get("SKIPINIT_TORTURE", "60"))
fuzzed = settings(
    max_examples=TRIES,
    deadline=None,
    derandomize="SKIPINIT_TORTURE" not in os.environ,
    suppress_health_check=list(HealthCheck),
)

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
@fuzzed
@given(data=st.data())
def test_flags(command: str, data: st.DataObject, capsys: pytest.CaptureFixture[str]) -> None:
    words, kind = COMMANDS[command]
    flags = flags_of(kind) + flags_of(ModelConfig)
    given_flags = data.draw(st.lists(st.tuples(st.sampled_from(flags), TEXTS), max_size=4))
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


@pytest.mark.parametrize("kind", [ModelConfig, TheoryConfig, TrainConfig])
@fuzzed
@given(data=st.data())
def test_fields(kind: type[Any], data: st.DataObject) -> None:
    options = data.draw(
        st.dictionaries(st.sampled_from([field.name for field in fields(kind)]), VALUES, max_size=2)
    )
    required = {"name": "wrn10_1"} if kind is not TrainConfig else {
        "model": ModelConfig("wrn10_1"), "data": "digits", "lr": 0.1, "batch_size": 8, "epochs": 1,
    }  # fmt: skip
    try:
        config = kind(**{**required, **options})
    except SkipinitError as error:
        line = str(error)
    else:
        assert kind(**vars(config)) == config
        return
    assert "\n" not in line


@fuzzed
@given(
    name=VALUES,
    options=st.dictionaries(
        st.sampled_from([field.name for field in fields(ModelConfig)]), VALUES, max_size=2
    ),
)
def test_create_model(name: Any, options: dict[str, Any]) -> None:
    options.pop("name", None)
    try:
        skipinit.create_model(name if isinstance(name, str) else "wrn10_1", **options)
    except SkipinitError as error:
        line = str(error)
    else:
        return
    assert "\n" not in line
