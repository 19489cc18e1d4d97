"""`skipinit probe`: what it prints, what it writes, its exit codes, and one clear line where it cannot."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys

import pytest

from skipinit.cli import main


def run(*arguments):
    return main(["probe", *arguments])


@pytest.mark.parametrize("command", ["probe", "convert"])
def test_help_warns_of_running_code_and_needs_no_torch(command):
    code = (
        "import sys; from skipinit.cli import main\n"
        f"try: main([{command!r}, '--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "runs that code, so name only code that you trust" in " ".join(done.stdout.split())


def test_table_and_verdict(capsys):
    assert run("wrn16_1", "--scheme", "batchnorm", "--batch-size", "4") == 0
    out = capsys.readouterr().out
    assert out.startswith("block ")
    assert out.count("blocks.") == 6 + 1  # six rows, and one is named in the verdict
    assert "Theory (normalized branches" in out


def test_json_csv_and_plot_of_one_seed_agree(capsys, tmp_path):
    arguments = ["wrn16_1", "--scheme", "skipinit", "--data", "digits", "--gradients", "--seed", "5"]
    picture = tmp_path / "new" / "folder" / "balance.svg"
    assert run(*arguments, "--json", "--plot", str(picture)) == 0
    loaded = json.loads(capsys.readouterr().out)
    assert loaded["model"] == "wrn16_1, skipinit"
    assert len(loaded["rows"]) == 6
    assert all(row["branch_variance"] == 0 and row["gradient_norm"] > 0 for row in loaded["rows"])
    assert "<svg" in picture.read_text()
    assert run(*arguments, "--csv") == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [float(line["skip_variance"]) for line in lines] == [
        row["skip_variance"] for row in loaded["rows"]
    ]


def test_theory_network_of_any_size(capsys):
    assert run("fc_linear", "--blocks", "7", "--width", "50", "--batch-size", "50", "--csv") == 0
    assert len(capsys.readouterr().out.splitlines()) == 8


def test_figure_is_written_twice(capsys, tmp_path):
    assert run("figure2a", "--networks", "2", "--plot", str(tmp_path / "new" / "talk"), "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["networks"] == 2
    assert len(json.loads(captured.out)["rows"]) == 30
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["talk.png", "talk.svg"]
    assert "talk.svg" in captured.err


def test_model_of_ones_own(capsys):
    assert run("support.probe_models:LoopNet", "--input", "8x6", "--csv") == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("LoopNet,1,")


@pytest.mark.parametrize(
    "arguments",
    [
        ["own_classifier:make", "--input", "8x6"],
        ["wrn16_1", "--num-classes", "3"],
        ["fc_linear", "--blocks", "3", "--width", "4"],
    ],
)
def test_random_labels_fit_a_network_of_fewer_than_ten_outputs(arguments, capsys, tmp_path, monkeypatch):
    (tmp_path / "own_classifier.py").write_text(
        "from torch import nn\nfrom support.probe_models import Function\n"
        "def make():\n"
        "    return nn.Sequential(Function(lambda net, x: x + net.a(x)), nn.Linear(6, 2))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert run(*arguments, "--gradients", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert len(rows) > 0
    assert all(row["gradient_norm"] > 0 for row in rows)


def test_the_random_batch_has_the_channels_that_were_asked_for(capsys):
    assert run("wrn16_1", "--in-channels", "1", "--csv") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 6


def test_language_model_takes_token_ids(capsys):
    assert run("support.probe_models:Language", "--input", "4x7", "--tokens", "30", "--csv") == 0
    assert capsys.readouterr().out.count("\n") == 1 + 2


def test_long_network_is_summarized_within_80_columns(capsys):
    arguments = ["wrn88_1", "--scheme", "batchnorm", "--batch-size", "2", "--gradients"]
    assert run(*arguments) == 0
    short = capsys.readouterr().out.splitlines()
    assert max(map(len, short)) <= 80
    rows = [line.split()[0] for line in short if line.startswith("blocks.")]
    assert {f"blocks.{i}.merge" for i in (0, 13, 14, 27, 28, 41)} <= set(rows)  # of each stage
    assert f"({42 - len(rows)} more blocks)" in short
    assert len(rows) <= 9
    assert run(*arguments, "--all") == 0
    whole = capsys.readouterr().out
    assert whole.count("\nblocks.") == 42
    assert "of channel means" in whole


def test_model_in_the_current_folder(capsys, tmp_path, monkeypatch):
    (tmp_path / "my_model.py").write_text("from support.probe_models import LoopNet\nmodel = LoopNet()\n")
    (tmp_path / "my_broken_module.py").write_text("import nothing_of_this_name")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    assert run("my_model:model", "--input", "8x6") == 0
    assert run("my_broken_module:model", "--input", "8x6") == 2
    assert "module 'my_broken_module' does not import: ModuleNotFound" in capsys.readouterr().err


def test_a_module_may_be_named_like_a_figure(tmp_path, monkeypatch):
    (tmp_path / "figure_skating.py").write_text(
        "from support.probe_models import LoopNet\nmodel = LoopNet()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    assert run("figure_skating:model", "--input", "8x6", "--check") == 0


@pytest.mark.parametrize("form", [[], ["--json"], ["--csv"]])
def test_model_without_residual_adds_prints_an_empty_report_and_fails(capsys, tmp_path, form):
    picture = tmp_path / "balance.svg"
    assert run("torch.nn:Identity", "--input", "8x6", "--plot", str(picture), *form) == 1
    printed = capsys.readouterr()
    assert printed.err == ""
    assert not picture.exists()
    if form == ["--json"]:
        assert json.loads(printed.out)["rows"] == []
    elif form == ["--csv"]:
        assert printed.out.count("\n") == 1
    else:
        assert printed.out.startswith("torch.nn:Identity has no residual add")


def test_check_prints_the_report_and_fails_with_the_blocks(capsys):
    assert run("wrn16_1", "--scheme", "skipinit", "--batch-size", "4", "--check") == 0
    capsys.readouterr()
    assert run("fc_linear", "--blocks", "9", "--batch-size", "50", "--check") == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("block ")
    assert "the skip variance changes exponentially, from" in printed.err
    assert printed.err.count("\n") == 1


ERRORS = {
    "--check is for models": ["figure5", "--check"],
    "model 'wrm16_2' is not known": ["wrm16_2"],
    "figure 'figure3' is not known": ["figure3"],
    "--json and --csv exclude each other": ["wrn16_2", "--json", "--csv"],
    "--input '8xx' is not a shape": ["wrn16_2", "--input", "8xx"],
    "--input is the whole shape": ["wrn16_2", "--input", "8x3x32x32", "--data", "digits"],
    "--batch-size 0 is not allowed": ["wrn16_2", "--batch-size", "0"],
    "--blocks and --width belong to the theory networks": ["wrn16_2", "--blocks", "0"],
    "--scheme, --biases: not for fc_linear": ["fc_linear", "--scheme", "none", "--biases"],
    "--scheme: not for figure2a": ["figure2a", "--scheme", "none"],
    "figure2a has the paper's networks and inputs": ["figure2a", "--blocks", "3"],
    "figure2b has the paper's networks and inputs": ["figure2b", "--data", "digits"],
    f"--seed {2**64} is not allowed; it must be a whole number": ["wrn16_2", "--seed", str(2**64)],
    f"--input '{10**20}x3' is not a shape": ["wrn16_2", "--input", f"{10**20}x3"],
    "--input '8x3x²' is not a shape": ["wrn16_2", "--input", "8x3x²"],
    "--networks belongs to the figures": ["wrn16_2", "--networks", "3"],
    "--networks 0 is not allowed": ["figure5", "--networks", "0"],
    "no picture format": ["wrn16_2", "--plot", "picture.gif"],
    "device 'abacus' is not known": ["wrn16_2", "--device", "abacus"],
    "--scheme, --alpha: not for support.probe_models:LoopNet": [
        "support.probe_models:LoopNet",
        "--input",
        "8x6",
        "--scheme",
        "skipinit",
        "--alpha",
        "0.5",
    ],
    "--tokens is the number of token ids": ["support.probe_models:LoopNet", "--tokens", "9"],
    "give the shape of its input": ["support.probe_models:LoopNet"],
    "cannot take the inputs 8x5 float32": ["support.probe_models:LoopNet", "--input", "8x5"],
    "module 'nothing' does not import: ModuleNotFoundError": ["nothing:here", "--input", "8x5"],
    "module 'math' has no 'Nett'": ["math:Nett", "--input", "8x5"],
    "failed: TypeError": ["torch.nn:Linear", "--input", "8x5"],
    "; it is called without arguments": ["torch.nn:Linear", "--input", "8x5"],
    "returned a dict; it must return a torch.nn.Module": ["builtins:dict", "--input", "8x5"],
    "is a float; it must be a function": ["math:pi", "--input", "8x5"],
    "is not a path of the form package.module:factory": [":net", "--input", "8x5"],
    "did you mean support.probe_models:LoopNet?": ["support/probe_models.py:LoopNet", "--input", "8x5"],
    "for a model of your own write package.module:factory": ["support.probe_models.LoopNet"],
}


@pytest.mark.parametrize("message", ERRORS)
def test_wrong_input_is_one_clear_line(capsys, message):
    assert run(*ERRORS[message]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert printed.err.count("\n") == 1
