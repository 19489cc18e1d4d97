"""Weights without a layer of their own: a parameter that only multiplies data, as a matrix, starts by He."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from skipinit import convert

X = torch.randn(8, 5, 32, generator=torch.Generator().manual_seed(0))
MIX = torch.ones(32, 64)
GROUPS = torch.tensor([16, 40], dtype=torch.int32)


class Net(nn.Module):
    """x + end(product(norm(x), w))"""

    def __init__(self, shape, product) -> None:
        super().__init__()
        self.norm, self.w, self.end = nn.LayerNorm(32), nn.Parameter(torch.zeros(shape)), nn.Linear(64, 32)
        self.product = product

    def forward(self, x):
        return x + self.end(self.product(self.norm(x), self.w))


def with_bias(x, w):
    return torch.addmm(torch.zeros(64), x.flatten(0, 1), w).view(8, 5, 64)


def heads(x, w):
    return torch.einsum("bnd,dhe->bhne", x, w).transpose(1, 2).flatten(2)


def grouped(x, w):
    return torch._grouped_mm(x.flatten(0, 1), w, offs=GROUPS).unflatten(0, (8, 5))


# The shape of the parameter, what is computed with it, and how many products a value sums.
MATRICES = {
    "matmul": ((32, 64), lambda x, w: x @ w, 32),
    "linear": ((64, 32), F.linear, 32),
    "with a bias": (
        (32, 64),
        lambda x, w: torch.addmm(X.new_zeros(64), x.flatten(0, 1), w).view(8, 5, 64),
        32,
    ),
    "heads": ((32, 4, 16), heads, 32),
    "joined heads": ((4, 8, 64), lambda x, w: torch.einsum("bnhe,hed->bnd", x.unflatten(2, (4, 8)), w), 32),
    "experts": ((3, 64, 32), lambda x, w: F.linear(x, w[1]), 32),
    "grouped experts": ((2, 32, 64), grouped, 32),
    "a matrix for each token": ((5, 32, 64), lambda x, w: torch.einsum("bnd,nde->bne", x, w), 32),
    "from the left": ((400, 5), lambda x, w: (w @ x)[:, :5].repeat(1, 1, 2), 5),
    "in another type": ((32, 64), lambda x, w: (x.double() @ w.double()).float(), 32),
}


@pytest.mark.parametrize("name", MATRICES)
def test_a_matrix_has_variance_2_over_its_fan_in(name):
    shape, product, fan_in = MATRICES[name]
    conversion = convert(Net(shape, product), X, seed=0)
    assert conversion.kept == ()
    assert conversion.model.w.var().item() == pytest.approx(2 / fan_in, rel=0.1)
    assert torch.equal(convert(Net(shape, product), X, seed=0).model.w, conversion.model.w)
    assert not convert(Net(shape, product), X, only="norm").model.w.any()


# Tables, scales, and what the weight is computed from.
OTHERS = {
    "table and head": ((64, 32), lambda x, w: (x + w[torch.arange(5)]) @ w.T),
    "scale of each token": ((5, 32), lambda x, w: torch.einsum("bnd,nd->bnd", x, w).repeat(1, 1, 2)),
    "scale": ((1, 1, 32), lambda x, w: (x * w).repeat(1, 1, 2)),
    "standardized": ((32, 64), lambda x, w: x @ (w - w.mean(0))),
    "low rank": ((64, 32), lambda x, w: x @ (w.T @ w[:, :1]).expand(-1, 64)),
    "sum in a product": ((40, 64), lambda x, w: torch.addmm(w, x.flatten(0, 1), MIX).view(8, 5, 64)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_any_other_parameter_is_kept_and_listed(name):
    shape, product = OTHERS[name]
    conversion = convert(Net(shape, product), X, seed=0)
    assert conversion.kept == ("w",)
    assert not conversion.model.w.any()
