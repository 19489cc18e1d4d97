"""A converted network trains by the recipe, and what does not train says so."""

from __future__ import annotations

import copy
import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import skipinit
from skipinit.converting import recipe as module
from skipinit.converting.recipe import stuck
from skipinit.errors import ConfigError, SkipinitError
from support.convert_models import CifarResNet, scalars

X = torch.randn(256, 1, 8, 8, generator=torch.Generator().manual_seed(0))
Y = X.flatten(1)[:, :10].argmax(1)


def converted():
    torch.manual_seed(0)
    return skipinit.convert(CifarResNet(1, 8), X[:32], seed=0).model


def batches():
    return [(X[i : i + 64], Y[i : i + 64]) for i in range(0, 256, 64)]


def test_decay_is_on_weights_alone_and_every_parameter_has_one_place():
    model = converted()
    decayed, others = skipinit.recipe(model, 0.1).optimizer.param_groups
    assert (decayed["weight_decay"], others["weight_decay"]) == (5e-4, 0.0)
    placed = [id(p) for group in (decayed, others) for p in group["params"]]
    assert sorted(placed) == sorted(id(p) for p in model.parameters())
    assert {id(p) for p in decayed["params"]} == {id(p) for p in skipinit.l2_parameters(model).values()}
    assert {id(p) for p in scalars(model).values()} <= {id(p) for p in others["params"]}


def test_first_step_is_that_of_clipped_sgd():
    """Against the update by hand: the gradient, cut to norm 1, times the first rate of the warm-up."""
    model = nn.Linear(4, 3)
    twin = copy.deepcopy(model)
    x, y = 100 * torch.randn(8, 4), torch.randint(3, (8,))
    F.cross_entropy(twin(x), y).backward()
    norm = math.sqrt(sum(p.grad.square().sum().item() for p in twin.parameters()))
    assert norm > 1
    skipinit.recipe(model, 0.5, warm_up=10, weight_decay=0.0).step(F.cross_entropy(model(x), y))
    for after, before in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(after, before - 0.05 * before.grad / norm, rtol=1e-4, atol=1e-6)


def test_rate_rises_and_falls():
    recipe = skipinit.recipe(nn.Linear(2, 2), 1.0, steps=100, warm_up=10)
    rates = []
    for _ in range(100):
        rates.append(recipe.optimizer.param_groups[0]["lr"])
        recipe.optimizer.step()
        recipe.schedule.step()
    assert rates[0] == pytest.approx(0.1)
    assert rates[50] == pytest.approx(0.5)
    assert rates[-1] < 1e-3


def test_loss_that_stays_is_noticed():
    chance = math.log(10)
    assert stuck([chance] * 49, 10) is None
    assert stuck([chance] * 50, 10).startswith(
        "stuck at chance: after 50 steps the loss is 2.3, ln(10) = 2.3"
    )
    assert stuck([chance] * 25 + [1.5] * 25, 10) is None
    for distance, near in ((0.019, True), (-0.019, True), (0.021, False), (-0.021, False)):  # 2% is nothing
        assert (stuck([9.0] + [chance * (1 + distance)] * 49, 10) is not None) == near
    assert stuck([9.0] * 25 + [chance - 1] * 8 + [chance + 8 / 17] * 17, 10), "the last 25 count"
    assert "no progress" in stuck([3.0] + [4.0] * 49)
    assert "the loss is nan" in stuck([math.nan] * 50)
    model = nn.Linear(4, 10)
    recipe = skipinit.recipe(model, 1e-9, classes=10, warm_up=10)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    for _ in range(99):  # at 50 the first 50 steps after the warm-up are not over
        recipe.step(F.cross_entropy(model(torch.ones(10, 4)), torch.arange(10)))
    loss = F.cross_entropy(model(torch.ones(10, 4)), torch.arange(10))
    with pytest.warns(UserWarning, match="stuck at chance"):
        recipe.step(loss)


def test_a_warm_up_may_make_no_progress_but_its_loss_is_finite():
    chance = math.log(10)
    for losses in ([chance] * 50, [3.0] + [4.0] * 49):
        assert stuck(losses, 10, warm_up=50) is None
        assert stuck(losses + losses[1:] + losses[-1:], 10, warm_up=50)
    assert "the loss is nan" in stuck([math.nan] * 50, 10, warm_up=50)


def test_find_rate_leaves_all_as_it_was_and_finds_the_best_of_a_sweep(tmp_path):
    model = converted()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    found = skipinit.find_rate(model, batches(), steps=24)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    losses = {}
    for power in range(-8, 3):
        trained = copy.deepcopy(model).train()
        recipe = skipinit.recipe(trained, 2.0**power, steps=24, warm_up=4)
        for step in range(24):
            x, y = batches()[step % 4]
            recipe.step(F.cross_entropy(trained(x), y))
        losses[2.0**power] = sum(recipe.losses[-2:]) / 2
    best = min(losses, key=losses.__getitem__)
    diverged = math.isinf(found.losses.get(2 * best, 0.0))
    assert found.rate == (best / 2 if diverged else best)
    for rate, loss in found.losses.items():
        assert math.isinf(loss) or loss == pytest.approx(losses[rate])
    found.plot(tmp_path / "rate.svg")
    assert "<svg" in (tmp_path / "rate.svg").read_text()
    assert str(found).startswith(f"rate {found.rate:.3g}; loss after 24 steps")


@pytest.mark.parametrize(("beyond", "rate"), [(5.0, 0.5), (math.inf, 0.25)])
def test_rate_keeps_its_distance_from_divergence(monkeypatch, beyond, rate):
    """The lowest loss is at 1/2. If twice that diverges, a longer training may do so at 1/2."""

    def losses(model, batches, loss, rate, steps, options):
        return [3.0, beyond if rate > 0.5 else 2 - rate]

    monkeypatch.setattr(module, "_train_copy", losses)
    assert skipinit.find_rate(nn.Linear(2, 2), batches(), steps=2).rate == rate


def test_converted_network_trains_by_the_recipe():
    model = converted().train()
    recipe = skipinit.recipe(model, 0.1, classes=10, warm_up=10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(120):
            x, y = batches()[step % 4]
            recipe.step(F.cross_entropy(model(x), y))
    assert recipe.losses[-1] < 0.8 * recipe.losses[0]


@pytest.mark.parametrize("rate", [0, -1.0, math.nan, "fast"])
def test_wrong_rate_is_refused(rate):
    with pytest.raises(ConfigError, match="it must be a positive number"):
        skipinit.recipe(nn.Linear(2, 2), rate)


def test_no_batches_are_refused():
    with pytest.raises(ConfigError, match="batches is empty"):
        skipinit.find_rate(nn.Linear(2, 2), [])


def test_a_recipe_prints_in_a_few_lines():
    trainer = skipinit.recipe(nn.Linear(100, 100), 0.5)
    for _ in range(20):
        trainer.step(trainer.parameters[0].square().sum())
    assert len(repr(trainer)) < 1000
    assert "lr: 0." in repr(trainer)
    assert "Parameter containing" not in repr(trainer)


class Named(nn.Linear):
    def forward(self, x):
        return {"logits": super().forward(x)}


PAIR = (torch.randn(4, 2), torch.tensor([0, 1, 0, 1]))


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: skipinit.find_rate(nn.Linear(2, 2), PAIR[0]), "batches is a Tensor; give pairs"),
        (lambda: skipinit.find_rate(nn.Linear(2, 2), 3), "batches is a int; give pairs"),
        (lambda: skipinit.find_rate(nn.Linear(2, 2), [{"x": PAIR[0]}]), "a dict and no pair"),
        (lambda: skipinit.find_rate(Named(2, 2), [PAIR]), "the model returns a dict; give loss="),
        (lambda: skipinit.find_rate(nn.Linear(2, 3), [(PAIR[0], PAIR[1][:2])]), "cross-entropy does not fit"),
        (
            lambda: skipinit.recipe(nn.Linear(2, 2).requires_grad_(False), 0.1),
            "of Linear requires a gradient",
        ),
        (lambda: skipinit.recipe(nn.Linear(2, 2), 0.1).step(1.0), "the loss is a float; it must be a tensor"),
        (lambda: skipinit.recipe(nn.Linear(2, 2), 0.1).step(PAIR[0]), "is a tensor of 8; it must be"),
        (lambda: skipinit.recipe(nn.Linear(2, 2), 0.1).step(torch.ones(())), "the loss has no gradient"),
    ],
)
def test_mistakes_are_explained_in_one_line(attempt, message):
    with pytest.raises(ConfigError) as caught:
        attempt()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "option",
    [
        {"steps": 0},
        {"steps": -3},
        {"steps": 2.5},
        {"warm_up": -5},
        {"warm_up": "a"},
        {"clip_norm": 0},
        {"clip_norm": math.nan},
        {"momentum": 2},
        {"momentum": -1},
        {"weight_decay": -1},
        {"weight_decay": "x"},
        {"classes": 0},
        {"classes": 1},
    ],
    ids=str,
)
def test_wrong_options_are_refused_before_the_first_step(option):
    (name, value), *_ = option.items()
    with pytest.raises(ConfigError, match=f"^{name} {value!r} is not allowed; it must be "):
        skipinit.recipe(nn.Linear(2, 2), 0.1, **option)


@pytest.mark.parametrize("option", [{"steps": 0}, {"steps": -1}, {"steps": 2.5}, {"loss": "mse"}], ids=str)
def test_wrong_options_of_a_search_are_refused(option):
    (name, value), *_ = option.items()
    with pytest.raises(ConfigError, match=f"^{name} {value!r} is not allowed; it must be "):
        skipinit.find_rate(nn.Linear(2, 2), [PAIR], **option)


@pytest.mark.parametrize(
    "function", [lambda: skipinit.recipe("x", 0.1), lambda: skipinit.find_rate("x", [PAIR])]
)
def test_what_is_no_model_is_refused(function):
    with pytest.raises(ConfigError, match=r"the model must be a torch.nn.Module; a str was given"):
        function()


def test_a_loss_that_is_not_finite_before_the_first_update_is_not_blamed_on_the_rate():
    broken = [(torch.full((4, 2), math.nan), PAIR[1])]
    with pytest.raises(SkipinitError, match="the loss is nan before the first update, so no rate helps"):
        skipinit.find_rate(nn.Linear(2, 2), broken, steps=2)


def test_a_network_that_diverges_at_every_rate_is_named():
    """The second batch is a million times the first, whatever the rate was."""
    growing = [(PAIR[0], torch.zeros(4, 2)), (1e6 * PAIR[0], torch.zeros(4, 2))]
    with pytest.raises(SkipinitError, match=r"^Linear diverges at every rate down to 2\^-12$"):
        skipinit.find_rate(nn.Linear(2, 2), growing, F.mse_loss, steps=2)


def test_a_loader_that_shuffles_leaves_the_generator_as_it_was():
    model, data = nn.Linear(2, 2), torch.utils.data.TensorDataset(*PAIR)
    state = torch.get_rng_state()
    skipinit.find_rate(model, torch.utils.data.DataLoader(data, 2, shuffle=True), steps=2)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("steps", "last"), [(1, 1), (12, 1), (20, 2)])
def test_the_loss_of_a_rate_is_the_mean_of_the_last_tenth_of_its_steps(steps, last):
    model = nn.Linear(4, 3)
    inputs, targets = X.flatten(1)[:64, :4], X.flatten(1)[:64, :3].argmax(1)
    found = skipinit.find_rate(model, [(inputs, targets)], steps=steps)
    rate = min(found.losses)
    trainer = skipinit.recipe(model, rate, steps=steps, warm_up=max(1, steps // 5))
    losses = [trainer.step(F.cross_entropy(model(inputs), targets)) for _ in range(steps)]
    assert found.losses[rate] == pytest.approx(sum(losses[-last:]) / last, rel=1e-6)


class Remembers(nn.Linear):
    """Holds an activation of its last forward, as a training leaves it."""

    def forward(self, x):
        self.last = super().forward(x)
        return self.last


def test_a_rate_is_found_for_a_model_that_holds_activations():
    x, targets = torch.randn(8, 4), torch.randint(3, (8,))
    model = Remembers(4, 3)
    model(x)
    assert skipinit.find_rate(model, [(x, targets)], steps=2).rate > 0


def test_the_end_of_the_schedule_is_named_once():
    model = nn.Linear(2, 2)
    trainer = skipinit.recipe(model, 0.1, steps=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            trainer.step(model(PAIR[0]).square().mean())
    before = copy.deepcopy(model.state_dict())
    with pytest.warns(UserWarning, match="all 3 steps are done: the rate is 0 now, give recipe more steps"):
        trainer.step(model(PAIR[0]).square().mean())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.step(model(PAIR[0]).square().mean())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_training_is_that_of_a_loop_by_hand():
    """Momentum, L2 on weights alone, the clipped gradient, and the rate of every step, in float64."""
    model = converted().double()
    twin, inputs = copy.deepcopy(model), X[:64].double()
    trainer = skipinit.recipe(model, 0.5, steps=20, warm_up=5, weight_decay=0.1)
    velocity = {name: torch.zeros_like(p) for name, p in twin.named_parameters()}
    for step in range(20):
        trainer.step(F.cross_entropy(model(inputs), Y[:64]))
        loss = F.cross_entropy(twin(inputs), Y[:64])
        gradients = torch.autograd.grad(loss, list(twin.parameters()))
        norm = math.sqrt(sum(gradient.square().sum().item() for gradient in gradients))
        rate = 0.5 * min(1, (step + 1) / 5) * (1 + math.cos(math.pi * step / 20)) / 2
        with torch.no_grad():
            for (name, p), gradient in zip(twin.named_parameters(), gradients, strict=True):
                decay = 0.1 * p if p.dim() > 1 else 0.0
                velocity[name] = 0.9 * velocity[name] + gradient / max(1.0, norm + 1e-6) + decay
                p -= rate * velocity[name]
    for found, wanted in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


def test_numbers_of_numpy_and_torch_are_numbers():
    trainer = skipinit.recipe(nn.Linear(2, 2), np.float32(0.5), steps=np.int64(9), classes=torch.tensor(2))
    assert (trainer.steps, trainer.classes, trainer.optimizer.defaults["lr"]) == (9, 2, 0.5)
