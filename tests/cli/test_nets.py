"""The command line around the networks: what it prints, its exit codes, and that help costs no torch."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from skipinit import ModelConfig, __version__, list_models, list_schemes
from skipinit.cli import main
from skipinit.cli.app import _COMMANDS
from skipinit.cli.flags import AxisFlags, NetworkFlags
from skipinit.sweeping.grid import AXES

Printed = pytest.CaptureFixture[str]


def test_version(capsys: Printed) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"skipinit {__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["schemes"], ["models"]])
def test_help_and_lists_do_not_import_torch(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom skipinit.cli import main\n"
        f"try: main({arguments!r})\nexcept SystemExit: pass\n"
        "print('torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "False"


@pytest.mark.parametrize(
    "command",
    ["", *(command.__name__ for command in _COMMANDS), "store merge", "store export", "store import"],
)
def test_help_fits_80_columns(command: str, capsys: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal breaks longer lines inside of words. The usage line is tyro's."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as caught:
        main([*command.split(), "--help"])
    assert caught.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line) > 80 and not line.startswith("usage:")] == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "PASSIVE"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE"),
        ({"OMP_NUM_THREADS": "2"}, None),
    ],
)
def test_waiting_threads_leave_their_core_unless_told_otherwise(
    given: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_WAIT_POLICY", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "")  # so that what it was comes back
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    main(["schemes"])
    assert os.environ.get("OMP_WAIT_POLICY") == expected


def test_models_and_schemes_as_json(capsys: Printed) -> None:
    assert main(["models", "wrn16*", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == ["wrn16_2", "wrn16_4"]
    assert main(["schemes", "--json"]) == 0
    assert [scheme["name"] for scheme in json.loads(capsys.readouterr().out)] == list_schemes()


def test_every_listed_name_is_shown(capsys: Printed) -> None:
    assert main(["models"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in list_models())


def test_describe_counts_what_the_equations_say(capsys: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    """WRN-16-2: 6 blocks of two 3x3 convolutions, 16 -> 32 -> 64 -> 128 channels, no norm, a scalar each."""
    assert main(["describe", "wrn16_2", "--scheme", "skipinit", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["num_blocks"], found["norms"], found["branch_scalars"]) == (6, 0, 6)
    pairs = [(16, 32), (32, 32), (32, 64), (64, 64), (64, 128), (128, 128)]
    weights = sum(9 * c * k + 9 * k * k + (c * k if c != k else 0) for c, k in pairs) + 9 * 3 * 16 + 128 * 10
    assert found["l2_parameters"] == weights
    assert found["parameters"] == weights + 10 + 6
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["describe", "wrn16_2", "--scheme", "skipinit"]) == 0
    assert "skip + alpha * branch" in capsys.readouterr().out


def test_describe_takes_the_number_of_blocks_of_a_theory_network(capsys: Printed) -> None:
    """A dense layer from 100 inputs to 1000 units, then x + W x, without biases."""
    for arguments, blocks in (([], 100), (["--blocks", "5"], 5)):
        assert main(["describe", "fc_linear", *arguments, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["num_blocks"], found["parameters"]) == (blocks, 100 * 1000 + blocks * 1000**2)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["describe", "wrn17_2"], "wrn17_2: depth 17 is not 6m + 4; the nearest are wrn16_2 and wrn22_2"),
        (["describe", "wrm16_2"], "did you mean wrn16_2"),
        (["describe", "wrn16_2", "--scheme", "skipint"], "did you mean skipinit"),
        (["describe", "wrn16_2", "--scheme", "skipinit", "--alpha", "x"], "it must be a finite number"),
        (["describe", "wrn16_2", "--num-classes", "0"], "num_classes 0 is not allowed"),
        (["describe", "wrn16_2", "--blocks", "3"], "--blocks belongs to the theory networks"),
        (["describe", "fc_linear", "--scheme", "none"], "--scheme: not for fc_linear, a theory network"),
        (["describe", f"wrn16_{10**20}"], "is not known"),
        (["train", "fc_linear", "--data", "gaussian"], "fc_linear is a theory network"),
        (["models", "vgg*"], "no listed model matches"),
        (["clams", "results"], "command 'clams' is not known; did you mean claims?"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_two(arguments: list[str], says: str, capsys: Printed) -> None:
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("skipinit: ")
    assert says in printed.err
    assert printed.err.count("\n") == 1


def test_an_unknown_flag_is_a_usage_error_explained_by_the_commands_own_flags(capsys: Printed) -> None:
    mistakes = (
        ["--colour"],
        ["describe", "wrn16_2", "--colour", "red"],
        ["describe"],
        ["claims", "--jsn", "x"],
    )
    for arguments in mistakes:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
    shown = capsys.readouterr().err.rpartition("Unrecognized options: --jsn")[2]
    assert "--json" in shown
    assert "skipinit claims --help" in shown
    assert "describe" not in shown


@pytest.mark.parametrize("command", ["models", "schemes", "schemes --json", "describe wrn16_2"])
def test_a_reader_of_the_output_that_leaves_is_no_failure(command: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer) as output:
        done = subprocess.run(
            [sys.executable, "-m", "skipinit", *command.split()], stdout=output, stderr=subprocess.PIPE
        )
    assert (done.returncode, done.stderr) == (0, b"")


def test_flags_cover_every_option_and_every_axis() -> None:
    options = {field.name for field in dataclasses.fields(ModelConfig)} - {"name"}
    flags = {field.name for field in dataclasses.fields(NetworkFlags)}
    assert {flag for flag in flags if not flag.startswith("no_")} == options
    assert {flag for flag in flags if flag.startswith("no_")} == {"no_biases", "no_scalar_bias"}
    axes = {field.name for field in dataclasses.fields(AxisFlags)}
    assert axes == AXES.keys() - {"model"}, "the model is positional"


def test_an_interrupt_in_a_destructor_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python itself would report and ignore it."""

    class Interrupted:
        def __del__(self) -> None:
            raise KeyboardInterrupt

    def command(_: object) -> int:
        Interrupted()
        time.sleep(5)
        return 0

    monkeypatch.setattr("skipinit.cli.app.run", command)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        assert main(["models"]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "skipinit: interrupted\n"
