"""A scalar wherever a branch ends; what has none is left as it was and named."""

from __future__ import annotations

import copy
import functools
import io
import itertools
import warnings

import pytest
import torch
from torch import nn
from torch._dynamo.exc import Unsupported
from torch.nn import functional as F

from skipinit import convert
from skipinit.converting.sites import ScaledAdds
from skipinit.errors import SkipinitError
from support.convert_models import TiedNorm, scalars, with_statistics
from support.probe_models import Function, vectors

X = vectors(8)


class Block(nn.Module):
    """Layers and a norm; the forward is that of the test."""

    def __init__(self, end) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.norm, self.relu, self.identity = nn.BatchNorm1d(6), nn.ReLU(), nn.Identity()
        self.shift = nn.Parameter(torch.arange(6.0))
        self.end = end

    def forward(self, x):
        return self.end(self, x, self.norm(self.a(x)).relu())


def add_with_dropout(x, residual):
    return residual + F.dropout(x, 0.0)


def in_place(m, x, h):
    out = m.b(h) * m.c(h).sigmoid()
    out += x
    return out


ENDS = {
    "sum": lambda m, x, h: x + (m.b(h) + m.c(h)),
    "product": lambda m, x, h: x + m.b(h) * m.c(h).sigmoid(),
    "concatenation": lambda m, x, h: x + torch.cat([m.b(h)[:, :3], m.c(h)[:, 3:]], 1),
    "function": lambda m, x, h: x + F.gelu(m.b(h)),
    "condition": lambda m, x, h: x + torch.where(h > 0, m.b(h), m.c(h)),
    "interpolation": lambda m, x, h: x + F.interpolate(m.b(h)[None], scale_factor=1)[0],
    "identity": lambda m, x, h: x + m.identity(F.gelu(m.b(h))),
    "bias of its own": lambda m, x, h: x + (m.b(h) + m.shift),
    "module with other uses": lambda m, x, h: x + m.relu(m.b(m.relu(m.c(h)))),
    "norm with other uses": lambda m, x, h: x + m.norm(m.b(h)),
    "branch first": lambda m, x, h: F.gelu(m.b(h)) + x,
    "in place": in_place,
    "method": lambda m, x, h: F.gelu(m.b(h)).add_(x),
    "keyword": lambda m, x, h: torch.add(x, other=F.gelu(m.b(h))),
    "difference": lambda m, x, h: x - F.gelu(m.b(h)),
    "addcmul": lambda m, x, h: torch.addcmul(x, m.b(h), F.gelu(m.c(h))),
    "index_add": lambda m, x, h: x.index_add(0, torch.arange(8), F.gelu(m.b(h))),
    "stack": lambda m, x, h: torch.stack([x, F.gelu(m.b(h))]).sum(0),
    "helper": lambda m, x, h: add_with_dropout(m.b(h) * m.c(h), x),
}


@pytest.mark.parametrize("end", ENDS)
def test_every_end_gets_its_scalar(end):
    model = nn.Sequential(*(Block(ENDS[end]) for _ in range(3)))
    conversion = convert(model, X, seed=0)
    converted = conversion.model
    assert conversion.left == ()
    assert len(scalars(converted)) == conversion.num_blocks == 3
    assert [row.branch_share for row in conversion.after.rows] == [0.0] * 3
    torch.testing.assert_close(converted(X), X)
    kept = convert(with_statistics(model), X, keep_function=True).model
    torch.testing.assert_close(kept.eval()(X), model.eval()(X))


def test_scalar_at_the_add_is_alpha_times_the_branch():
    """And it learns, copies, saves, and survives a different way through the forward."""
    model = nn.Sequential(Block(ENDS["function"]), Block(ENDS["sum"]))
    converted = convert(model, X, seed=0).model
    assert all(isinstance(block, ScaledAdds) for block in converted)
    assert list(scalars(converted)) == [f"{i}.branch_scales.0.branch_alpha" for i in range(2)]
    for value in scalars(converted).values():
        nn.init.constant_(value, 0.5)
    first, second = converted
    h = X + 0.5 * F.gelu(first.b(first.a(X).relu()))
    inner = second.a(h).relu()
    wanted = h + 0.5 * (second.b(inner) + second.c(inner))
    torch.testing.assert_close(converted(X), wanted)
    converted(X).square().mean().backward()
    assert all(value.grad.abs() > 0 for value in scalars(converted).values())
    file = io.BytesIO()
    torch.save(convert(nn.Sequential(Ending()), X).model, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(X), X)
    torch.testing.assert_close(copy.deepcopy(converted)(X), wanted)


class Ending(nn.Module):
    """As a model in a file of the user's: its class can be saved by name."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)

    def forward(self, x, mask=None):
        h = self.a(self.norm(x))
        if mask is not None:
            h = h + mask
        return x + F.gelu(h)


def test_scalar_at_the_add_is_found_by_its_place_not_by_counting():
    converted = convert(Ending(), X).model
    assert torch.equal(converted(X, mask=torch.ones(8, 6)), X)


def test_scalar_at_the_add_exports_and_compiles_around():
    converted = convert(nn.Sequential(Ending(), nn.Linear(6, 6)), X, seed=0).model
    for value in scalars(converted).values():
        nn.init.constant_(value, 0.5)
    wanted = converted(X)
    program = torch.export.export(converted, (X,))
    torch.testing.assert_close(program.module()(X), wanted)
    torch.testing.assert_close(torch.compile(converted, backend="eager")(X), wanted)
    with pytest.raises(Unsupported, match=r"strict=False\) exports it"):
        torch.export.export(converted, (X,), strict=True)


@pytest.mark.parametrize("end", [lambda m, x, h: x + m.b(h), lambda m, x, h: x + F.gelu(m.b(h))])
def test_a_script_is_refused_in_one_line_and_a_trace_is_the_same(end):
    converted = convert(nn.Sequential(Block(end), nn.Linear(6, 6)), X, alpha=0.5, seed=0).model
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Both are deprecated.
        with pytest.raises(
            SkipinitError, match=r"torch.jit.script cannot read; use torch.export or torch.jit"
        ):
            torch.jit.script(converted)
        torch.testing.assert_close(torch.jit.trace(converted, X)(X), converted(X))


def test_a_loop_has_one_scalar_for_the_layers_it_repeats():
    def repeat(m, x, h, times=3):
        for _ in range(times):
            x = x + F.gelu(m.b(x))
        return x

    with pytest.warns(UserWarning, match="doubtful: blocks that share their weights"):
        converted = convert(Block(lambda m, x, h: repeat(m, m.norm(x), h)), X).model
    assert len(scalars(converted)) == 1
    longer = convert(Block(ENDS["sum"]), X).model
    assert len(scalars(longer)) == 1


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, 1, 1)

    def forward(self, x):
        return x + self.conv1(self.norm1(x).relu())


class Nested(nn.Module):
    """x + c2(relu(n2(inner(n(x)))))"""

    def __init__(self) -> None:
        super().__init__()
        self.n, self.inner, self.n2, self.c2 = (
            nn.BatchNorm2d(4),
            Inner(),
            nn.BatchNorm2d(4),
            nn.Conv2d(4, 4, 1),
        )

    def forward(self, x):
        return x + self.c2(self.n2(self.inner(self.n(x))).relu())


def test_nested_blocks_start_at_the_identity():
    images = torch.randn(4, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    conversion = convert(nn.Sequential(*(Nested() for _ in range(20))), images, seed=0)
    assert conversion.num_blocks == len(scalars(conversion.model)) == 40
    assert [row.branch_share for row in conversion.after.rows] == [0.0] * 40
    assert torch.equal(conversion.model(images), images)
    outer = next(change for change in conversion.changes if change.module == "0.c2")
    inner = next(change for change in conversion.changes if change.module == "0.inner.norm1")
    assert (outer.block, inner.block) == ("0", "0.inner")


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
def test_encoder_and_decoder_start_at_the_identity():
    model = nn.Transformer(16, 4, 2, 2, 32, batch_first=True, norm_first=True, dropout=0.0)
    source, target = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    conversion = convert(model, (source, target), seed=0)
    assert conversion.num_blocks == len(conversion.after.rows) == 10
    assert all(row.branch_share == 0 for row in conversion.after.rows)
    assert torch.equal(conversion.model(source, target), target)


def test_one_norm_in_two_places():
    for options in ({}, {"keep_function": True}):
        conversion = convert(with_statistics(TiedNorm()), X, **options)
        assert conversion.num_norms == 1
        assert not any(isinstance(module, nn.BatchNorm1d) for module in conversion.model.modules())
    model = with_statistics(TiedNorm())
    kept = convert(model, X, keep_function=True).model
    torch.testing.assert_close(kept.eval()(X), model.eval()(X))


class RootMeanSquare(nn.Module):
    """A norm whose name does not say so, and its learned scale at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((6,), 0.3))

    def forward(self, x):
        return x * x.square().mean(-1, keepdim=True).rsqrt() * self.weight


class Sandwich(nn.Module):
    """Norms before and after the layer, of one type."""

    def __init__(self, norm) -> None:
        super().__init__()
        self.before, self.layer, self.after = norm(), nn.Linear(6, 6), norm()

    def forward(self, x):
        return x + self.after(self.layer(self.before(x)).to(self.after.weight.dtype))


def test_norms_of_ones_own():
    model = nn.Sequential(*(Sandwich(RootMeanSquare) for _ in range(3)))
    with pytest.warns(UserWarning, match=r"0.before, 0.after, .*if it is nothing but a norm, give norms=\("):
        conversion = convert(model, X)
    assert conversion.num_norms == 0
    assert sum(isinstance(module, RootMeanSquare) for module in conversion.model.modules()) == 6
    assert len(conversion.left) == 6
    assert conversion.num_blocks == 3
    conversion = convert(model, X, norms=RootMeanSquare)
    assert (conversion.num_norms, conversion.left) == (6, ())
    assert torch.equal(conversion.model(X), X)
    with pytest.raises(SkipinitError, match="RootMeanSquare normalizes inside its own forward"):
        convert(model, X, strict=True)


class StandardizesInputs(nn.Module):
    """As Demucs and forecasters do; the whole model is no norm."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        x = (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)
        return x + self.layer(x)


def test_model_that_normalizes_its_inputs_is_not_said_to_be_a_norm():
    with pytest.warns(UserWarning, match="StandardizesInputs normalizes inside its own forward, beside"):
        conversion = convert(StandardizesInputs(), X)
    assert "nothing but a norm" not in str(conversion.left)


class MyRMSNorm(RootMeanSquare):
    """A norm whose name says so."""


def test_sandwich_norms_whose_weights_the_forward_looks_at():
    conversion = convert(nn.Sequential(*(Sandwich(MyRMSNorm) for _ in range(2))), X)
    assert conversion.num_norms == 4
    assert torch.equal(conversion.model(X), X)
    assert not any("before" in name for name in conversion.model.state_dict())


def test_fixup_puts_its_bias_where_the_forward_reads_a_weight():
    """A bias in the place of the norm is the scheme's own; what it lacks stands there for the forward."""

    def end(m, x, h):
        return x + m.c(m.b(h).relu() * m.norm.weight.mean() + m.norm.bias.mean())

    model = convert(nn.Sequential(Block(end), nn.Linear(6, 3)), X, scheme="fixup").model
    norm = model[0].norm
    assert [name for name, _ in norm.named_parameters()] == ["bias"]
    assert [name for name, _ in norm.named_buffers()] == ["weight"]
    assert "0.norm.weight" not in model.state_dict()


class FrozenBatchNorm(nn.Module):
    """As torchvision's: all four are buffers, and no operation of it is a norm's."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        for name, value in (("weight", 0.5), ("bias", 0.1), ("running_mean", 0.2), ("running_var", 2.0)):
            self.register_buffer(name, torch.full((channels,), value))
        self.eps = 1e-5

    def forward(self, x):
        scale = (self.weight * (self.running_var + self.eps).rsqrt()).view(1, -1, 1, 1)
        return x * scale + (self.bias - self.running_mean * scale.flatten()).view(1, -1, 1, 1)


def test_frozen_batch_norm_is_folded():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(4, 4, 3, 1, 1, bias=False), FrozenBatchNorm(4)

        def forward(self, x):
            return x + self.norm(self.conv(x.relu()))

    model = nn.Sequential(Net(), Net()).double()
    x = torch.randn(2, 4, 8, 8, dtype=torch.float64)
    kept = convert(model, x, keep_function=True)
    assert kept.num_norms == 2
    assert [change.added for change in kept.changes if change.removed] == [
        "folded into 0.conv",
        "folded into 1.conv",
    ]
    assert kept.difference < 1e-12
    assert torch.equal(convert(model, x).model(x), x)


def net():
    return nn.Sequential(*(Sandwich(lambda: nn.LayerNorm(6)) for _ in range(3)), nn.Linear(6, 3))


@pytest.mark.parametrize(
    "options",
    [{"exclude": "1"}, {"only": ("0", "2", "3")}, {"only": ["[023]"]}, {"exclude": ["1.*", "1"]}],
)
def test_parts_of_a_model_can_stay_as_they_are(options):
    model = net()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        conversion = convert(model, X, **options)
    stayed = {name: p for name, p in conversion.model.named_parameters() if name.startswith("1.")}
    assert stayed.keys() == {name for name, _ in model.named_parameters() if name.startswith("1.")}
    assert all(torch.equal(value, model.get_parameter(name)) for name, value in stayed.items())
    assert (conversion.num_blocks, conversion.num_norms) == (2, 4)


def test_parts_by_type():
    conversion = convert(nn.Sequential(Nested(), Nested()), torch.randn(2, 4, 8, 8), exclude=Inner)
    assert conversion.num_blocks == 2
    assert sum(isinstance(module, nn.BatchNorm2d) for module in conversion.model.modules()) == 2


def test_layers_dropped_at_random_are_converted_all_the_same():
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Sandwich(lambda: nn.LayerNorm(6)) for _ in range(6))

        def forward(self, x):
            for layer in self.layers:
                if not (self.training and torch.rand(()) < 0.5):
                    x = layer(x)
            return x

    model = Dropping().train()
    assert [convert(model, X).num_blocks for _ in range(3)] == [6] * 3


class Adding(nn.Sequential):
    def forward(self, x):
        return x + F.gelu(super().forward(x))


def test_interpolation_scales_its_end():
    conversion = convert(Block(lambda m, x, h: torch.lerp(x, F.gelu(m.b(h)), 0.25)), X)
    assert [row.branch_share for row in conversion.after.rows] == [0.0]
    torch.testing.assert_close(conversion.model(X), 0.75 * X)


def test_add_in_place_whose_result_is_not_taken():
    def write(m, x, h):
        out = m.b(h) * m.c(h)
        out.add_(x)
        return out

    converted = convert(Block(write), X, seed=0).model
    assert torch.equal(converted(X), X)
    (alpha,) = scalars(converted).values()
    nn.init.constant_(alpha, 0.5)
    h = converted.a(X).relu()
    branch = converted.b(h) * converted.c(h)
    torch.testing.assert_close(converted(X), X + 0.5 * branch)
    weights = torch.randn(8, 6)
    (gradient,) = torch.autograd.grad((converted(X) * weights).sum(), alpha)
    torch.testing.assert_close(gradient, (branch * weights).sum())


def test_what_stays_is_named_and_strict_refuses():
    """A sequence that adds: a further module in it would be run as one of its layers."""
    model = nn.Sequential(Adding(nn.BatchNorm1d(6), nn.Linear(6, 6)), Block(ENDS["sum"]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        conversion = convert(model, X)
    texts = " ".join(str(warning.message) for warning in caught)
    assert "left as they were: 0 (its branch cannot be scaled from outside" in texts
    assert "0.0 (its branch has no scalar)" in texts
    assert "branches that contribute from the start, unlike SkipInit's: 0 (" in texts
    assert isinstance(conversion.model[0][0], nn.BatchNorm1d)
    assert len(scalars(conversion.model)) == 1
    with pytest.raises(SkipinitError, match=r"0 \(its branch cannot be scaled"):
        convert(model, X, strict=True)


def test_a_forward_that_was_replaced_is_named_where_the_scalar_needs_its_source():
    at_the_layer, at_the_add = Block(lambda m, x, h: x + m.b(h)), Block(ENDS["sum"])
    for block in (at_the_layer, at_the_add):
        block.inner = block.forward
        block.forward = functools.partial(lambda block, x: block.inner(x), block)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        conversion = convert(nn.Sequential(at_the_layer, at_the_add), X)
    assert "1 (the forward of its module was replaced; convert the model before you wrap it" in str(caught[0])
    assert list(scalars(conversion.model)) == ["0.b.branch_alpha"]


def moving():
    """Adds on another line of its source from the fourth call on, after those that find its blocks."""
    calls = itertools.count()

    def end(m, x, h):
        branch = F.gelu(m.b(h))
        if next(calls) < 3:
            return x + branch
        return torch.add(branch, x)

    return nn.Sequential(Block(end), nn.Linear(6, 3))


def test_a_branch_that_its_scalar_does_not_reach_is_left_and_named():
    with pytest.raises(SkipinitError, match=r"0 .its branch cannot be scaled from outside"):
        convert(moving(), X, strict=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        conversion = convert(moving(), X)
    texts = " ".join(str(warning.message) for warning in caught)
    assert "left as they were: 0 (its branch cannot be scaled from outside" in texts
    assert "branches that contribute from the start, unlike SkipInit's: 0 (" in texts
    assert not scalars(conversion.model)
    assert isinstance(conversion.model[0].norm, nn.BatchNorm1d)


def test_a_branch_without_a_finite_value_is_named():
    """exp(1000 f(x)): 0 times infinity is no number."""
    model = nn.Sequential(Block(lambda m, x, h: x + (1000 * m.b(h)).exp()), nn.Linear(6, 3))
    with pytest.warns(UserWarning, match=r"contribute from the start, unlike SkipInit's: 0 .NaN or infinity"):
        convert(model, X, seed=0)


def test_rounding_that_a_network_multiplies_is_not_a_fault():
    """Each layer multiplies by 50; outputs in float32 differ, in float64 they agree."""

    class Chaotic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)

        def forward(self, x):
            return x + self.norm(self.layer(torch.sin(50 * x)))

    torch.manual_seed(0)
    model = with_statistics(nn.Sequential(*(Chaotic() for _ in range(4))))
    with pytest.warns(UserWarning, match="amplifies rounding errors"):
        conversion = convert(model, X, keep_function=True)
    assert conversion.difference > 5e-4


def test_balance_is_the_same_before_and_after_where_the_function_is():
    model = with_statistics(nn.Sequential(*(Block(ENDS["function"]) for _ in range(3))).double())
    conversion = convert(model, X.double(), keep_function=True)
    shares = [[row.branch_share for row in report.rows] for report in (conversion.before, conversion.after)]
    assert shares[0] == pytest.approx(shares[1], rel=1e-9)


class UnitPower(nn.Module):
    """Takes complex values, as torch's own norms do not."""

    def forward(self, x):
        return x / x.abs().square().mean(-1, keepdim=True).sqrt()


def test_complex_weights():
    class Spectral(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.layer = UnitPower(), nn.Linear(64, 64, dtype=torch.complex64)

        def forward(self, x):
            return x + self.layer(torch.fft.fft(self.norm(x)))

    x = torch.randn(8, 64, dtype=torch.complex64)
    conversion = convert(nn.Sequential(Spectral(), Spectral()), x, norms=UnitPower, seed=0)
    assert conversion.num_norms == 2
    assert [row.branch_share for row in conversion.after.rows] == [0.0, 0.0]
    assert torch.equal(conversion.model(x), x)
    weight = conversion.model[0].layer.weight  # He: E|w|^2 = 2 / fan-in
    assert weight.abs().square().mean().item() == pytest.approx(2 / 64, rel=0.1)
    conversion.model(x).abs().square().sum().backward()
    assert all(scalar.grad != 0 for scalar in scalars(conversion.model).values())


def test_tied_embedding_is_not_redrawn():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.block, self.head = nn.Embedding(20, 6), net()[0], nn.Linear(6, 20, bias=False)
            self.head.weight = self.table.weight

        def forward(self, ids):
            return self.head(self.block(self.table(ids)))

    model, ids = Tied(), torch.arange(8).view(2, 4)
    converted = convert(model, ids).model
    assert converted.head.weight is converted.table.weight
    assert torch.equal(converted.table.weight, model.table.weight)


def test_first_loss_is_near_that_of_chance():
    model = nn.Sequential(nn.Linear(6, 6), *(net()[0] for _ in range(4)), nn.Linear(6, 10))
    x, targets = 30 * torch.randn(512, 6), torch.randint(10, (512,))
    losses = {
        start: F.cross_entropy(convert(model, x, seed=0, classifier_init=start).model(x), targets).item()
        for start in ("small", "he", "zero")
    }
    chance = torch.tensor(10.0).log().item()
    assert losses["zero"] == pytest.approx(chance, abs=1e-5)
    assert abs(losses["small"] - chance) < 0.6
    assert losses["he"] > 10


def test_function_under_another_name():
    """The lambda's own layers: what the block's forward calls is part of the block."""
    assert convert(Function(lambda m, x: x + F.gelu(m.a(m.norm(x)))), X).num_blocks == 1


class Fade(nn.Module):
    def forward(self, x):
        return 0.01 * x


def test_signal_that_vanishes_is_named():
    """Layers without a skip, as in EfficientNets: only their norms kept the signal alive."""

    def fading():
        return nn.Sequential(nn.Linear(6, 6), Fade(), nn.BatchNorm1d(6))

    block = Block(ENDS["function"])
    with pytest.warns(UserWarning, match=r"signal vanishes.*deviation of [0-9]e-0[4-9]"):
        convert(nn.Sequential(block, fading(), fading(), nn.Linear(6, 3)), X, seed=0)


class Shifted(nn.Linear):
    """A layer with a forward of its own, as convolutions that pad their input as TensorFlow does."""

    def forward(self, x):
        return F.linear(x.roll(1, -1), self.weight, self.bias)


class Standardized(nn.Linear):
    """The scale of its weight changes nothing."""

    def forward(self, x):
        return 0.001 * F.linear(x, self.weight / self.weight.std(), self.bias)


@pytest.mark.parametrize("layer", [nn.Linear, Shifted])
def test_signal_that_vanishes_before_a_norm_is_restored(layer, recwarn):
    """The layer that fed the norm starts with the scale that the norm gave its output."""

    def fading():
        return nn.Sequential(Fade(), layer(6, 6), nn.BatchNorm1d(6))

    conversion = convert(
        nn.Sequential(Block(ENDS["function"]), fading(), fading(), nn.Linear(6, 3)), X, seed=0
    )
    net, changes = conversion.model, conversion.changes
    assert not recwarn.list
    assert [change.module for change in changes if "deviation 1" in change.added] == ["1.1", "2.1"]
    after_one, after_two = net[:2](X), net[:3](X)
    assert [out.std(correction=0).item() for out in (after_one, after_two)] == pytest.approx([1, 1], rel=1e-5)


def test_signal_that_no_weight_can_restore_is_named():
    def fading():
        return nn.Sequential(Standardized(6, 6), nn.BatchNorm1d(6))

    model = nn.Sequential(Block(ENDS["function"]), fading(), fading(), nn.Linear(6, 3))
    with pytest.warns(UserWarning, match="signal vanishes"):
        conversion = convert(model, X, seed=0)
    assert not any("deviation 1" in change.added for change in conversion.changes)
    weight = conversion.model[1][0].weight
    assert 0.3 < weight.std().item() < 1.0  # as He drew it, sqrt(2 / 6)


def test_signal_that_does_not_vanish_is_left_alone():
    model = nn.Sequential(Block(ENDS["function"]), nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    assert not any("deviation 1" in change.added for change in convert(model, X, seed=0).changes)


class TupleBlock(nn.Module):
    """Returns the sum and something else, as the layers of T5 do."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6))

    def forward(self, x):
        return x + self.branch(x), None


class TupleNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(TupleBlock() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x, _ = block(x)
        return x


def test_sums_in_a_tuple_are_divided():
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    converted = convert(TupleNet(), x, scheme="divide-sqrt2", seed=0).model
    expected = x
    for block in converted.blocks:
        expected = (expected + block.branch[1](expected)) / 2**0.5
    torch.testing.assert_close(converted(x), expected)


class Traced(nn.Module):
    """Branches that torch.fx traced, with a norm in front that is no part of them."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(torch.fx.symbolic_trace(Matrix()) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(6) for _ in range(2))
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        for norm, branch in zip(self.norms, self.branches, strict=True):
            x = x + branch(norm(x))
        return self.head(x)


class Matrix(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x):
        return x @ self.weight


def test_a_branch_that_torch_fx_traced_is_scaled_at_the_add():
    conversion = convert(Traced(), X)
    assert (conversion.num_norms, len(scalars(conversion.model))) == (2, 2)
    torch.testing.assert_close(conversion.model(X), conversion.model.head(X))
    torch.testing.assert_close(copy.deepcopy(conversion.model)(X), conversion.model(X))


@pytest.mark.filterwarnings("ignore:branches that contribute from the start")
def test_an_add_in_a_forward_that_torch_fx_wrote_is_left_with_the_reason():
    traced = torch.fx.symbolic_trace(nn.Sequential(Block(ENDS["function"]), nn.Linear(6, 3)))
    with pytest.warns(
        UserWarning, match="torch.fx wrote the forward of its module; convert the model before"
    ):
        conversion = convert(traced, X)
    assert conversion.left[0].startswith("GraphModule, torch.fx wrote")
    assert not scalars(conversion.model)
