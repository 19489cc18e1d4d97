"""Fixup's branches start at zero whatever they end in, and what cannot be zero is named."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from skipinit import convert
from support.probe_models import vectors

X = vectors(8)


class Block(nn.Module):
    """a, then b and c side by side; how they join is the test's."""

    def __init__(self, join) -> None:
        super().__init__()
        self.norm, self.a, self.b, self.c = nn.LayerNorm(6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.join = join

    def forward(self, x):
        return x + self.join(self, self.a(self.norm(x)).relu())


# How b and c join, and which of them start at zero.
JOINS = {
    "gate last": (lambda m, h: m.b(h) * m.c(h).sigmoid(), "b"),
    "gate first": (lambda m, h: m.c(h).sigmoid() * m.b(h), "b"),
    "squeeze and excite": (lambda m, h: (v := m.b(h)) * m.c(v).sigmoid(), "b"),
    "product": (lambda m, h: m.b(h) * m.c(h), "b"),
    "sum": (lambda m, h: m.b(h) + m.c(h), "bc"),
    "chain": (lambda m, h: m.c(m.b(h).relu()), "c"),
    "activation": (lambda m, h: nn.functional.gelu(m.c(m.b(h).relu())), "c"),
}


@pytest.mark.parametrize("name", JOINS)
def test_as_few_maps_as_needed_are_zero(name):
    join, zeros = JOINS[name]
    conversion = convert(nn.Sequential(*(Block(join) for _ in range(3))), X, scheme="fixup", seed=0)
    assert [row.branch_share for row in conversion.after.rows] == [0.0] * 3
    for block in conversion.model:
        found = [layer for layer in "abc" if not block.get_parameter(f"{layer}.weight").any()]
        assert found == list(zeros)
    assert torch.equal(conversion.model(X), X)
    conversion.model(X).square().sum().backward()
    for block in conversion.model:  # What is zero must be able to leave it.
        assert all(block.get_parameter(f"{layer}.weight").grad.any() for layer in zeros)


def test_a_branch_that_no_zero_map_makes_zero_is_named():
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.layer = nn.LayerNorm(6), nn.LSTM(6, 6)

        def forward(self, x):
            return x + self.layer(self.norm(x))[0]

    model = nn.Sequential(Block(JOINS["sum"][0]), Recurrent())
    with pytest.warns(UserWarning, match=r"contribute from the start, unlike Fixup's: 1 \("):
        conversion = convert(model, torch.randn(4, 3, 6), scheme="fixup", seed=0)
    assert [row.branch_share > 0 for row in conversion.after.rows] == [False, True]
