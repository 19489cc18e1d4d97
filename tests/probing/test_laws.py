"""The paper's closed forms, and where they are applied to a measured network."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from skipinit.nets.create import create_model
from skipinit.probing import laws
from skipinit.probing.laws import predict
from skipinit.probing.measure import probe
from support.probe_models import Function, images

IMAGES = images(4)


def chain(block, depth=8, width=64):
    """What theory predicts for so many of these blocks, and what is measured."""

    def forward(m, x):
        for layer in m.layers:
            x = block(m, layer, x)
        return x

    torch.manual_seed(0)
    model = Function(forward)
    model.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))
    model.heads = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(2))
    for layer in (*model.layers, *model.heads):
        nn.init.normal_(layer.weight, std=width**-0.5)
    report = probe(model, torch.Size([256, width]))
    return predict(report), report.rows[-1]


def test_closed_forms():
    assert [laws.unnormalized_variance(depth) for depth in (1, 2, 5)] == [1, 2, 16]
    assert [laws.normalized_variance(depth) for depth in (1, 7)] == [1, 7]
    assert laws.relu_moving_variance(3) + laws.relu_squared_moving_mean(3) == pytest.approx(3)
    assert laws.relu_squared_moving_mean(math.pi) == pytest.approx(1)
    assert [laws.normalized_branch_share(depth) for depth in (1, 3)] == [0.5, 0.25]
    assert laws.scaled_branch_share(1) == 0.5
    for alpha in (0, 0.3, 1):  # the share is what the growth says it is
        assert laws.scaled_variance(5, alpha) == pytest.approx(
            laws.scaled_variance(4, alpha) / (1 - laws.scaled_branch_share(alpha))
        )


def test_predictions_follow_the_section_on_theory():
    """Section 2.1: doubling, l from each projection on, constant after division by sqrt(2), no law for V1."""
    rows = {
        scheme: predict(probe(create_model("wrn28_1", scheme=scheme, seed=0), IMAGES))
        for scheme in ("none", "batchnorm", "divide-sqrt2", "skipinit")
    }
    assert rows["none"].skip[11] / rows["none"].skip[0] == pytest.approx(2**11)
    assert set(rows["none"].share) == {0.5}
    assert rows["batchnorm"].skip == (1, 2, 3, 4) * 3
    assert rows["batchnorm"].share == pytest.approx([1 / 2, 1 / 3, 1 / 4, 1 / 5] * 3)
    assert rows["divide-sqrt2"].skip == pytest.approx([rows["divide-sqrt2"].skip[0]] * 12)
    assert set(rows["divide-sqrt2"].share) == {0.5}
    assert set(rows["skipinit"].branch) == {0}
    assert rows["none"].branch == pytest.approx(rows["none"].skip)
    assert rows["batchnorm"].branch == (1,) * 12
    assert [len(prediction.share) for prediction in rows.values()] == [12] * 4
    for scheme in ("batchnorm", "skipinit"):
        assert predict(probe(create_model("resnet50_v1", scheme=scheme, seed=0), IMAGES)) is None
    assert predict(probe(create_model("wrn28_1", scheme="batchnorm-on-skip", seed=0), IMAGES)) is None


def test_one_scalar_for_all_branches_gives_a_law_and_two_give_none():
    """alpha = 1/2: each block multiplies the variance by 1 + 1/4, a fifth of it from the branch."""
    model = create_model("wrn16_1", scheme="skipinit", alpha=0.5, seed=0)
    prediction = predict(probe(model, IMAGES))
    first = prediction.skip[0]
    assert prediction.skip == pytest.approx([first * 1.25**block for block in range(6)], rel=1e-5)
    assert prediction.branch == pytest.approx([skip / 4 for skip in prediction.skip], rel=1e-5)
    assert prediction.share == pytest.approx([1 / 5] * 6, rel=1e-5)
    with torch.no_grad():
        model.blocks[2].merge.alpha.fill_(0.6)
    assert predict(probe(model, IMAGES)) is None


def test_a_branch_that_is_zero_before_its_scalar_has_no_law():
    model = create_model("wrn10_1", scheme="skipinit", alpha=0.5, seed=0)
    with torch.no_grad():
        model.blocks[1].branch.conv2.weight.zero_()
    assert predict(probe(model, IMAGES)) is None


def test_branches_that_call_a_norm_as_a_function_are_normalized():
    prediction, last = chain(lambda m, layer, x: x + layer(x))
    assert (prediction.skip[-1], last.skip_variance) == pytest.approx((2**7, 2**7), rel=0.3)
    layer_norm, last = chain(lambda m, layer, x: x + layer(F.layer_norm(x, (64,))))
    assert layer_norm is None
    assert last.skip_variance == pytest.approx(8, rel=0.1)
    batch_norm, last = chain(lambda m, layer, x: x + layer(F.batch_norm(x, None, None, training=True)))
    assert (batch_norm.skip[-1], last.skip_variance) == pytest.approx((8, 8), rel=0.1)


NO_LAW = {
    "highway": lambda m, layer, x: (t := x.sigmoid()) * layer(x) + (1 - t) * x,
    "learned factor on the skip": lambda m, layer, x: m.scalar * x + layer(x),
    "buffer on the skip": lambda m, layer, x: torch.full((), 0.5) * x + layer(x),
    "number on the skip alone": lambda m, layer, x: 0.5 * x + 0.5 * layer(x),
    "pooled skip": lambda m, layer, x: F.avg_pool1d(x[None], 3, 1, 1)[0] + layer(x),
    "norm as a function on the skip": lambda m, layer, x: F.layer_norm(x, (64,)) + layer(x),
    "normalized branches times a number": lambda m, layer, x: (
        x + 0.1 * F.batch_norm(layer(x), None, None, training=True)
    ),
    "a projection without an activation": lambda m, layer, x: (
        m.heads[0](x) + m.heads[1](layer(x).relu()) if layer is m.layers[4] else x + layer(x)
    ),
    "a projection of what a layer made of the sum": lambda m, layer, x: (
        m.heads[0](h := m.heads[1](x).relu()) + m.heads[1](layer(h).relu())
        if layer is m.layers[4]
        else x + layer(x)
    ),
    "only projections": lambda m, layer, x: m.heads[0](x) + m.heads[1](layer(x).relu()),
    "only projections, normalized branches": lambda m, layer, x: (
        m.heads[0](x) + m.heads[1](F.batch_norm(layer(x), None, None, training=True))
    ),
}


@pytest.mark.parametrize("form", NO_LAW)
def test_no_law_for_skips_that_are_not_the_stream(form):
    assert chain(NO_LAW[form])[0] is None


SAME_LAW = {
    "copied": lambda m, layer, x: x.clone().add_(layer(x)),
    "times one": lambda m, layer, x: (x * 1.0).add_(layer(x)),
    "sum times a number": lambda m, layer, x: 0.7 * (x + layer(x)),
    "two branches": lambda m, layer, x: x + layer(x) + m.heads[0](x),
}


@pytest.mark.parametrize("form", SAME_LAW)
def test_the_law_holds_for_multiples_of_the_stream(form):
    prediction, last = chain(SAME_LAW[form])
    assert prediction.skip[-1] == pytest.approx(last.skip_variance, rel=0.5)


def test_laws_leave_the_range_of_numbers_without_an_error():
    assert laws.unnormalized_variance(2000) == laws.scaled_variance(2000, 1.0) == math.inf
    # A saturated branch times 10 predicts a factor of 101 in each block, more than a float holds.
    prediction, last = chain(lambda m, layer, x: x + 10 * torch.tanh(layer(x)), depth=160, width=8)
    assert prediction.skip[-1] == math.inf
    assert math.isfinite(last.skip_variance)
    # The halves of (x + f(x)) / sqrt(2) cancel at any depth.
    prediction, last = chain(lambda m, layer, x: (x + layer(x)) * 0.5**0.5, depth=1100, width=8)
    assert prediction.skip[-1] == pytest.approx(prediction.skip[0])
