"""What is there without extras: networks, probe and convert; and what is said of the rest."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from skipinit.errors import EXTRAS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DISTRIBUTIONS = {"PIL": "pillow", "sklearn": "scikit-learn"}
LIBRARY = {"torch", "numpy", "safetensors", "tyro", "rich"}

# A module that is None in sys.modules cannot be imported, and is not found.
WITHOUT_LAB = f"""
import json, sys
for module in {EXTRAS["lab"]!r}:
    sys.modules[module] = None
import torch, skipinit
from skipinit.cli import main

found = {{"codes": [main(["probe", "wrn16_2"])]}}
found["loaded"] = sorted({{"sympy", "torch._dynamo", "ray", "torchvision"}} & {{*sys.modules}})
model = skipinit.create_model("wrn10_1", num_classes=3, seed=0)
shape = torch.Size([2, 3, 8, 8])
found["adds"] = len(skipinit.probe(model, shape).rows)
found["norms"] = skipinit.convert(model, shape).num_norms
found["codes"] += [main(arguments.split()) for arguments in (
    "models", "describe wrn10_1",
    f"convert support.convert_models:TiedHead --input 2x3x8x8 --out {{sys.argv[1]}}",
)]
found["refused"] = [main(arguments.split()) for arguments in (
    "demo", "train wrn10_1 --data digits", "sweep wrn10_1", "reproduce --list", "report", "status runs/a",
    "store export runs/a file", "probe wrn16_2 --plot balance.png", "probe figure2a",
    "probe wrn16_2 --data digits",
)]
for name in ("train", "report"):
    try:
        getattr(skipinit, name)
    except skipinit.ConfigError as error:
        print(f"skipinit: {{error}}", file=sys.stderr)
print(json.dumps(found))
"""


def distributions(requirements: list[str]) -> set[str]:
    """The names, without versions."""
    return {re.match(r"[\w-]+", requirement)[0].lower() for requirement in requirements}


def test_five_packages_are_needed() -> None:
    assert distributions(PROJECT["dependencies"]) == LIBRARY


@pytest.mark.parametrize("extra", EXTRAS)
def test_extras_are_those_of_the_project(extra: str) -> None:
    """`lab` is all of its packages: what is imported and what is installed cannot come apart."""
    named = distributions(PROJECT["optional-dependencies"][extra])
    assert named == {DISTRIBUTIONS.get(module, module) for module in EXTRAS[extra]}


def test_the_install_page_has_every_extra() -> None:
    table = re.findall(r"^\| (`.*?`) \|", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(table))) == set(PROJECT["optional-dependencies"])


def test_the_library_works_without_the_laboratory(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_LAB, str(tmp_path / "converted")]
    done = subprocess.run(command, cwd=ROOT / "tests", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["adds"] == 3
    assert found["norms"] == 7
    assert found["codes"] == [0, 0, 0, 0]
    assert (tmp_path / "converted" / "model.safetensors").exists()
    assert {*found["refused"]} == {2}
    assert found["loaded"] == [], "each takes longer than the probe itself"
    lines = done.stderr.splitlines()
    install = "pip install 'skipinit[lab]'"
    assert len([line for line in lines if line.endswith(install)]) == len(found["refused"]) + 3
    assert any(line.startswith("skipinit: balance.svg is left out: a plot needs ") for line in lines)
    packages = "jinja2, matplotlib, PIL, platformdirs, pooch, sklearn"
    assert f"skipinit: skipinit demo needs {packages}; {install}" in lines
    assert f"skipinit: skipinit.train needs {packages}; {install}" in lines


def test_help_of_the_laboratory_needs_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['sklearn'] = None; from skipinit.cli import main; main(['train', '--help'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
