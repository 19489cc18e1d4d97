"""Axes become trials, and trials packs: the text grammar, types, order, duplicates, and what is refused."""

from __future__ import annotations

import doctest
import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from skipinit.config import ModelConfig, TrainConfig
from skipinit.errors import ConfigError, DataError
from skipinit.sweeping import grid as grid_module
from skipinit.sweeping.grid import AXES, axis_values, expand, flatten, group, join, read_grid, split
from skipinit.training.protocol import identity, make_train_config, settle
from support.runs import SMALL

FIXED = {"model": "wrn16_2", "data": "digits", "batch_size": 64, "epochs": 2}


@pytest.mark.parametrize(
    ("axis", "given", "values"),
    [
        ("lr", "2^-6..2^0", [1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0]),
        ("lr", "0.1, 2^-3,1e-2", [0.1, 0.125, 0.01]),
        ("lr", 1, [1.0]),
        ("lr", [1, "2^-1"], [1.0, 0.5]),
        ("seed", "0..6", [0, 1, 2, 3, 4, 5, 6]),
        ("seed", "3..3,7", [3, 7]),
        ("seed", range(3), [0, 1, 2]),
        ("batch_size", "2^3..2^5", [8, 16, 32]),
        ("scheme", "skipinit,batchnorm", ["skipinit", "batchnorm"]),
        ("alpha", "0,1/sqrt(d),1,none", [0.0, "1/sqrt(d)", 1.0, None]),
        ("alpha", "-0.0", [0.0]),
        ("ghost_batch", "none,64", [None, 64]),
        ("biases", "true,false,none", [True, False, None]),
        ("augment", [True, "false"], [True, False]),
        ("precision", "bfloat16", ["bfloat16"]),
        ("fixup_components", "1+2,1+2+3+4", [(1, 2), (1, 2, 3, 4)]),
        ("fixup_components", [[1, 2], (3,)], [(1, 2), (3,)]),
        ("data", "../pictures", ["../pictures"]),
    ],
)
def test_values_of_an_axis(axis: str, given: object, values: list[object]) -> None:
    found = axis_values(axis, given)
    assert found == values
    assert [repr(value) for value in found] == [repr(value) for value in values]  # 1 is not 1.0, nor -0.0 0.0


@pytest.mark.parametrize(
    ("axis", "given", "named"),
    [
        ("lr", "", "''"),
        ("lr", [], "[]"),
        ("lr", "0.1,,0.2", "0.1,,0.2"),
        ("lr", "fast", "'fast' is not allowed; it must be a finite number"),
        ("lr", "nan", "'nan' is not allowed; it must be a finite number"),
        ("lr", "inf", "'inf' is not allowed"),
        ("lr", "2^9999", "'2^9999' is not allowed"),
        ("lr", True, "True is not allowed; it must be a finite number"),
        ("lr", "0..x", "'0..x'"),
        ("lr", "1e-3..1e-1", "'1e-3..1e-1' is no range; write 2^-6..2^0 or 0..6"),
        ("depth", "16...100", "'16...100' is no range"),
        ("seed", "0..9999999999", "'0..9999999999' is no range"),
        ("lr", "2^-3..1", "mixes"),
        ("seed", "6..0", "6..0 is empty"),
        ("seed", "0.5", "'0.5' is not allowed; it must be a whole number"),
        ("seed", 1.0, "1.0 is not allowed; it must be a whole number"),
        ("seed", "2^-1", "'2^-1' is not allowed; it must be a whole number"),
        ("seed", "0..99999999", "100,000,000 values"),
        ("schedule", "cosine", "one of cifar, imagenet, constant"),
        ("augment", "yes", "'yes' is not allowed; it must be true or false"),
        ("fixup_components", "1+x", "'1+x' is not allowed; it must be a tuple out of 1, 2, 3 and 4"),
    ],
)
def test_a_bad_value_is_named_with_its_axis(axis: str, given: object, named: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(named)) as error:
        axis_values(axis, given)
    assert axis in str(error.value)
    assert "\n" not in str(error.value)


def test_the_product_is_complete_and_the_seed_slowest() -> None:
    grid = expand({**FIXED, "lr": "2^-2..2^0", "scheme": "skipinit,batchnorm", "seed": "0..1"})
    expected = [
        make_train_config(ModelConfig("wrn16_2", scheme), "digits", lr=lr, batch_size=64, epochs=2, seed=seed)
        for seed, scheme, lr in itertools.product([0, 1], ["skipinit", "batchnorm"], [0.25, 0.5, 1.0])
    ]
    assert list(grid.trials) == expected
    assert grid.duplicates == 0


def test_the_order_does_not_depend_on_how_the_axes_were_written() -> None:
    axes = {**FIXED, "lr": "2^-2..2^0", "seed": "0..1", "scheme": "none,fixup"}
    assert expand(axes) == expand(dict(reversed(axes.items())))


def test_equal_trials_are_kept_once_and_counted() -> None:
    grid = expand({**FIXED, "lr": ["0.5", "2^-1", 0.5, 1], "seed": "0,0"})
    assert [trial.lr for trial in grid.trials] == [0.5, 1.0]
    assert grid.duplicates == 6
    assert join([grid, grid]).duplicates == 6 + 6 + 2


def test_text_and_python_give_the_same_identities() -> None:
    text = expand({**FIXED, "lr": "1", "alpha": "1", "scheme": "skipinit", "epochs": "2"})
    python = expand({**FIXED, "lr": 1.0, "alpha": 1, "scheme": ["skipinit"]})
    by_hand = TrainConfig(ModelConfig("wrn16_2", "skipinit", alpha=1.0), "digits", 1.0, 64, 2, augment=False)
    assert identity(text.trials[0]) == identity(python.trials[0]) == identity(by_hand)


def test_the_depth_replaces_that_of_the_name() -> None:
    grid = expand({**FIXED, "lr": 1, "scheme": "skipinit", "alpha": 1, "depth": "16,100,1000"})
    assert [trial.model.name for trial in grid.trials] == ["wrn16_2", "wrn100_2", "wrn1000_2"]
    assert {trial.model.alpha for trial in grid.trials} == {1.0}


def test_what_no_axis_names_is_the_choice_of_the_protocol_for_each_data_set() -> None:
    cifar, digits = expand({"model": "wrn16_2", "data": "cifar10,digits", "lr": 1}).trials
    assert (cifar.epochs, cifar.crop_padding, cifar.augment, cifar.model.in_channels) == (
        200,
        "reflect",
        True,
        3,
    )
    assert (digits.epochs, digits.crop_padding, digits.augment, digits.model.in_channels) == (
        10,
        "zero",
        False,
        1,
    )


def test_two_ways_to_write_a_trial_are_one_trial() -> None:
    axes = {"model": "wrn16_2", "data": "cifar10", "scheme": "skipinit", "lr": "2^-2,0.25"}
    ways = [{}, {"alpha": 0}, {"alpha": "0.0"}, {"num_classes": 10}, {"dropout": 0}, {"biases": "false"}]
    grid = join(expand({**axes, **way}) for way in ways)
    assert len(grid.trials) == 1
    assert grid.duplicates == 2 * len(ways) - 1
    root = expand({**axes, "alpha": [6**-0.5, "1/sqrt(d)"]})
    assert [trial.model.alpha for trial in root.trials] == ["1/sqrt(d)"]
    ghosts = expand({**axes, "scheme": "batchnorm", "ghost_batch": "none,64,32"})
    assert [trial.model.ghost_batch for trial in ghosts.trials] == [None, 32]


def test_every_field_of_a_config_is_an_axis() -> None:
    config = settle(TrainConfig(ModelConfig("wrn16_2", dropout=0.5), "digits", 0.5, 64, 2, seed=3))
    flat = flatten(config)
    assert set(flat) == set(AXES) - {"depth", "watch"}
    assert (flat["model"], flat["dropout"], flat["seed"], flat["lr"]) == ("wrn16_2", 0.5, 3, 0.5)
    assert len(flat) == len(vars(config)) + len(vars(config.model)) - 2, "`model` and `watch`"
    assert expand(flat).trials == (config,)


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({**FIXED, "lrr": 1}, "axis 'lrr' is not known; did you mean lr"),
        ({"model": "wrn16_2", "lr": 1}, "data is not given; a sweep needs model, data and lr"),
        ({**FIXED, "lr": 0}, "lr 0.0 is not allowed"),
        ({**FIXED, "lr": 1, "depth": 17}, "depth 17 is not 6m + 4"),
        ({**FIXED, "lr": 1, "model": "resnet50_v2", "depth": 16}, "resnet50_v2 has none"),
        ({**FIXED, "lr": 1, "scheme": "skipint"}, "did you mean skipinit"),
        ({**FIXED, "lr": 1, "scheme": "batchnorm,skipinit", "alpha": 0}, "batchnorm"),
        ({**FIXED, "lr": "1..2000", "seed": "0..2000"}, "4,002,000 trials"),
    ],
)
def test_what_no_sweep_can_run_is_refused(axes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        expand(axes)
    assert "\n" not in str(error.value)


def test_a_path_is_one_data_set_and_a_list_of_paths_several(tmp_path: Path) -> None:
    images, labels = np.zeros((4, 1, 8, 8), np.uint8), np.arange(4)
    files = [tmp_path / "a,b.npz", tmp_path / "c.npz"]
    for file in files:
        np.savez(file, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    for given, names in ((files[0], files[:1]), (files, files), ([*files, "digits"], [*files, "digits"])):
        grid = expand({"model": "wrn10_1", "batch_size": 2, "lr": 1, "data": given})
        assert [trial.data for trial in grid.trials] == list(map(str, names))


def test_data_of_ones_own_is_looked_at_where_it_is_there(tmp_path: Path) -> None:
    images, file = np.zeros((4, 1, 8, 8), np.uint8), tmp_path / "own.npz"
    axes = {"model": "wrn10_1", "data": file, "batch_size": 8, "lr": 1, "num_classes": 2, "in_channels": 1}
    assert len(expand(axes).trials) == 1, "a node of a cluster may have it"
    np.savez(file, train_images=images, train_labels=[0, 1] * 2, test_images=images, test_labels=[0, 1] * 2)
    with pytest.raises(ConfigError, match="batch_size 8 is larger than the 4 training examples"):
        expand(axes)


@pytest.mark.parametrize("rates", [np.logspace(-2, 0, 3), [np.float32(0.25), 1], torch.tensor([0.5])])
def test_numbers_of_numpy_and_torch_are_numbers(rates: Any) -> None:
    grid = expand({**FIXED, "lr": rates, "seed": np.arange(2), "epochs": np.int64(3)})
    expected = [(float(lr), seed, 3) for seed in (0, 1) for lr in rates]
    assert [(trial.lr, trial.seed, trial.epochs) for trial in grid.trials] == expected


def test_a_mistake_in_a_toml_file_is_told_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "axes.toml"
    whole = 'model = "wrn16_2"\ndata = "digits"\nlr = 1\n'
    for content, place in {
        whole + "sceme = 1": f"{file}: axis 'sceme' is not known",
        whole + "[[part]]\nseed = 1\n[[part]]\nseed = -1": f"{file}, part 2: seed -1 is not allowed",
    }.items():
        file.write_text(content)
        with pytest.raises(ConfigError, match=f"^{re.escape(place)}"):
            read_grid(file)


def test_a_toml_file_with_parts(tmp_path: Path) -> None:
    file = tmp_path / "table1.toml"
    file.write_text(
        'model = "wrn16_2"\ndata = "digits"\nbatch_size = 64\nepochs = 2\n'
        'depth = [16, 100]\nlr = "2^-1..2^0"\nseed = "0..2"\n\n'
        '[[part]]\nscheme = "batchnorm"\n\n[[part]]\nscheme = "skipinit"\nalpha = [0, 1, "1/sqrt(d)"]\n'
    )
    grid = read_grid(file)
    kinds = {(trial.model.scheme, trial.model.alpha) for trial in grid.trials}
    assert kinds == {("batchnorm", None), ("skipinit", 0.0), ("skipinit", 1.0), ("skipinit", "1/sqrt(d)")}
    assert len(grid.trials) == 4 * 2 * 2 * 3


@pytest.mark.parametrize("text", ["lr = ", "part = 3\nlr = 1", "lr = [[1]]", "lr = {a = 1}", "\x00"])
def test_a_bad_toml_file_is_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text('model = "wrn16_2"\ndata = "digits"\nbatch_size = 64\nepochs = 2\n' + text)
    with pytest.raises(ConfigError) as error:
        read_grid(file)
    assert "\n" not in str(error.value)


def test_a_missing_toml_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.toml: cannot be read"):
        read_grid(tmp_path / "none.toml")


def test_the_documented_example_holds() -> None:
    outcome = doctest.testmod(grid_module)
    assert outcome.attempted
    assert not outcome.failed


def test_packs_share_data_batch_length_and_position() -> None:
    configs = [SMALL, replace(SMALL, lr=1.0), replace(SMALL, batch_size=64), replace(SMALL, epochs=3)]
    groups = group([(config, 0) for config in configs] + [(replace(SMALL, seed=1), 5)])
    assert [len(members) for members in groups.values()] == [2, 1, 1, 1]
    assert [len(pack) for pack in split(configs, 3)] == [3, 1]
