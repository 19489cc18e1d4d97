"""A forward that takes another way in training: the scalars go along, or what they cannot reach is named."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from skipinit import convert, probe
from skipinit.errors import SkipinitError
from support.convert_models import scalars
from support.probe_models import vectors

X = vectors(8)


class Gated(nn.Module):
    """Its branch ends in a product, so it is scaled at the add."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer, self.gate = nn.LayerNorm(6), nn.Linear(6, 6), nn.Linear(6, 6)

    def branch(self, x):
        return torch.sigmoid(self.gate(x)) * self.layer(self.norm(x))

    def add(self, x):
        return x + self.branch(x)

    def forward(self, x):
        return self.add(x)


class StochasticDepth(Gated):
    """Some examples go without the branch."""

    def forward(self, x):
        if self.training:
            return x + self.branch(x) * (torch.rand(len(x), 1) > 0.3) / 0.7
        return x + self.branch(x)


class DroppedLayer(Gated):
    """All examples go without the branch, now and then."""

    def forward(self, x):
        if not self.training:
            return x + self.branch(x)
        if torch.rand(()) < 0.5:
            return x
        return x + self.branch(x) / 0.5


class WithGradients(Gated):
    """Writes into the branch where no gradient needs it."""

    def forward(self, x):
        if torch.is_grad_enabled():
            return x + self.branch(x)
        return self.branch(x).add_(x)


class SecondPathWithGradients(Gated):
    """Another path joins the branch in training, behind the layer that ends it otherwise."""

    def __init__(self):
        super().__init__()
        self.norm, self.layer, self.other = nn.LayerNorm(6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.kept = None

    def forward(self, x):
        normalized = self.norm(x)
        self.kept = self.layer(normalized)
        return x + (self.kept + self.other(normalized) if torch.is_grad_enabled() else self.kept)


def net(block, depth=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), *(block() for _ in range(depth)), nn.Linear(6, 4))


@pytest.mark.parametrize("block", [StochasticDepth, DroppedLayer])
def test_branches_start_at_zero_in_training_and_in_evaluation(block):
    converted = convert(net(block, depth=8), X, strict=True).model
    stem, head = converted[0], converted[-1]
    for seed in range(5):
        torch.manual_seed(seed)
        torch.testing.assert_close(converted.train()(X), head(stem(X)))
        assert not any(row.branch_share for row in probe(converted, X).rows)
    torch.testing.assert_close(converted.eval()(X), head(stem(X)))


def test_branches_that_are_longer_with_gradients_start_at_zero_with_them():
    converted = convert(net(SecondPathWithGradients), X, strict=True).model
    stem, *blocks, head = converted
    assert not any(block.kept is not None and block.kept.requires_grad for block in blocks)
    torch.testing.assert_close(converted(X), head(stem(X)))
    with torch.no_grad():
        torch.testing.assert_close(converted(X), head(stem(X)))


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_the_scalar_is_the_same_with_and_without_gradients(training, gradients):
    converted = convert(net(WithGradients, depth=1), X, alpha=0.5, strict=True).model.train(training)
    stem, block, head = converted
    with torch.set_grad_enabled(gradients):
        x = stem(X)
        branch = torch.sigmoid(block.gate(x)) * block.layer(x)
        torch.testing.assert_close(converted(X), head(x + 0.5 * branch))


@pytest.mark.parametrize("training", [True, False])
def test_the_scalar_is_the_same_in_training_and_in_evaluation(training):
    converted = convert(net(StochasticDepth, depth=1), X, alpha=0.5).model.train(training)
    assert len(scalars(converted)) == 1
    stem, block, head = converted
    torch.manual_seed(3)
    output = converted(X)
    output.sum().backward()
    (alpha,) = scalars(converted).values()
    assert alpha.grad.abs() > 0
    torch.manual_seed(3)
    x = stem(X)
    kept = (torch.rand(8, 1) > 0.3) / 0.7 if training else 1.0
    branch = torch.sigmoid(block.gate(x)) * block.layer(x) * kept
    torch.testing.assert_close(output, head(x + 0.5 * branch))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("always", [True, False])
def test_an_add_that_its_own_module_checkpoints_is_left_and_named(reentrant, always):
    """The backward pass runs it again by itself, where no forward of the module can scale it."""

    class Checkpointed(Gated):
        def forward(self, x):
            if always or self.training:
                return checkpoint(self.add, x, use_reentrant=reentrant)
            return self.add(x)

    with (
        pytest.warns(UserWarning, match=r"left as they were: 1, 2, 3 \(its add is checkpointed"),
        pytest.warns(UserWarning, match="branches that contribute from the start"),
    ):
        converted = convert(net(Checkpointed), X).model
    assert not scalars(converted)
    with pytest.raises(SkipinitError, match="checkpoint the module as a whole, or let a module of its own"):
        convert(net(Checkpointed), X, strict=True)


class Plain(nn.Module):
    """Its branch ends in a module of its own, which is scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(6), nn.Linear(6, 6)
        self.reentrant = None

    def add(self, x):
        return x + self.layer(self.norm(x).relu())

    def forward(self, x):
        if self.reentrant is None:
            return self.add(x)
        return checkpoint(self.add, x, use_reentrant=self.reentrant)


class Around(nn.Module):
    """Checkpoints the whole module."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.reentrant = Gated(), None

    def forward(self, x):
        if self.reentrant is None:
            return self.block(x)
        return checkpoint(self.block, x, use_reentrant=self.reentrant)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
@pytest.mark.parametrize("converted_with", [None, True, False])
@pytest.mark.parametrize("block", [Plain, Around])
def test_checkpointed_modules_have_the_gradients_of_those_that_are_not(block, converted_with):
    model = net(block)
    for layer in model[1:-1]:
        layer.reentrant = converted_with
    converted = convert(model, X, alpha=0.5, strict=True).model
    results = []
    for reentrant in (None, True, False):
        for layer in converted[1:-1]:
            layer.reentrant = reentrant
        converted.zero_grad()
        output = converted(X)
        output.square().mean().backward()
        results.append([output, *(parameter.grad for parameter in converted.parameters())])
    for result in results[1:]:
        torch.testing.assert_close(result, results[0])
    assert all(value.grad.abs() > 0 for value in scalars(converted).values())


@pytest.mark.parametrize("reentrant", [True, False])
def test_an_add_that_is_checkpointed_later_is_refused(reentrant):
    class Later(Gated):
        checkpointed = False

        def forward(self, x):
            return checkpoint(self.add, x, use_reentrant=reentrant) if self.checkpointed else self.add(x)

    converted = convert(net(Later), X).model
    Later.checkpointed = True
    with pytest.raises(SkipinitError, match="Later checkpoints its own add"):
        converted(X)


def test_a_branch_in_training_alone_is_named():
    class Auxiliary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.extra = Plain(), nn.Linear(6, 6)

        def forward(self, x):
            x = self.block(x)
            return x + F.gelu(self.extra(x)) if self.training else x

    with pytest.warns(UserWarning, match=r"contribute from the start.*: 1 \(in training\)"):
        convert(nn.Sequential(nn.Linear(6, 6), Auxiliary()), X)


class Auxiliary(nn.Module):
    """In training a second head with a batch norm of its own gives a second loss."""

    def __init__(self) -> None:
        super().__init__()
        self.body = net(Normalized)
        self.auxiliary = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))

    def forward(self, x):
        return (self.body(x), self.auxiliary(x)) if self.training else self.body(x)


class Normalized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(6), nn.Linear(6, 6)

    def forward(self, x):
        return x + self.layer(self.norm(x).relu())


@pytest.mark.parametrize("kept", [False, True])
def test_norms_that_run_in_training_alone_are_removed(kept, recwarn):
    model = Auxiliary()
    conversion = convert(model, X, keep_function=kept)
    assert conversion.num_norms == 4
    assert not any(isinstance(module, nn.BatchNorm1d) for module in conversion.model.modules())
    assert not conversion.left
    assert not recwarn.list
    if kept:  # Batch norms use their averages now, in training too.
        expected = model.eval().auxiliary(X)
        torch.testing.assert_close(conversion.model.train()(X)[1], expected)


class WantsTargets(nn.Module):
    def __init__(self, block) -> None:
        super().__init__()
        self.block = block

    def forward(self, x, targets=None):
        if self.training and targets is None:
            raise ValueError("targets should not be none when in training mode")
        return self.block(x)


def test_what_training_cannot_show_is_said():
    with pytest.warns(
        UserWarning, match="does not take these inputs in training mode.*: block may have no scalar"
    ):
        convert(WantsTargets(Gated()), X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        convert(WantsTargets(Plain()), X)


def test_a_symbolic_trace_does_not_lose_the_scalar():
    with pytest.raises(SkipinitError, match=r"Gated scales its branch at the add.*use torch.export"):
        torch.fx.symbolic_trace(convert(net(Gated), X).model)
    plain = convert(net(Plain), X, alpha=0.5).model
    torch.testing.assert_close(torch.fx.symbolic_trace(plain)(X), plain(X))


class TwoStreams(nn.Module):
    """As in a graph transformer: without its norms the sum of both streams becomes a residual add itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.norms = nn.ModuleList(nn.LayerNorm(6) for _ in range(3))

    def forward(self, x):
        one = self.norms[0](x + self.first(x))
        two = self.norms[1](x + F.gelu(self.second(x)))
        both = one + two
        return self.norms[2](both + self.last(both))


def test_an_add_that_appears_without_the_norms_is_not_taken_for_another_block():
    with pytest.warns(UserWarning, match=r"from the start, unlike SkipInit's: 0#3 \(50%\)"):
        conversion = convert(nn.Sequential(TwoStreams(), nn.Linear(6, 3)), X)
    assert (conversion.num_blocks, conversion.left) == (3, ())
    assert len(scalars(conversion.model)) == 3
    assert torch.equal(conversion.model[0](X), 2 * X)
