"""A watch in unusual loops: several at once, wrapped optimizers, tiny and huge numbers, models that change."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from skipinit.probing.watch import watch
from support.probe_models import vectors

BATCH = vectors(16)
TARGETS = torch.arange(16) % 6


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.alpha = nn.Linear(6, 6), nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        return x + self.alpha * F.relu(self.layer(x))


def make():
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), Block())


def train(model, optimizer, steps=3):
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(BATCH), TARGETS)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


WATCHED = {
    "one model twice": (lambda m: m, lambda m: m),
    "a model and its block": (lambda m: m, lambda m: m[1]),
    "a block and its model": (lambda m: m[1], lambda m: m),
}


@pytest.mark.parametrize("name", WATCHED)
def test_two_watches_at_once_see_what_each_sees_alone(name):
    alone = []
    for part in WATCHED[name]:
        model = make()
        with watch(part(model), every=1) as watching:
            losses = train(model, sgd(model))
        alone.append(watching.report())
    model = make()
    first, second = (watch(part(model), every=1) for part in WATCHED[name])
    assert train(model, sgd(model)) == losses
    first.stop()
    second.stop()
    assert [first.report(), second.report()] == alone
