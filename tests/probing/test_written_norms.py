"""Norms written by hand are read as the layers of torch that compute the same."""

from __future__ import annotations

import pytest
import torch

from skipinit.probing.measure import find_residual_adds, probe
from support.probe_models import Function, vectors
from support.written_norms import (
    TWINS,
    AffineNorm,
    CosineAttention,
    PostNormalized,
    ResponseNorm,
    WrittenNorm,
    by_each_value,
    by_power_of_each_value,
    by_scale_over_deviation,
    network,
)

X = vectors(64)


@pytest.mark.parametrize("written", TWINS, ids=lambda function: function.__name__)
def test_a_written_norm_is_read_like_that_of_torch(written):
    ours = probe(network(lambda: WrittenNorm(written)), X)
    torchs = probe(network(TWINS[written]), X)
    assert ours.adds == torchs.adds
    assert all(add.normalized and add.branch_norms == (f"{add.name}.norm",) for add in ours.adds)
    for row, expected in zip(ours.rows, torchs.rows, strict=True):
        assert row.branch_variance == pytest.approx(expected.branch_variance, rel=1e-4)
    assert str(ours.verdict) == str(torchs.verdict)


@pytest.mark.parametrize("layer", [WrittenNorm, AffineNorm])
@pytest.mark.parametrize("written", TWINS, ids=lambda function: function.__name__)
def test_blocks_follow_each_other_through_a_written_norm(written, layer):
    ours = probe(network(lambda: layer(written), PostNormalized), X)
    torchs = probe(network(TWINS[written], PostNormalized), X)
    assert [add.follows for add in ours.adds] == [None, *(add.name for add in ours.adds[:-1])]
    assert str(ours.verdict) == str(torchs.verdict)


def test_a_batch_norm_may_be_one_scale():
    adds = find_residual_adds(network(lambda: WrittenNorm(by_scale_over_deviation)), X)
    assert [add.branch_norms for add in adds] == [(f"{i}.norm",) for i in range(8)]


@pytest.mark.parametrize("written", [by_each_value, by_power_of_each_value])
def test_what_only_looks_like_a_norm_is_none(written):
    assert not any(add.normalized for add in find_residual_adds(network(lambda: WrittenNorm(written)), X))


def test_a_response_norm_is_none():
    assert not any(add.normalized for add in find_residual_adds(network(ResponseNorm), X))


@pytest.mark.parametrize("written", ["x / root", "x * power"])
@pytest.mark.parametrize("mixed", ["outside", "inside"])
def test_scaling_by_the_noise_level_is_no_norm(written, mixed):
    """EDM's preconditioning: the inputs are divided by a root of the noise's variance, not of their own."""

    class Denoiser(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = torch.nn.Linear(6, 12), torch.nn.Linear(12, 6)

        def forward(self, x, noise, sigma):
            if mixed == "inside":
                x = x + sigma * noise
            total = sigma**2 + 0.25
            scaled = x / total.sqrt() if written == "x / root" else x * total**-0.5
            return 0.25 / total * x + 0.5 * sigma * total**-0.5 * self.last(self.first(scaled).relu())

    adds = find_residual_adds(Denoiser(), (X, torch.randn(64, 6), torch.rand(64, 1) + 0.1))
    assert [add.normalized for add in adds] == [False]


@pytest.mark.parametrize("written", ["rsqrt", "power", "sqrt"])
def test_the_degrees_of_a_graph_are_no_size(written):
    """D^-1/2 A D^-1/2, by which graph networks mix: roots of sums, not of sums of squares."""

    def mix(m, x):
        weights = (x @ x.T).abs()
        degrees = weights.sum(1)
        factors = {"rsqrt": degrees.rsqrt(), "power": degrees**-0.5, "sqrt": 1 / degrees.sqrt()}[written]
        return x + (factors[:, None] * weights * factors) @ m.a(x)

    assert [add.normalized for add in find_residual_adds(Function(mix), X)] == [False]


def test_a_scale_by_a_learned_deviation_is_no_norm():
    """As in a reparametrized layer: the size is that of a weight, not of the data."""

    class Standardized(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(6))

        def forward(self, x):
            return x / self.weight.std()

    assert not any(add.normalized for add in find_residual_adds(network(Standardized), X))


def test_cosine_attention_is_one_branch():
    (add,) = find_residual_adds(network(CosineAttention)[:1], X)
    assert add.branch_modules[-1] == "0.last"
