"""Norms written by hand are read as the layers of torch that compute the same."""

from __future__ import annotations

import pytest
import torch

from skipinit.probing.measure import find_residual_adds, probe
from support.probe_models import vectors
from support.written_norms import TWINS, CosineAttention, ResponseNorm, WrittenNorm, by_each_value, network

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


@pytest.mark.parametrize("layer", [ResponseNorm, lambda: WrittenNorm(by_each_value)])
def test_what_only_looks_like_a_norm_is_none(layer):
    assert not any(add.normalized for add in find_residual_adds(network(layer), X))


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
