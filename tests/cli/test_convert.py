"""`skipinit convert`: what it writes and prints, and one clear line where it cannot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import tyro
from safetensors.torch import load_file

from skipinit.cli.convert import convert
from skipinit.converting.convert import convert as take_norms_out
from skipinit.errors import ConfigError, SkipinitError

FACTORY = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, 1, 1)
        self.conv = nn.Conv2d(4, 4, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Conv2d(4, 2, 1)
        self.tied = self.head.weight

    def forward(self, x):
        x = self.stem(x)
        return self.head(x + self.norm(self.conv(x.relu())))

def plain():
    return nn.Linear(3, 3)
"""


def run(*arguments):
    tyro.cli(convert, args=list(arguments), config=(tyro.conf.FlagCreatePairsOff,))


@pytest.fixture(autouse=True)
def _factory(tmp_path, monkeypatch):
    (tmp_path / "my_convert_model.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    yield
    sys.modules.pop("my_convert_model", None)


def test_parsing_does_not_import_torch():
    code = (
        "import sys, tyro; from skipinit.cli.convert import convert\n"
        "try: tyro.cli(convert, args=['--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "code, so name what you trust" in " ".join(done.stdout.replace("│", " ").split())


@pytest.mark.parametrize(
    "flags", [[], ["--keep-function"], ["--scheme", "fixup"], ["--alpha", "0.5", "--biases", "False"]]
)
def test_folder_holds_weights_that_the_converted_model_takes(flags, capsys):
    run("my_convert_model:Net", "--input", "2x3x8x8", "--out", "made", "--seed", "3", *flags)
    out = capsys.readouterr().out
    assert out.startswith("block ")
    assert out == Path("made/report.txt").read_text()
    assert sorted(path.name for path in Path("made").iterdir()) == [
        "balance.svg", "model.safetensors", "report.json", "report.txt",
    ]  # fmt: skip
    import my_convert_model

    torch.manual_seed(3)
    options = {
        "scheme": "fixup" if "fixup" in flags else "skipinit",
        "keep_function": "--keep-function" in flags,
        "alpha": 0.5 if "--alpha" in flags else None,
        "biases": False if "--biases" in flags else None,
    }
    model = take_norms_out(my_convert_model.Net(), (2, 3, 8, 8), seed=3, **options)
    saved = load_file("made/model.safetensors")
    assert saved.keys() == model.state_dict().keys()
    assert all(torch.equal(saved[name], value) for name, value in model.state_dict().items())


def test_json(capsys):
    run("my_convert_model:Net", "--input", "2x3x8x8", "--out", "made", "--json")
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(Path("made/report.json").read_text())
    assert printed["changes"][0] == {"block": "Net", "module": "norm", "went": "BatchNorm2d", "came": ""}


ERRORS = {
    "'wrn16_2' is not a path of the form package.module:factory": ["wrn16_2", "--input", "2x3x8x8"],
    "--input '8xx' is not a shape": ["my_convert_model:Net", "--input", "8xx"],
    "scheme 'batchnorm' has norms": ["my_convert_model:Net", "--input", "2x3x8x8", "--scheme", "batchnorm"],
    "cannot take the batch 2x5": ["my_convert_model:Net", "--input", "2x5"],
    "Linear has no residual add": ["my_convert_model:plain", "--input", "2x3"],
}


@pytest.mark.parametrize("message", ERRORS)
def test_wrong_input_is_one_clear_line_and_nothing_is_written(message):
    with pytest.raises(SkipinitError) as caught:
        run(*ERRORS[message], "--out", "made")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not Path("made").exists()


def test_no_place_to_write():
    Path("made").write_text("a file")
    with pytest.raises((SkipinitError, ConfigError), match="cannot be written"):
        run("my_convert_model:Net", "--input", "2x3x8x8", "--out", "made")
    assert Path("made").read_text() == "a file"
