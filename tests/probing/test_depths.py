"""Networks of several depths, against the paper's laws."""

from __future__ import annotations

import csv
import io
import json
import math
import random

import numpy as np
import pytest
import torch

import skipinit
from skipinit.errors import ConfigError
from skipinit.nets.create import create_model
from skipinit.probing.depths import DepthCheck, DepthRow, depth_check

VECTORS = torch.Size([200, 100])


def factory(name):
    return lambda blocks: create_model(name, blocks=blocks, width=100, in_channels=100)


def test_depths_of_numpy_and_of_a_generator_are_whole_numbers():
    wanted = depth_check(factory("fc_linear"), [2, 4], VECTORS)
    for depths in (np.array([2, 4]), (n for n in (4, 2))):
        assert depth_check(factory("fc_linear"), depths, VECTORS).to_json() == wanted.to_json()


def test_the_picture_is_drawn(tmp_path):
    check = depth_check(factory("fc_linear"), [2, 4, 6, 8, 10], VECTORS)
    check.plot(tmp_path / "depths.svg")
    assert "<svg" in (tmp_path / "depths.svg").read_text()
    assert "<pre>" in check._repr_html_()


@pytest.mark.parametrize(
    ("name", "law", "variance"),
    [("fc_linear", "exponential", lambda n: 2.0**n), ("fc_linear_bn", "power", lambda n: n + 1.0)],
)
def test_depths_follow_the_papers_laws(name, law, variance):
    """The sum after n blocks has variance 2^n without normalization, and n + 1 with it."""
    check = depth_check(factory(name), [16, 4, 8], VECTORS)
    assert [row.depth for row in check.rows] == [row.blocks for row in check.rows] == [4, 8, 16]
    assert check.law == law
    for row in check.rows:
        assert math.log(row.output_variance) == pytest.approx(math.log(variance(row.blocks)), rel=0.2)


def test_skipinit_does_not_depend_on_depth():
    images, targets = torch.Size([4, 3, 16, 16]), torch.tensor([0, 1, 2, 3])
    check = depth_check(
        lambda depth: create_model(f"wrn{depth}_2", scheme="skipinit"), [10, 22, 40], images, targets
    )
    assert check.law == "constant"
    assert all(row.gradient_ratio is not None for row in check.rows)
    assert "does not depend on depth" in str(check)


class Chain(torch.nn.Module):
    """What becomes of the skip in each block, beside branches of nothing."""

    def __init__(self, depth, skip):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(100, 100) for _ in range(depth))
        self.skip = skip

    def forward(self, x):
        for n, layer in enumerate(self.layers, start=1):
            x = self.skip(x, n) + 0 * layer(x)
        return x


FALLING = {
    "falls exponentially, 0.5-fold a block": lambda x, n: x * 0.5**0.5,
    "falls as the number of blocks to the power -1.": lambda x, n: x * (max(n - 1, 1) / n) ** 0.5,
}


@pytest.mark.parametrize("text", FALLING)
def test_a_falling_variance_does_not_grow(text):
    """A skip whose variance after n blocks is 2^-n, or 1 / n."""

    check = depth_check(lambda depth: Chain(depth, FALLING[text]), [4, 8, 16], VECTORS)
    assert text in str(check)


def test_slow_growth_that_goes_far_is_no_power():
    """From 20 to 60 blocks the variance grows by 1.15^40 = 268."""
    check = depth_check(lambda depth: Chain(depth, lambda x, _: x * 1.15**0.5), [20, 40, 60], VECTORS)
    assert check.law == "exponential"
    assert "grows exponentially, 1.15-fold a block" in str(check)


def test_weights_come_from_the_seed_alone():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = depth_check(factory("fc_linear"), [2], VECTORS)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    assert depth_check(factory("fc_linear"), [2], VECTORS).rows == first.rows
    assert "Too few depths" in str(first)


def test_depths_that_tell_nothing_say_why():
    same = depth_check(lambda depth: factory("fc_linear")(3 + depth // 16), [4, 8, 16], VECTORS)
    assert "All networks have 3, 4 blocks; three different numbers" in str(same)
    silent = depth_check(lambda depth: Chain(depth, lambda x, n: 0 * x), [2, 4, 6], VECTORS)
    assert "is 0 at depth 2: no signal is left there" in str(silent)


class DroppingChain(Chain):
    """x + f(x); in training each block is left out with probability 1/2."""

    def forward(self, x):
        for layer in self.layers:
            if not (self.training and torch.rand(()) < 0.5):
                x = x + layer(x)
        return x


def test_no_layer_is_dropped():
    check = depth_check(lambda depth: DroppingChain(depth, None), [4, 8, 16], VECTORS)
    assert [row.blocks for row in check.rows] == [4, 8, 16]


def test_infinite_depth_is_named():
    check = depth_check(factory("fc_linear"), [4, 300], VECTORS)
    assert "NaN or infinity appears at depth 300" in str(check)


@pytest.mark.parametrize(
    ("make", "depths", "message"),
    [
        (factory("fc_linear"), [], "depths is empty"),
        (factory("fc_linear"), 4, "depths=4 is not allowed; give whole numbers"),
        (factory("fc_linear"), [4, 4.5], r"depths=\[4, 4\.5\] is not allowed"),
        (factory("fc_linear"), "48", "depths='48' is not allowed"),
        (lambda depth: depth, [3], r"factory\(3\) returned a int"),
        (lambda depth: torch.nn.Linear(100, 100), [3], r"factory\(3\): Linear has no residual add"),
        (
            lambda depth: factory("fc_linear")(depth + torch.initial_seed()),
            [3],
            r"factory\(3\) made networks of 3 and 4 blocks; it must make them alike",
        ),
    ],
)
def test_wrong_factories_are_one_line(make, depths, message):
    with pytest.raises(ConfigError, match=message):
        skipinit.depth_check(make, depths, VECTORS)
    with pytest.raises(ConfigError, match=r"networks=1\.5 is not allowed"):
        skipinit.depth_check(make, [3], VECTORS, networks=1.5)


def test_a_gradient_that_is_no_number_is_null_in_json():
    row = DepthRow(depth=3, blocks=3, output_variance=1.0, typical_branch_share=0.5, gradient_ratio=math.inf)
    check = DepthCheck((row,), ())
    assert json.loads(check.to_json(), parse_constant=pytest.fail)["rows"][0]["gradient_ratio"] is None
    (line,) = csv.DictReader(io.StringIO(check.to_csv()))
    assert line["gradient_ratio"] == ""


def test_no_generator_is_moved_by_the_factory():
    def noisy(depth):
        random.random()
        np.random.random()
        return factory("fc_linear")(depth)

    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    skipinit.depth_check(noisy, [3], VECTORS)
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tolist() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_no_generator_of_a_gpu_is_moved_by_the_factory():
    torch.cuda.manual_seed_all(42)
    torch.rand(3, device="cuda")
    before = torch.cuda.get_rng_state()
    skipinit.depth_check(factory("fc_linear"), [3], VECTORS)
    assert torch.equal(torch.cuda.get_rng_state(), before)
