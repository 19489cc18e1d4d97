"""Norms that are more than norms or written in other ways, and forwards that fail once a norm is gone."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from skipinit import convert
from skipinit.converting.norms import norm_calls
from skipinit.errors import SkipinitError
from support.convert_models import scalars
from support.probe_models import Function, vectors
from support.written_norms import TWINS, CosineAttention, NormedLinear, ResponseNorm, WrittenNorm, network

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
    with pytest.warns(UserWarning, match=f"0.inner .{inner.__name__} takes or returns several tensors"):
        conversion = convert(net, X, keep_function=keep_function)
    assert conversion.num_norms == 1
    assert len(scalars(conversion.model)) == 1
    block, head = conversion.model.eval()
    assert type(block.inner) is inner
    if keep_function:
        torch.testing.assert_close(conversion.model(X), net.eval()(X))
    else:
        torch.testing.assert_close(conversion.model(X), head(X))


class FusedNorm(nn.LayerNorm):
    """As in Mamba: what it normalizes comes back beside the result."""

    def forward(self, x):
        return super().forward(x), x


class Fused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = FusedNorm(6), nn.Linear(6, 6)

    def forward(self, x):
        h, x = self.norm(x)
        return x + self.layer(h)


def test_a_norm_that_returns_a_tuple_is_left_and_named():
    """Without it, two examples would be taken for the two tensors."""
    with pytest.warns(UserWarning, match="0.norm .FusedNorm takes or returns several tensors"):
        conversion = convert(nn.Sequential(Fused(), nn.Linear(6, 3)), X[:2], alpha=0.5)
    block, head = conversion.model
    wanted = head(X + 0.5 * F.linear(F.layer_norm(X, (6,)), block.layer.weight, block.layer.bias))
    torch.testing.assert_close(conversion.model(X), wanted)


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


class Mapped(nn.Module):
    """Its branch runs for one example at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(6), nn.Linear(6, 6)

    def forward(self, x):
        return x + torch.func.vmap(lambda example: self.layer(self.norm(example)).tanh())(x)


def test_a_norm_inside_of_vmap_is_removed():
    block, head = model = convert(nn.Sequential(Mapped(), nn.Linear(6, 3)), X, alpha=0.5, strict=True).model
    torch.testing.assert_close(model(X), head(X + 0.5 * block.layer(X).tanh()))


class InputNorm(nn.Module):
    """Standardizes by constants."""

    def forward(self, x):
        return (x - 0.45) / 0.22


class Mixed(nn.Module):
    """x + last(norm(first(norm(x)))), the first norm one of torch's"""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), norm, nn.Linear(6, 6))

    def forward(self, x):
        return x + self.branch(x)


@pytest.mark.parametrize("norm", [ResponseNorm, InputNorm])
def test_a_name_alone_makes_no_norm(norm, recwarn):
    conversion = convert(nn.Sequential(Mixed(norm()), nn.Linear(6, 3)), X)
    assert type(conversion.model[0].branch[2]) is norm
    assert conversion.left == ()
    assert not recwarn.list


class LayerNormMLP(nn.Module):
    """A norm and two layers in one module, as fused kernels have them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_weight = nn.Parameter(torch.ones(6))
        self.up, self.down = nn.Parameter(torch.zeros(500, 6)), nn.Parameter(torch.zeros(6, 500))

    def forward(self, x):
        x = nn.functional.layer_norm(x, (6,), self.norm_weight)
        return nn.functional.linear(nn.functional.relu(nn.functional.linear(x, self.up)), self.down)


def test_layers_that_also_normalize_are_left_and_their_weights_are_drawn():
    torch.manual_seed(0)
    net = nn.Sequential(Mixed(LayerNormMLP()), nn.Linear(6, 3))
    with pytest.warns(UserWarning, match=r"0.branch.2 .LayerNormMLP also has a linear map"):
        mixed = convert(net, X).model[0].branch[2]
    assert mixed.up.var().item() == pytest.approx(2 / 6, rel=0.1)
    assert mixed.down.var().item() == pytest.approx(2 / 500, rel=0.1)
    net = nn.Sequential(Mixed(nn.Identity()), NormedLinear(6, 500))
    with pytest.warns(UserWarning, match=r"1 .NormedLinear also has a linear map"):
        head = convert(net, X, classifier_init="he").model[1]
    assert head.weight.var().item() == pytest.approx(2 / 6, rel=0.1)


class ThresholdedNorm(nn.Module):
    """Filter response normalization, with its thresholded linear unit."""

    def __init__(self) -> None:
        super().__init__()
        self.threshold = nn.Parameter(torch.zeros(6))

    def forward(self, x):
        return torch.maximum(x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt(), self.threshold)


class LayerNormReLU(nn.LayerNorm):
    def __init__(self) -> None:
        super().__init__(6)

    def forward(self, x):
        return nn.functional.relu(super().forward(x))


@pytest.mark.parametrize("norm", [ThresholdedNorm, LayerNormReLU])
def test_a_norm_with_an_activation_stays_because_the_network_would_be_linear_without_it(norm):
    net = nn.Sequential(*(Mixed(norm()) for _ in range(2)), nn.Linear(6, 3))
    with pytest.warns(
        UserWarning, match=f"0.branch.2, 1.branch.2 .{norm.__name__} also has a linear map or an activ"
    ):
        model = convert(net, X).model.eval()
    assert [type(model[i].branch[2]) for i in (0, 1)] == [norm, norm]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("alpha"):
                parameter.fill_(1.0)
    bend = model(X) + model(-X) - 2 * model(0 * X)  # 0 if the network is affine
    assert bend.abs().max() > 0.1


class SecondHead(nn.Module):
    """Returns a second output on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = Mixed(nn.Identity()), nn.Linear(6, 3)
        self.second = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))

    def forward(self, x, both=False):
        x = self.block(x)
        return (self.head(x), self.second(x)) if both else self.head(x)


def test_strict_refuses_a_norm_that_the_inputs_do_not_reach():
    with pytest.warns(UserWarning, match=r"second.0 .not reached by the inputs.; strict=True makes this"):
        convert(SecondHead(), X)
    with pytest.raises(SkipinitError, match=r"SecondHead: second.0 .not reached by the inputs"):
        convert(SecondHead(), X, strict=True)


@pytest.mark.parametrize("written", TWINS, ids=lambda function: function.__name__)
def test_a_written_norm_is_removed_like_that_of_torch(written):
    ours = convert(network(lambda: WrittenNorm(written)), X, seed=1)
    torchs = convert(network(TWINS[written]), X, seed=1)
    assert ours.num_norms == torchs.num_norms == 8
    assert torch.equal(ours.model(X), torchs.model(X))
    assert str(ours).replace("WrittenNorm", "") == str(torchs).replace("LayerNorm", "").replace("RMSNorm", "")


def test_cosine_attention_is_not_left_behind_with_a_warning():
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.attention = nn.LayerNorm(6), CosineAttention()

        def forward(self, x):
            return x + self.attention(self.norm(x))

    conversion = convert(nn.Sequential(Block(), Block(), nn.Linear(6, 3)), X)
    assert (conversion.num_norms, conversion.left) == (2, ())


class Compared(nn.Module):
    """An encoder of two inputs, and what the test makes of both."""

    def __init__(self, compare) -> None:
        super().__init__()
        self.encoder = nn.Sequential(network(lambda: nn.LayerNorm(6)), nn.Linear(3, 4))
        self.last, self.compare = nn.Linear(4, 3), compare

    def forward(self, x):
        return self.compare(self, self.encoder(x), self.encoder(x.flip(0)))


COMPARISONS = {
    "cosines": lambda m, a, b: F.cosine_similarity(a, b),
    "all with all": lambda m, a, b: F.normalize(a) @ F.normalize(b).mT,
    "products": lambda m, a, b: (2 - 2 * F.normalize(a) * F.normalize(b)).sum(-1).relu(),
    "directions": lambda m, a, b: (F.normalize(a), F.normalize(b)),
}
LAYERS = {
    "a layer follows": lambda m, a, b: m.last(F.normalize(a)) + m.last(F.normalize(b)),
    "a norm as a function": lambda m, a, b: F.layer_norm(a + b, (4,)),
    "over the batch": lambda m, a, b: (a - a.mean(0)) / (a.var(0) + 1e-5).sqrt() + b,
}


@pytest.mark.parametrize("form", COMPARISONS)
def test_vectors_that_are_only_compared_are_not_left_behind_with_a_warning(form):
    conversion = convert(Compared(COMPARISONS[form]), X, strict=True)
    assert (conversion.num_norms, conversion.left) == (8, ())


@pytest.mark.parametrize("form", LAYERS)
def test_a_norm_that_does_more_than_to_compare_is_named(form):
    with pytest.raises(
        SkipinitError, match=r"Compared: Compared .Compared normalizes inside its own forward"
    ):
        convert(Compared(LAYERS[form]), X, strict=True)


@pytest.mark.filterwarnings("ignore:left as they were:UserWarning")
def test_a_norm_inside_a_long_forward_is_found_in_time():
    """Each step joins two paths: there are 2 to the 60 ways back from the norm on the skip."""

    def forward(m, x):
        for _ in range(60):
            x = x * x.sigmoid() + 1
        x = F.layer_norm(x, (6,))
        return x + m.b(m.a(x).relu())

    conversion = convert(Function(forward), torch.randn(4, 6))
    assert conversion.num_blocks == 1


class Normed(nn.Module):
    """Post-norm blocks in one forward, which also norms by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList(nn.Linear(6, 6) for _ in range(64)), nn.Linear(6, 3)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x).relu()
            x = x / x.norm(dim=1, keepdim=True)
        return self.head(x)


@pytest.mark.filterwarnings("ignore")
def test_each_step_of_a_chain_of_written_norms_is_looked_at_once():
    """Each norm reads its sum twice: along all ways there would be 2^64 steps."""
    conversion = convert(Normed(), X)
    assert (conversion.num_norms, conversion.num_blocks) == (0, 64)
    assert conversion.left[0].startswith("Normed, Normed normalizes inside its own forward")
