"""`skipinit convert`: what it writes and prints, its exit codes, and one clear line where it cannot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from skipinit.cli import main
from skipinit.converting.convert import convert
from support.convert_models import TiedHead

MODEL = "support.convert_models:TiedHead"


def run(*arguments):
    return main(["convert", *arguments])


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ([], {}),
        (["--keep-function"], {"keep_function": True}),
        (["--scheme", "fixup"], {"scheme": "fixup"}),
        (["--alpha", "0.5", "--no-biases"], {"alpha": 0.5, "biases": False}),
        (["--scheme", "none", "--biases"], {"scheme": "none", "biases": True}),
    ],
)
def test_folder_holds_weights_that_the_converted_model_takes(flags, options, capsys):
    assert run(MODEL, "--input", "2x3x8x8", "--out", "new/made", "--seed", "3", *flags) == 0
    out = capsys.readouterr().out
    made = Path("new/made")
    assert out.startswith("block ")
    assert out == (made / "report.txt").read_text()
    assert sorted(path.name for path in made.iterdir()) == [
        "balance.svg", "model.safetensors", "report.json", "report.txt",
    ]  # fmt: skip
    torch.manual_seed(3)
    model = convert(TiedHead(), torch.Size([2, 3, 8, 8]), seed=3, **options).model
    saved = load_file(made / "model.safetensors")
    assert saved.keys() == model.state_dict().keys()
    assert all(torch.equal(saved[name], value) for name, value in model.state_dict().items())


def test_json(capsys):
    assert run(MODEL, "--input", "2x3x8x8", "--out", "made", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(Path("made/report.json").read_text())
    removed = {"block": "TiedHead", "module": "norm", "removed": "BatchNorm2d", "added": ""}
    assert printed["changes"][0] == removed


USAGE = {
    "'wrn16_2' is not a path of the form package.module:factory": ["wrn16_2", "--input", "2x3x8x8"],
    "--input '8xx' is not a shape": [MODEL, "--input", "8xx"],
    "scheme 'batchnorm' has norms": [MODEL, "--input", "2x3x8x8", "--scheme", "batchnorm"],
    "dropout 1.5 is not allowed": ["nothing:here", "--input", "2x3x8x8", "--dropout", "1.5"],
    "--biases and --no-biases exclude": [MODEL, "--input", "2x3x8x8", "--biases", "--no-biases"],
    "cannot take the inputs 2x5": [MODEL, "--input", "2x5"],
}


@pytest.mark.parametrize("message", USAGE)
def test_wrong_input_is_one_clear_line_and_nothing_is_written(capsys, message):
    assert run(*USAGE[message], "--out", "made") == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert not Path("made").exists()


def test_model_without_residual_adds(capsys):
    assert run("torch.nn:Identity", "--input", "2x3", "--out", "made") == 1
    assert "Identity has no residual add" in capsys.readouterr().err
    assert not Path("made").exists()


def test_no_place_to_write(capsys):
    Path("made").write_text("a file")
    assert run(MODEL, "--input", "2x3x8x8", "--out", "made") == 1
    assert "cannot be written" in capsys.readouterr().err
    assert Path("made").read_text() == "a file"


def test_an_earlier_conversion_is_replaced_only_if_asked(capsys):
    command = [MODEL, "--input", "2x3x8x8", "--out", "made"]
    assert run(*command) == 0
    before = Path("made", "model.safetensors").read_bytes()
    assert run(*command, "--seed", "1") == 2
    assert "made holds a conversion already" in capsys.readouterr().err
    assert Path("made", "model.safetensors").read_bytes() == before
    assert run(*command, "--seed", "1", "--force") == 0
    assert Path("made", "model.safetensors").read_bytes() != before


def test_warnings_are_one_line_without_our_source():
    Path("mine.py").write_text(
        """from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.map, self.idle = nn.LayerNorm(4), nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x):
        return x + self.map(self.norm(x))

def net():
    return nn.Sequential(Block(), nn.Linear(4, 2))
"""
    )
    command = [sys.executable, "-m", "skipinit", "convert", "mine:net", "--input", "8x4", "--out", "made"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    warning, wrote = done.stderr.splitlines()
    assert warning.startswith("skipinit: left as they were: 0.idle (not reached by the inputs)")
    assert wrote == "wrote made"
