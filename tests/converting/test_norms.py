"""Norms that take more than the tensor they normalize, and forwards that fail once a norm is gone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from skipinit import convert
from skipinit.converting.norms import norm_calls
from skipinit.errors import SkipinitError
from support.convert_models import scalars
from support.probe_models import vectors

X = vectors(8)


class GatedRMSNorm(nn.Module):
    """As in Mamba 2: the gate is part of the norm's own forward."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x, gate):
        x = x * nn.functional.silu(gate)
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class ConditionalBatch(nn.BatchNorm1d):
    """A batch norm whose scale depends on a condition."""

    def __init__(self) -> None:
        super().__init__(6, affine=False)
        self.scale = nn.Linear(6, 6)

    def forward(self, x, condition):
        return super().forward(x) * self.scale(condition)


class Block(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first, self.maps = nn.BatchNorm1d(6), nn.Linear(6, 12)
        self.inner, self.last = inner, nn.Linear(6, 6)

    def forward(self, x):
        return x + self.last(self.inner(*self.maps(self.first(x)).chunk(2, -1)))


@pytest.mark.parametrize("inner", [GatedRMSNorm, ConditionalBatch])
@pytest.mark.parametrize("keep_function", [False, True])
def test_a_norm_with_several_inputs_is_left_and_named(inner, keep_function):
    net = nn.Sequential(Block(inner()), nn.Linear(6, 3))
    with pytest.warns(UserWarning, match=f"0.inner .{inner.__name__} takes several tensors"):
        conversion = convert(net, X, keep_function=keep_function)
    assert conversion.num_norms == 1
    assert len(scalars(conversion.model)) == 1
    block, head = conversion.model.eval()
    assert type(block.inner) is inner
    if keep_function:
        torch.testing.assert_close(conversion.model(X), net.eval()(X))
    else:
        torch.testing.assert_close(conversion.model(X), head(X))


class WithSize(nn.LayerNorm):
    def forward(self, x, size=None):
        return super().forward(x)


class Sized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = WithSize(6), nn.Linear(6, 6)

    def forward(self, x):
        return x + self.layer(self.norm(x, 3))


def test_a_forward_that_fails_without_its_norms_is_refused_in_one_line():
    with pytest.raises(SkipinitError, match=r"Sized: its forward fails without its norms \(Identity.forward"):
        convert(Sized(), X)


def test_writes_into_the_output_of_a_norm_are_counted_without_its_values():
    net = nn.Sequential(nn.LayerNorm(6), nn.ReLU(inplace=True), nn.LayerNorm(6))
    with norm_calls(net) as calls:
        net(X)
    assert {name: call.output._version - call.version for name, call in calls.items()} == {"0": 1, "2": 0}
    assert all(call.output.untyped_storage().nbytes() == 0 for call in calls.values())
