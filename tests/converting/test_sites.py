"""The operands of an add in the source, whatever torch's functions are called with."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from skipinit import convert
from support.convert_models import scalars

X = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
SUMS = {
    "dim": lambda both: both.sum(dim=0),
    "position": lambda both: both.sum(0),
    "tuple": lambda both: both.sum((0,)),
    "axis": lambda both: both.sum(axis=0),
    "all by name": lambda both: torch.sum(input=both, dim=0),
}


class Stacked(nn.Module):
    def __init__(self, name) -> None:
        super().__init__()
        self.norm, self.layer, self.name = nn.LayerNorm(8), nn.Linear(8, 8), name

    def forward(self, x):
        return SUMS[self.name](torch.stack([x, F.gelu(self.layer(self.norm(x)))]))


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_of_skip_and_branch_is_written_in_any_way(name):
    model = convert(nn.Sequential(Stacked(name), nn.Linear(8, 3)), X, alpha=0.5, strict=True).model
    assert len(scalars(model)) == 1
    block = model[0]
    expected = X + 0.5 * F.gelu(F.linear(X, block.layer.weight, block.layer.bias))
    torch.testing.assert_close(block(X), expected)


class ToBeQuantized(nn.Module):
    """As torchvision's quantizable models: a module of torch's package of quantized layers adds floats."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(8), nn.Linear(8, 8)
        self.sum = torch.ao.nn.quantized.FloatFunctional()

    def forward(self, x):
        return self.sum.add_relu(x, self.layer(self.norm(x)))


def test_a_model_that_is_to_be_quantized_is_no_quantized_model():
    model = convert(nn.Sequential(ToBeQuantized(), nn.Linear(8, 3)), X, alpha=0.5, strict=True).model
    block = model[0]
    expected = F.relu(X + 0.5 * F.linear(X, block.layer.weight, block.layer.bias))
    torch.testing.assert_close(block(X), expected)
