"""What a run is where the user does not say."""

from __future__ import annotations

import subprocess
import sys

import pytest

from skipinit.config import ModelConfig
from skipinit.errors import ConfigError
from skipinit.training.protocol import make_train_config

_MODEL = ModelConfig("wrn16_2", "skipinit")


def test_cifar_follows_the_paper() -> None:
    """Section 2.3: 200 epochs, batch 64, L2 5e-4; the rates are the calibrated ones of Table 1."""
    config = make_train_config(_MODEL, "cifar100")
    assert (config.epochs, config.batch_size, config.l2, config.schedule) == (200, 64, 5e-4, "cifar")
    assert (config.momentum, config.dampening, config.precision) == (0.9, 0.0, "float32")
    assert config.model.num_classes == 100
    normalized = make_train_config(ModelConfig("wrn16_2"), "cifar10")
    assert (normalized.lr, config.lr) == (0.05, 0.025)


def test_the_rate_grows_with_the_batch_and_with_damping() -> None:
    rates = {batch: make_train_config(_MODEL, "cifar10", batch_size=batch).lr for batch in (16, 64, 256)}
    assert rates == {16: 0.025 / 4, 64: 0.025, 256: 0.1}
    assert make_train_config(_MODEL, "cifar10", dampening=0.9).lr == 2**-2  # the paper's own optimum
    assert make_train_config(_MODEL, "cifar10", dampening=0.9, batch_size=16, lr=0.3).lr == 0.3


def test_folders_follow_the_imagenet_protocol() -> None:
    config = make_train_config(ModelConfig("resnet50_v2"), "imagenet")
    assert (config.epochs, config.batch_size, config.l2, config.schedule) == (90, 256, 1e-4, "imagenet")
    assert config.model.num_classes == 1000


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"batch_size": 0}, "batch_size 0 is not allowed; it must be 1 or more"),
        ({"dampening": 1.0}, r"dampening 1.0 is not allowed; it must be in \[0, 1\)"),
        ({"momentum": -0.1}, r"momentum -0.1 is not allowed; it must be in \[0, 1\)"),
        ({"lr": float("nan")}, "lr nan is not allowed; it must be a positive number"),
        ({"epoch": 3}, "training option 'epoch' is not known; there are .*epochs"),
    ],
)
def test_a_value_that_is_not_allowed_is_named(given: dict[str, float], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        make_train_config(_MODEL, "cifar10", **given)


def test_none_is_not_given() -> None:
    assert make_train_config(_MODEL, "digits", lr=None, epochs=None) == make_train_config(_MODEL, "digits")


def test_defaults_need_no_torch() -> None:
    code = "import sys, skipinit.training.protocol, skipinit.cli.app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
