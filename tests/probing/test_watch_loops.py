"""A watch in unusual loops: several at once, wrapped optimizers, compiled functions."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from skipinit.errors import ConfigError
from skipinit.probing.measure import probe
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


@pytest.mark.parametrize(
    ("size", "dtype"), [(1e-30, torch.float32), (1e30, torch.float32), (1e140, torch.float64)]
)
def test_tiny_and_huge_gradients_keep_their_size(size, dtype):
    """Gradients and updates of a loss times a number are that many times as large."""
    model, twin = make().to(dtype), make().to(dtype)
    F.cross_entropy(twin(BATCH.to(dtype)), TARGETS).backward()
    with watch(model, every=1) as watching:
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        (size * F.cross_entropy(model(BATCH.to(dtype)), TARGETS)).backward()
        optimizer.step()
    for row, block in zip(watching.report().measurements[0].rows, twin, strict=True):
        gradients = torch.cat([p.grad.double().flatten() for p in block.parameters()])
        assert row.parameter_gradient_norm == pytest.approx(size * float(gradients.norm()), rel=1e-4)
        if size > 1:  # A tiny update is lost in the rounding of the weights.
            weights = torch.cat([p.detach().double().flatten() for p in block.parameters()])
            wanted = size * float(gradients.norm() / weights.norm())
            assert row.update_ratio == pytest.approx(wanted, rel=1e-4)


class Lookahead(torch.optim.Optimizer):
    """Half of what the optimizer inside it does."""

    def __init__(self, inner):
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def step(self, closure=None):
        parameters = [p for group in self.param_groups for p in group["params"]]
        before = [p.detach().clone() for p in parameters]
        self.inner.step()
        with torch.no_grad():
            for parameter, old in zip(parameters, before, strict=True):
                parameter.lerp_(old, 0.5)


def test_an_optimizer_around_another_is_one_update():
    plain, wrapped = make(), make()
    with watch(plain, every=1) as inner, watch(wrapped, every=1) as outer:
        train(plain, sgd(plain), 1)
        train(wrapped, Lookahead(sgd(wrapped)), 2)
    assert outer.report().steps == (0, 1)
    for half, whole in zip(
        outer.report().measurements[0].rows, inner.report().measurements[0].rows, strict=True
    ):
        assert half.update_ratio == pytest.approx(whole.update_ratio / 2, rel=1e-4)


def test_parameters_that_an_optimizer_gets_later_are_counted():
    head, model = nn.Linear(6, 6), make()
    optimizer = sgd(head)
    with watch(model, every=1) as watching:
        train(nn.Sequential(model, head), optimizer, 2)
        optimizer.add_param_group({"params": list(model.parameters())})
        train(nn.Sequential(model, head), optimizer, 2)
    assert watching.report().steps == (0, 1)
    assert all(row.update_ratio > 0 for row in watching.report().measurements[-1].rows)


def test_a_model_that_trains_only_in_odd_steps_is_measured():
    """Two models share an optimizer and take turns."""
    other, model = make(), make()
    optimizer = torch.optim.SGD([*other.parameters(), *model.parameters()], lr=0.1)
    with watch(model, every=2) as watching:
        for _ in range(3):
            train(other, optimizer, 1)
            train(model, optimizer, 1)
    assert watching.report().steps == (1, 3, 5)


class KeepsItsLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = make()

    def forward(self, batch):
        self.loss = F.cross_entropy(self.net(batch), TARGETS)


def test_a_forward_that_returns_nothing_is_measured():
    model = KeepsItsLoss()
    optimizer = sgd(model)
    with watch(model, every=2) as watching:
        for _ in range(3):
            model(BATCH)
            model.loss.backward()
            optimizer.step()
    assert watching.report().steps == (0, 2)


def test_a_loop_without_an_optimizer_says_what_to_call():
    model = make()
    with watch(model, every=1) as watching:
        for _ in range(3):
            model(BATCH).square().mean().backward()
    assert watching.report().steps == (0,)
    assert "call watch.count_step()" in watching.report().summary()
    train(model, sgd(model), 1)
    with watch(model, every=1) as watching:
        train(model, sgd(model), 1)
    assert watching.report().remark == ""


EAGER = {"backend": "aot_eager"}  # A compiler that takes no minutes.


def with_a_compiled_activation(model):
    relu = torch.compile(F.relu, **EAGER)
    relu(BATCH)  # What is compiled already is not compiled again under a trace.
    for block in model:
        block.forward = lambda x, b=block: x + b.alpha * relu(b.layer(x))
    return model


def in_a_compiled_function(model):
    return torch.compile(lambda batch: model(batch), **EAGER)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # The compiler looks at activations.
@pytest.mark.parametrize("compiled", [with_a_compiled_activation, in_a_compiled_function])
def test_compiled_functions_hide_no_block(compiled):
    def run(model):
        torch._dynamo.reset()
        return train(compiled(model), sgd(model))

    eager, model, plain = make(), make(), make()
    with watch(eager, every=2) as wanted:
        train(eager, sgd(eager))
    with watch(model, every=2) as watching:
        losses = run(model)
    assert run(plain) == losses
    for found, same in zip(watching.report().measurements, wanted.report().measurements, strict=True):
        shares = {row.name: row.branch_share for row in same.rows}
        assert {row.name: row.branch_share for row in found.rows} == pytest.approx(shares, rel=1e-5)


def test_settings_of_numpy_can_be_saved():
    model = make()
    with watch(model, every=np.int64(2), limit=np.int32(5)) as watching:
        train(model, sgd(model), 1)
    assert json.loads(json.dumps(watching.state_dict()))["every"] == 2


def test_a_lazy_model_is_refused_until_it_has_weights():
    model = nn.Sequential(nn.LazyLinear(6), Block())
    for refused in (lambda: watch(model), lambda: probe(model, BATCH)):
        with pytest.raises(ConfigError, match=r"Sequential: 0.weight has no size yet; call the model once"):
            refused()
    model(BATCH)
    with watch(model, every=1) as watching:
        train(model, sgd(model), 1)
    assert watching.report().blocks == ("1",)


def test_weights_that_autocast_has_cast_already_are_those_of_the_model():
    """As in self-distillation: the model runs without gradients, then it trains, under one autocast."""

    def step(model, first):
        torch.manual_seed(0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with watch(model, every=1) as watching:
            with torch.autocast("cpu", torch.bfloat16):
                if first:
                    with torch.no_grad():
                        model(BATCH)
                loss = F.cross_entropy(model(BATCH), TARGETS)
            loss.backward()
            optimizer.step()
        return watching.report().measurements

    torch.manual_seed(1)
    model = nn.Sequential(Block(), Block(), nn.Linear(6, 6))
    assert step(copy.deepcopy(model), first=True) == step(model, first=False)


def test_a_writer_that_cannot_be_called_is_refused_at_once():
    for writers in (["balance.csv"], 3):
        with pytest.raises(ConfigError, match=r"writers=.* functions that take a Measurement"):
            watch(make(), writers=writers)
