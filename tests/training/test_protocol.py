"""Defaults of a run, and its identity."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch

from skipinit.config import ModelConfig, rerun, to_dict, train_from_dict, train_from_json
from skipinit.errors import ConfigError
from skipinit.nets.architectures import find_architecture
from skipinit.nets.schemes import list_schemes, resolve
from skipinit.nets.schemes import settle as settle_model
from skipinit.training.protocol import identity, make_train_config

_MODEL = ModelConfig("wrn16_2", "skipinit")


def test_cifar_follows_the_paper() -> None:
    """Section 2.3: 200 epochs, batch 64, L2 5e-4; the rates are the calibrated ones of Table 1."""
    config = make_train_config(_MODEL, "cifar100")
    assert (config.epochs, config.batch_size, config.l2, config.schedule) == (200, 64, 5e-4, "cifar")
    assert (config.momentum, config.dampening, config.precision) == (0.9, 0.0, "float32")
    assert config.model.num_classes == 100
    assert (config.crop_padding, config.model.classifier_init) == ("reflect", "zero")
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
        ({"batch_size": 0}, "batch_size 0 is not allowed; it must be a whole number, 1 or more"),
        ({"dampening": 1.0}, r"dampening 1.0 is not allowed; it must be a finite number in \[0, 1\)"),
        ({"momentum": -0.1}, r"momentum -0.1 is not allowed; it must be a finite number in \[0, 1\)"),
        ({"lr": float("nan")}, "lr nan is not allowed; it must be a finite number above 0"),
        ({"lr": 0}, "lr 0 is not allowed; it must be a finite number above 0"),
        ({"lr": "x"}, "lr 'x' is not allowed; it must be a finite number above 0"),
        ({"batch_size": 2.5}, "batch_size 2.5 is not allowed; it must be a whole number, 1 or more"),
        ({"epochs": True}, "epochs True is not allowed; it must be a whole number, 1 or more"),
        ({"augment": "yes"}, "augment 'yes' is not allowed; it must be true or false"),
        ({"epoch": 3}, "training option 'epoch' is not known; there are .*epochs"),
    ],
)
def test_a_value_that_is_not_allowed_is_named(given: dict[str, float], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        make_train_config(_MODEL, "cifar10", **given)


def test_numbers_of_numpy_and_torch_are_those_of_python() -> None:
    given = {"lr": np.float32(0.25), "epochs": np.int64(3), "seed": torch.tensor(1)}
    of_numpy = make_train_config(_MODEL, "cifar10", **given)
    config = make_train_config(_MODEL, "cifar10", lr=0.25, epochs=3, seed=1)
    assert of_numpy == config
    assert identity(of_numpy) == identity(config)
    assert [type(of_numpy.lr), type(of_numpy.epochs), type(of_numpy.seed)] == [float, int, int]


def test_the_text_of_a_model_is_refused_with_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"model is the text 'wrn10_1'; give ModelConfig\('wrn10_1'\)"):
        make_train_config(cast(Any, "wrn10_1"), "digits")


def test_a_network_refuses_values_of_another_type() -> None:
    with pytest.raises(ConfigError, match="wrn16_2: biases 'yes' is not allowed; it must be true or false"):
        ModelConfig("wrn16_2", biases="yes")


def test_two_ways_to_write_a_run_have_one_identity() -> None:
    config = make_train_config(_MODEL, "cifar10", lr=1)
    for model in (
        ModelConfig("wrn16_2", "skipinit", alpha=0),
        ModelConfig("wrn16_2", "skipinit", num_classes=10, in_channels=3),
        ModelConfig(
            "wrn16_2", "skipinit", dropout=0, biases=False, scalar_bias=False, projection="activated"
        ),
    ):
        assert identity(make_train_config(model, "cifar10", lr=1.0)) == identity(config)
        assert make_train_config(model, "cifar10", lr=1.0) == config
    for other in (
        make_train_config(replace(_MODEL, alpha=1), "cifar10", lr=1),
        make_train_config(replace(_MODEL, classifier_init="he"), "cifar10", lr=1),
        make_train_config(_MODEL, "cifar10", lr=1, seed=1),
        make_train_config(_MODEL, "cifar100", lr=1),
    ):
        assert identity(other) != identity(config)


@pytest.mark.parametrize(
    ("data", "augment", "padded"),
    [
        ("cifar10", True, True),
        ("cifar10", False, False),
        ("digits", True, True),
        ("digits", False, False),
        ("gaussian", True, False),  # whose images are not cropped
        ("imagenet", True, False),  # of photographs only what is there is taken
        ("a/folder", True, False),
        ("mine.npz", True, True),
        ("mine.npz", False, False),
    ],
)
def test_the_padding_of_crops_makes_another_run_only_where_crops_are_padded(
    data: str, augment: bool, padded: bool
) -> None:
    model = replace(_MODEL, num_classes=10, in_channels=3 if data != "digits" else 1)
    usual = make_train_config(model, data, augment=augment)
    given = {
        make_train_config(model, data, augment=augment, crop_padding=padding)
        for padding in ("zero", "reflect", "symmetric")
    }
    assert usual in given
    assert len({identity(config) for config in given}) == len(given) == (3 if padded else 1)


def test_classes_and_channels_are_those_of_the_data_unless_given() -> None:
    """Digits: 10 classes in one channel."""
    for given, expected in (
        ({}, (10, 1)),
        ({"num_classes": 12}, (12, 1)),
        ({"in_channels": 3}, (10, 3)),
        ({"num_classes": 12, "in_channels": 3}, (12, 3)),
    ):
        model = make_train_config(ModelConfig("wrn10_1", **given), "digits").model
        assert (model.num_classes, model.in_channels) == expected
    assert make_train_config(ModelConfig("wrn10_1", in_channels=3), "cifar100").model.num_classes == 100


def test_a_ghost_batch_is_none_only_if_it_is_the_batch() -> None:
    for ghost, expected in ((32, 32), (64, None), (None, None)):
        config = make_train_config(ModelConfig("wrn10_1", ghost_batch=ghost), "digits", batch_size=64)
        assert config.model.ghost_batch == expected


@pytest.mark.parametrize("scheme", list_schemes())
@pytest.mark.parametrize("name", ["wrn16_2", "resnet50_v2", "resnet50_v1"])
def test_a_settled_network_is_settled_and_stays_the_same_network(name: str, scheme: str) -> None:
    try:
        settled = settle_model(ModelConfig(name, scheme))
    except ConfigError:
        pytest.skip("the paper does not define it")
    assert settle_model(settled) == settled
    architecture = find_architecture(name)
    assert resolve(settled, architecture) == resolve(ModelConfig(name, scheme), architecture)


@pytest.mark.parametrize("data", ["digits", 'odd, "lr": 3, "seed": 4}.npz', "cifar10"])
@pytest.mark.parametrize(("lr", "seed"), [(2**-2, 0), (1e-7, 3), (1, 2**31)])
def test_a_config_is_read_from_json_as_from_its_fields(data: str, lr: float, seed: int) -> None:
    fields = to_dict(
        make_train_config(replace(_MODEL, num_classes=10, in_channels=3), data, lr=lr, seed=seed)
    )
    read = train_from_json(json.dumps(fields, sort_keys=True))
    assert read == train_from_dict(fields)
    assert (read.lr, read.seed, type(read.lr)) == (lr, seed, float)
    assert identity(read) == identity(train_from_dict(fields))


@pytest.mark.parametrize(("lr", "seed"), [(0, 0), (-1.0, 0), (True, 0), ("x", 0), (0.5, -1), (0.5, 1.5)])
def test_another_rate_and_seed_are_checked(lr: object, seed: object) -> None:
    with pytest.raises(ConfigError, match="is not allowed; it must be"):
        rerun(make_train_config(_MODEL, "digits"), lr, seed)


def test_none_is_not_given() -> None:
    assert make_train_config(_MODEL, "digits", lr=None, epochs=None) == make_train_config(_MODEL, "digits")


def test_defaults_need_no_torch() -> None:
    code = "import sys, skipinit.training.protocol, skipinit.cli.app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
