"""`skipinit probe`: what it prints, what it writes, and one clear line where it cannot."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys

import pytest
import tyro

from skipinit.cli.probe import probe
from skipinit.errors import ConfigError

FACTORY = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        return x + self.layer(x)

def broken():
    raise ValueError("no\\nluck")

def wrong():
    return 3

number = 3
"""


def run(*arguments):
    tyro.cli(probe, args=list(arguments), config=(tyro.conf.FlagCreatePairsOff,))


@pytest.fixture
def _factory(tmp_path, monkeypatch):
    (tmp_path / "my_probe_model.py").write_text(FACTORY)
    (tmp_path / "my_broken_module.py").write_text("import nothing_of_this_name")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    yield
    sys.modules.pop("my_probe_model", None)


def test_parsing_does_not_import_torch():
    code = (
        "import sys, tyro; from skipinit.cli.probe import probe\n"
        "try: tyro.cli(probe, args=['--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "runs that code" in " ".join(done.stdout.replace("│", " ").split())


def test_table_and_verdict(capsys):
    run("wrn16_1", "--scheme", "batchnorm", "--batch-size", "4")
    out = capsys.readouterr().out
    assert out.startswith("block ")
    assert out.count("blocks.") == 6 + 1  # six rows, and one is named in the verdict
    assert "Theory (normalized branches" in out


def test_json_csv_and_plot_of_one_seed_agree(capsys, tmp_path):
    arguments = ["wrn16_1", "--scheme", "skipinit", "--data", "digits", "--gradients", "--seed", "5"]
    run(*arguments, "--json", "--plot", str(tmp_path / "balance.svg"))
    loaded = json.loads(capsys.readouterr().out)
    assert loaded["model"] == "wrn16_1, skipinit"
    assert len(loaded["rows"]) == 6
    assert all(row["branch_variance"] == 0 and row["gradient_norm"] > 0 for row in loaded["rows"])
    assert "<svg" in (tmp_path / "balance.svg").read_text()
    run(*arguments, "--csv")
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [float(line["skip_variance"]) for line in lines] == [
        row["skip_variance"] for row in loaded["rows"]
    ]


def test_theory_network_of_any_size(capsys):
    run("fc_linear", "--blocks", "7", "--width", "50", "--batch-size", "50", "--csv")
    assert len(capsys.readouterr().out.splitlines()) == 8


def test_figure_is_written_twice(capsys, tmp_path):
    run("figure2a", "--networks", "2", "--plot", str(tmp_path / "talk"), "--json")
    captured = capsys.readouterr()
    assert json.loads(captured.out)["networks"] == 2
    assert len(json.loads(captured.out)["rows"]) == 30
    assert sorted(path.name for path in tmp_path.iterdir()) == ["talk.png", "talk.svg"]
    assert "talk.svg" in captured.err


@pytest.mark.usefixtures("_factory")
def test_model_of_ones_own(capsys):
    run("my_probe_model:Net", "--input", "8x6", "--csv")
    assert capsys.readouterr().out.splitlines()[1].startswith("Net,1,")


ERRORS = {
    "model 'wrm16_2' is not known": ["wrm16_2"],
    "figure 'figure3' is not known": ["figure3"],
    "--json and --csv exclude each other": ["wrn16_2", "--json", "--csv"],
    "--input '8xx' is not a shape": ["wrn16_2", "--input", "8xx"],
    "--input is the whole shape": ["wrn16_2", "--input", "8x3x32x32", "--data", "digits"],
    "--batch-size 0 is not allowed": ["wrn16_2", "--batch-size", "0"],
    "--blocks and --width belong to the theory networks": ["wrn16_2", "--blocks", "3"],
    "--networks belongs to the figures": ["wrn16_2", "--networks", "3"],
    "--networks 0 is not allowed": ["figure5", "--networks", "0"],
    "no picture format": ["wrn16_2", "--plot", "picture.gif"],
    "device 'abacus' is not known": ["wrn16_2", "--device", "abacus"],
    "give the shape of its input": ["my_probe_model:Net"],
    "cannot take the batch 8x5 float32": ["my_probe_model:Net", "--input", "8x5"],
    "module 'nothing' does not import: ModuleNotFoundError": ["nothing:here", "--input", "8x5"],
    "module 'my_broken_module' does not import": ["my_broken_module:net", "--input", "8x5"],
    "module 'my_probe_model' has no 'Nett'": ["my_probe_model:Nett", "--input", "8x5"],
    "failed: ValueError: no luck; it is called without": ["my_probe_model:broken", "--input", "8x5"],
    "returned a int; it must return a torch.nn.Module": ["my_probe_model:wrong", "--input", "8x5"],
    "is a int; it must be a function": ["my_probe_model:number", "--input", "8x5"],
    "is not a path of the form package.module:factory": [":net", "--input", "8x5"],
}


@pytest.mark.usefixtures("_factory")
@pytest.mark.parametrize("message", ERRORS)
def test_wrong_input_is_one_clear_line(message):
    with pytest.raises(ConfigError) as caught:
        run(*ERRORS[message])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
