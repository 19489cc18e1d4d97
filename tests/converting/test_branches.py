"""Which module carries a branch's scalar: one that ends this branch and has no other use."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from skipinit import Add, convert
from support.convert_models import scalars
from support.probe_models import vectors

X = vectors(8)


class SharedEnd(nn.Module):
    """Two branches end in the same module, as in blocks with one dropout or drop path for both."""

    def __init__(self, end: nn.Module) -> None:
        super().__init__()
        self.norm1, self.first = nn.LayerNorm(6), nn.Linear(6, 6)
        self.norm2, self.second = nn.LayerNorm(6), nn.Linear(6, 6)
        self.end = end

    def forward(self, x):
        x = x + self.end(self.first(self.norm1(x)))
        return x + self.end(self.second(self.norm2(x)))


class Halve(nn.Module):
    def forward(self, x):
        return x / 2


@pytest.mark.parametrize("end", [nn.Dropout(0.1), Halve(), nn.GELU()])
def test_branches_that_end_in_one_module_have_a_scalar_each(end):
    net = convert(nn.Sequential(SharedEnd(end), nn.Linear(6, 3)), X, strict=True).model.eval()
    block, head = net
    first, second = scalars(net).values()
    with torch.no_grad():
        first.fill_(2.0)
        second.fill_(3.0)
    # The same block, written out: 2 and 3 times what ends each branch.
    linear = nn.functional.linear
    sum1 = X + 2 * end.eval()(linear(X, block.first.weight, block.first.bias))
    sum2 = sum1 + 3 * end(linear(sum1, block.second.weight, block.second.bias))
    torch.testing.assert_close(net(X), head(sum2))


class BranchIsRead(nn.Module):
    """The head reads the branch itself, too."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer, self.head = nn.LayerNorm(6), nn.Linear(6, 6), nn.Linear(12, 3)

    def forward(self, x):
        branch = self.layer(self.norm(x))
        return self.head(torch.cat([x + branch, branch], 1))


class BranchIsReturned(BranchIsRead):
    def forward(self, x):
        branch = self.layer(self.norm(x))
        return x + branch, branch


@pytest.mark.parametrize("kind", [BranchIsRead, BranchIsReturned])
def test_a_branch_that_is_used_elsewhere_is_scaled_at_the_add_alone(kind):
    net = convert(kind(), X, strict=True, classifier_init="he").model
    assert [alpha.item() for alpha in scalars(net).values()] == [0.0]
    branch = nn.functional.linear(X, net.layer.weight, net.layer.bias)
    expected = (X, branch) if kind is BranchIsReturned else net.head(torch.cat([X, branch], 1))
    torch.testing.assert_close(net(X), expected)


class Loop(nn.Module):
    """A loop that may drop layers in training, and whose branches end in a function."""

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(6) for _ in range(4))
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        self.head, self.drop = nn.Linear(6, 3), drop

    def forward(self, x):
        for norm, layer in zip(self.norms, self.layers, strict=True):
            if self.training and torch.rand(()) < self.drop:
                continue
            x = x + torch.tanh(layer(norm(x)))
        return self.head(x)


def test_blocks_of_a_loop_that_drops_layers_are_left_and_named():
    # The second block is at the first hit of the line when the first is dropped: whose scalar would it get?
    left = r"Loop, Loop#2, Loop#3, Loop#4 \(its add cannot be told from those of other blocks"
    with pytest.warns(UserWarning, match=left), pytest.warns(UserWarning, match="contribute from the start"):
        conversion = convert(Loop(drop=0.1), X)
    assert not scalars(conversion.model)
    assert conversion.num_blocks == conversion.num_norms == 0


def test_blocks_of_a_loop_that_drops_none_have_a_scalar_each():
    assert len(scalars(convert(Loop(drop=0.0), X, strict=True).model)) == 4


class SharedAdd(Loop):
    """The blocks share the module that adds."""

    def __init__(self) -> None:
        super().__init__(drop=0.0)
        self.add = Add()

    def forward(self, x):
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = self.add(x, torch.tanh(layer(norm(x))))
        return self.head(x)


def test_blocks_that_share_the_module_that_adds_are_left_and_named():
    left = r"add, add#2, add#3, add#4 \(its add cannot be told from those of other blocks"
    with pytest.warns(UserWarning, match=left), pytest.warns(UserWarning, match="contribute from the start"):
        assert not scalars(convert(SharedAdd(), X).model)
