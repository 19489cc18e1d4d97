"""Variances of tensors, taken in pieces, against NumPy in float64."""

from __future__ import annotations

import math

import pytest
import torch

from skipinit.probing.moments import StatisticsBuffer, channel_statistics


def test_statistics_neither_overflow_nor_cancel():
    values = torch.tensor([[3e37, -3e37], [1e37, 2e37]])
    within, between, squares = channel_statistics(values, 1).tolist()
    reference = values.double().numpy()
    assert within == pytest.approx(reference.var(0).mean())
    assert between == pytest.approx(reference.mean(0).var())
    assert squares == pytest.approx((reference.mean(0) ** 2).mean())
    shifted = torch.tensor([[1e7, 1e7 + 2], [1e7 + 2, 1e7]])
    assert channel_statistics(shifted, 0).tolist()[:2] == [1.0, 0.0]


CHUNKED = {
    "images": ((40, 8, 33, 31), 1),
    "one large image": ((1, 2, 700, 450), 1),
    "channels last": ((7, 300, 5, 40), 3),
    "vectors": ((4001, 90), 1),
}


@pytest.mark.parametrize("layout", CHUNKED)
def test_statistics_of_large_tensors_equal_those_of_the_whole(layout):
    """They are taken in pieces, the last one smaller; means far from zero, and drifting, must not matter."""
    shape, axis = CHUNKED[layout]
    drift = torch.linspace(50, 60, math.prod(shape)).view(shape)
    values = drift + torch.randn(shape, generator=torch.Generator().manual_seed(0))
    others = tuple(i for i in range(len(shape)) if i != axis)
    wide = values.double().numpy()
    expected = [wide.var(others).mean(), wide.mean(others).var(), (wide.mean(others) ** 2).mean()]
    before = values.clone()
    assert channel_statistics(values, axis).tolist() == pytest.approx(expected, rel=1e-11)
    assert torch.equal(values, before)
    assert channel_statistics(values.double(), axis).tolist() == pytest.approx(expected, rel=1e-11)


def test_buffer_keeps_thousands_of_entries_in_order():
    buffer = StatisticsBuffer()
    indices = [buffer.append(torch.tensor([float(i), -1.0])) for i in range(1000)]
    assert [buffer.tolist()[index] for index in indices] == [[i, -1] for i in range(1000)]
    assert buffer.append(torch.tensor([7.0, 7.0])) == len(buffer.tolist()) - 1
