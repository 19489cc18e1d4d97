"""The residual adds of models written in many ways: exact counts, and which operand is the skip."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention

from skipinit.nets.create import create_model
from skipinit.probing.measure import find_residual_adds, probe
from support.probe_models import (
    Bottleneck,
    ConvNeXt,
    Function,
    LoopNet,
    PostActivationResNet,
    PreActivationResNet,
    ViT,
    images,
    vectors,
)

IMAGES, VECTORS = images(2), vectors(4)


def test_post_activation_resnet_with_inplace_adds():
    adds = find_residual_adds(PostActivationResNet(), IMAGES)
    names = [f"layer{g}.{i}" for g, n in ((1, 3), (2, 4), (3, 6), (4, 3)) for i in range(n)]
    assert [add.name for add in adds] == names
    assert [add.depth for add in adds] == list(range(1, 17))
    for add in adds:
        assert add.skip_operand == 1  # out += identity
        assert add.branch_from == f"{add.module}.bn3"
        assert add.branch_norms == tuple(f"{add.module}.bn{i}" for i in (1, 2, 3))
        assert add.activation == f"{add.module}.relu"
        first = add.module.endswith(".0")
        assert add.skip_is_identity is not first
        assert add.skip_modules == (
            (f"{add.module}.downsample.0", f"{add.module}.downsample.1") if first else ()
        )
        assert add.skip_norms == ((f"{add.module}.downsample.1",) if first else ())
    assert adds[1].skip_from == "layer1.0.relu"


def test_pre_activation_resnet():
    adds = find_residual_adds(PreActivationResNet(), IMAGES)
    assert [add.name for add in adds] == [f"blocks.{i}" for i in range(8)]
    assert [i for i, add in enumerate(adds) if not add.skip_is_identity] == [3, 6]
    assert all(add.skip_operand == 1 and add.branch_from == f"{add.module}.conv2" for add in adds)
    assert adds[3].skip_modules == ("blocks.3.shortcut",)
    assert adds[3].shared_norms == ("blocks.3.bn1",)
    assert adds[1].branch_norms == ("blocks.1.bn1", "blocks.1.bn2")
    assert adds[1].skip_from == "blocks.0"


def test_vit_counts_no_positional_embedding():
    adds = find_residual_adds(ViT(), IMAGES)
    assert [add.name for add in adds[:3]] == ["blocks.0", "blocks.0#2", "blocks.1"]
    assert len(adds) == 24
    assert all(add.skip_operand == 0 and add.skip_is_identity for add in adds)
    assert [add.branch_from for add in adds[:2]] == ["blocks.0.attn.proj", "blocks.0.mlp.2"]


def test_parallel_attention_and_mlp_are_two_adds_on_one_stream():
    adds = find_residual_adds(ViT(depth=3, parallel=True), IMAGES)
    assert [add.branch_from for add in adds[:2]] == ["blocks.0.attn.proj", "blocks.0.mlp.2"]
    assert len(adds) == 6
    assert all(add.skip_operand == 0 for add in adds)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_transformer_encoder_also_where_it_would_run_fused(norm_first, training):
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=norm_first)
    encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).train(training)
    adds = find_residual_adds(encoder, torch.randn(2, 5, 16))
    names = ["layers.0", "layers.0#2", "layers.1", "layers.1#2", "layers.2", "layers.2#2"]
    assert [add.name for add in adds] == names
    assert all(add.skip_operand == 0 and add.skip_is_identity for add in adds)
    assert adds[0].branch_norms == (("layers.0.norm1",) if norm_first else ())
    assert adds[1].branch_from == "layers.0.dropout2"


def test_frozen_encoder_does_not_take_its_fast_path():
    """In evaluation mode, which this model insists on, padded batches would become nested tensors."""

    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 3)

        def train(self, mode=True):
            return super().train(False)

        def forward(self, x):
            return self.encoder(x, src_key_padding_mask=torch.arange(5) > torch.tensor([[4], [2]]))

    adds = find_residual_adds(Frozen().train(), torch.randn(2, 5, 16))
    assert [add.shape for add in adds] == [(2, 5, 16)] * 6


def test_convnext():
    adds = find_residual_adds(ConvNeXt(), IMAGES)
    assert len(adds) == 18
    assert all(add.skip_operand == 0 and add.skip_is_identity for add in adds)
    assert adds[0].scale == "stages.0.0.gamma"
    assert adds[0].branch_from == "stages.0.0.pwconv2"


@pytest.mark.parametrize(("inputs", "skip"), [(VECTORS.abs() + 9, 0), (-VECTORS.abs() - 9, 1)])
def test_loop_and_condition_on_the_data(inputs, skip):
    adds = find_residual_adds(LoopNet(), inputs)
    assert [add.name for add in adds] == ["LoopNet", "LoopNet#2", "LoopNet#3", "LoopNet#4"]
    assert [add.skip_operand for add in adds] == [skip] * 4


RESIDUAL = {
    "operator": (lambda m, x: x + m.a(x), 0),
    "branch on the left": (lambda m, x: m.a(x) + x, 1),
    "function": (lambda m, x: torch.add(m.a(x), x), 1),
    "keywords": (lambda m, x: torch.add(input=x, other=m.a(x)), 0),
    "alpha": (lambda m, x: torch.add(x, m.a(x), alpha=0.1), 0),
    "difference": (lambda m, x: x - m.a(x), 0),
    "method in place": (lambda m, x: m.a(x).add_(x), 1),
    "out argument": (lambda m, x: torch.add(x, m.a(x), out=torch.empty_like(x)), 0),
    "learned scalar": (lambda m, x: x + m.scalar * m.a(x), 0),
    "fused learned scalar": (lambda m, x: torch.addcmul(x, m.scalar, m.a(x)), 0),
    "fused, factors swapped": (lambda m, x: torch.addcmul(x, m.a(x), m.scalar), 0),
    "dropout": (lambda m, x: x + F.dropout(m.a(x), 0.1), 0),
    "drop path": (lambda m, x: x + m.a(x) * torch.empty(len(x), 1).bernoulli_(0.9).div_(0.9), 0),
    "norm on the skip": (lambda m, x: m.norm(x) + m.a(x), 0),
    "post-norm": (lambda m, x: m.norm(x + m.a(x)), 0),
    "gate": (lambda m, x: (1 - (t := m.b(x).sigmoid())) * x + t * m.a(x), 0),
    "gate, other order": (lambda m, x: (h := m.a(x), t := m.b(x).sigmoid()) and t * h + (1 - t) * x, 1),
    "projection": (lambda m, x: m.a(x) + m.b(m.c(x).relu()), 0),
    "projection of two maps": (lambda m, x: m.a(m.b(x)) + m.d(m.c(m.d(x).relu()).relu()), 0),
    "views": (lambda m, x: x.view(2, 2, 6) + m.a(x).reshape(2, 2, 6), 0),
    "standardized weights": (lambda m, x: x + F.linear(x, m.a.weight / m.a.weight.std()), 0),
    "functional": (lambda m, x: x + (x @ m.table.T).relu() @ m.table, 0),
    "sparse mixing": (lambda m, x: x + torch.sparse.mm(torch.eye(4).to_sparse(), m.a(x)), 0),
    "attention": (lambda m, x: x + F.scaled_dot_product_attention(m.a(x), m.b(x), m.c(x)), 0),
    "overlapping parts": (lambda m, x: x[:3] + m.a(x[1:]), 0),
    "attention beside a projection": (lambda m, x: m.d(x) + m.b(_fused(m.a(x)[None, None])), 0),
    "interpolation": (lambda m, x: torch.lerp(x, m.a(x), 0.3), 0),
    "interpolation by a learned scalar": (lambda m, x: torch.lerp(x, m.a(x), m.scalar), 0),
    "interpolation by keywords": (lambda m, x: torch.lerp(input=x, end=m.a(x), weight=0.3), 0),
    "some of the examples": (lambda m, x: x.index_add(0, torch.tensor([0, 2]), m.a(x[::2])), 0),
    "stacked": (lambda m, x: torch.stack([x, m.a(x)]).sum(0), 0),
    "stacked by keywords": (lambda m, x: torch.stack(tensors=[x, m.a(x)], dim=1).sum(dim=1), 0),
    "stacked last": (lambda m, x: torch.stack([m.a(x), x], -1).sum(-1), 1),
    "complex": (lambda m, x: (z := torch.complex(x, x)) + torch.complex(m.a(z.real), m.b(z.imag)), 0),
    "identity beside two towers": (lambda m, x: m.norm(x) + (m.a(x) + m.b(x)), 0),
    "scaled skip and a branch with a norm alone": (lambda m, x: 0.5 * x + m.norm(x).roll(1, 1), 0),
    "learned query": (lambda m, x: m.table + m.a(m.norm(torch.cat([m.table, x])))[:4], 0),
    "learned query, attention": (lambda m, x: m.table + _attention(m, m.table, x), 0),
    "examples in another order": (lambda m, x: x + m.a(x)[m.b(x).sum(1).argsort()], 0),
    "an expert of each example": (
        lambda m, x: x + torch.stack([m.a(x), m.b(x)])[m.c(x).argmax(1) % 2, torch.arange(4)],
        0,
    ),
    "chosen examples": (lambda m, x: x[i := m.b(x).sum(1).argsort()[:2]] + m.a(x)[i], 0),
    "chosen examples, each once": (
        lambda m, x: x[i := m.b(x).sum(1).argsort()[:2].unique()] + m.a(x)[i],
        0,
    ),
    "a half of the identity taken away": (lambda m, x: torch.add(x, m.a(x) - x, alpha=0.5), 0),
    "another part taken away": (lambda m, x: x[:2] + (m.a(x)[:2] - x[2:]), 0),
    "query of zeros": (lambda m, x: (q := torch.zeros(4, 6)) + _attention(m, q + m.table, x), 0),
}


def _fused(x):
    return F.scaled_dot_product_attention(x, x, x)[0, 0]


def _attention(m, query, x):
    return (m.a(query) @ m.b(x).T).softmax(-1) @ m.c(x)


@pytest.mark.parametrize("form", RESIDUAL)
def test_forms_of_a_residual_add(form):
    function, skip = RESIDUAL[form]
    model = Function(function)
    adds = find_residual_adds(model, VECTORS)
    assert [(add.name, add.skip_operand) for add in adds] == [("Function", skip)]
    assert adds[0].scale == ("scalar" if "scalar" in form or "fused" in form else None)
    assert adds[0].doubt is None
    assert probe(model, VECTORS).rows[0].is_finite


OUT = {
    "new tensors": lambda m, x, buffers: torch.add(x, m(x), out=torch.empty_like(x)),
    "tensors used in turn": lambda m, x, buffers: torch.add(x, m(x), out=buffers[0]),
    "the branch's own": lambda m, x, buffers: torch.add(x, f := m(x), out=f),
    "the skip's own": lambda m, x, buffers: torch.add(x, m(x), out=x),
    "a scaled branch in a used tensor": lambda m, x, buffers: x + torch.mul(m(x), 0.5, out=buffers[0]),
}


@pytest.mark.parametrize("form", OUT)
def test_a_stream_goes_on_through_out_arguments(form):
    def forward(m, x):
        x, buffers = m.norm(x), [torch.zeros(4, 6), torch.zeros(4, 6)]
        for layer in (m.a, m.b, m.c, m.d):
            x = OUT[form](layer, x, buffers)
            buffers.reverse()
        return x

    adds = find_residual_adds(Function(forward), VECTORS)
    assert [add.branch_from for add in adds] == ["a", "b", "c", "d"]
    assert [add.continues for add in adds] == [None, "Function", "Function#2", "Function#3"]
    rows = probe(Function(forward), VECTORS).rows
    scaled = "scaled" in form
    assert all((row.branch_variance_before_scalar is not None) is scaled for row in rows)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_flex_attention_is_one_branch():
    def attend(m, x):
        return flex_attention(*(layer(x)[None, None] for layer in (m.a, m.b, m.c)), score_mod=_near)[0, 0]

    def _near(score, b, h, i, j):
        return score - (i - j).abs()

    model = Function(lambda m, x: x + m.d(attend(m, m.norm(x))))
    (add,) = find_residual_adds(model, VECTORS)
    assert add.branch_modules == ("norm", "a", "b", "c", "d")
    assert probe(model, VECTORS).rows[0].is_finite


def test_masks_that_both_operands_pass_are_no_coupling():
    """As of padded tokens, or of a branch that is dropped for some examples."""
    padded = torch.tensor([[1.0], [1.0], [0.0], [1.0]])
    for forward in (lambda m, x: padded * x + padded * m.a(x), lambda m, x: x + padded * m.a(x)):
        assert len(find_residual_adds(Function(forward), VECTORS)) == 1
    coupled = Function(lambda m, x: MASK * (y := x + m.a(MASK * x)) + (1 - MASK) * y)
    assert len(find_residual_adds(coupled, VECTORS)) == 1


def test_several_skips():
    long = Function(lambda m, x: (y := x + m.a(x)) is not None and x + m.c((y + m.b(y)).relu()))
    adds = find_residual_adds(long, VECTORS)
    assert [(add.skip_operand, add.nested) for add in adds] == [(0, False), (0, False), (0, True)]
    # Additive coupling: the first branch sees nothing of its skip, the second does through the first sum.
    reversible = Function(lambda m, x: (y := x[:2] + m.a(x[2:])) is not None and x[2:] + m.b(y))
    assert [add.branch_modules for add in find_residual_adds(reversible, VECTORS)] == [("a", "b")]


def _gelu_by_hand(m, x):
    h = m.a(x)
    return m.b(0.5 * h * (1 + torch.tanh(0.79788 * (h + 0.044715 * h**3))))


def _rotary(m, x):
    q = m.a(x)
    return q * torch.cos(x.new_ones(6)) + torch.cat([-q[:, 3:], q[:, :3]], 1) * torch.sin(x.new_ones(6))


def _pyramid(m, x):
    top = x + m.a(x)  # the one residual add
    return m.b(x) + F.interpolate(m.c(top.relu())[None], scale_factor=1)[0]


def _cascade(m, x):
    """Res2Net's: each part of the channels is added to what a layer made of the parts before."""
    first, second, third = x.unbind(1)
    total = F.linear(first, m.table[:2, :2]) + second
    return F.linear(total, m.table[:2, :2]).relu() + third


def _experts(m, x, choose):
    """Two layers of experts: all are computed, and each example takes that of one, and its bias."""
    expert, example = choose(m.a(x)), torch.arange(4)
    hidden = torch.stack([m.b(x), m.c(x)])[expert, example] + m.table[expert]
    hidden = hidden.relu()
    return torch.stack([m.c(hidden), m.d(hidden)])[expert, example] + m.table[expert]


def _nearest(m, z):
    """The entry of the table that is nearest to each example."""
    return torch.cdist(z, m.table).argmin(1)


def _distances(z, table, size):
    """|z|^2 + |e|^2 - 2 z e, as quantizers compare each example with each entry of a table."""
    return size(z) + size(table).T - 2 * z @ table.T


def _without(v, direction):
    """What is left of v without its part along a direction that no layer computed from v."""
    return v - (v * direction).sum(1, keepdim=True) * direction


MASK = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, 0.0])


def _masked_coupling(m, x, mask):
    """One half of the channels passes, the other is computed from it: no value is a sum."""
    kept = mask * x
    return kept + (1 - mask) * (m.a(kept).relu() * x + m.b(kept))


NOT_RESIDUAL = {
    "chain": lambda m, x: m.b(m.a(x).relu()),
    "bias": lambda m, x: m.a(x) + m.table[0],
    "positional embedding": lambda m, x: m.a(x + m.table),
    "parallel towers": lambda m, x: m.a(x) + m.b(x),
    "three towers": lambda m, x: m.a(x) + m.b(x) + m.c(x),
    "four towers of two norms": lambda m, x: m.norm(m.a(x)) + m.norm(m.b(x)) + m.c(x) + m.d(x),
    "towers of different depths": lambda m, x: m.a(m.b(x).relu()) + m.c(m.d(m.c(x).relu()).relu()),
    "deep parallel towers": lambda m, x: m.a(m.b(x).relu()) + m.c(m.d(x).relu()),
    "low-rank adapter": lambda m, x: m.a(x) + 0.1 * m.b(m.c(x)),
    "doubling": lambda m, x: m.a(x + x),
    "learned activation": lambda m, x: m.a(x + (m.scalar * x).sin() ** 2 / m.scalar),
    "squeeze and excite": lambda m, x: x * m.a(x.mean(0, keepdim=True)).sigmoid(),
    "handwritten GELU": _gelu_by_hand,
    "rotary embedding": _rotary,
    "sum of losses": lambda m, x: m.a(x).square().mean() + m.b(m.a(x)).square().mean(),
    "sum over all of a stack": lambda m, x: torch.stack([x, m.a(x)]).sum(dim=None),
    "concatenation": lambda m, x: torch.cat([x, m.a(x)], 1),
    "handwritten norm": lambda m, x: m.a((x - x.mean(1, keepdim=True)) / x.var(1, keepdim=True).sqrt()),
    "parts of one tensor": lambda m, x: x[:2] + m.a(x[2:]),
    "biases of chosen experts": lambda m, x: _experts(m, x, lambda scores: scores.argmax(1) % 2),
    "biases of the best experts": lambda m, x: _experts(m, x, lambda scores: scores[:, :2].topk(1)[1][:, 0]),
    "another part of a constant start": lambda m, x: (
        (start := torch.zeros(2, 4, 6))[1] + m.a(m.b(x) + m.c(start[0]))
    ),
    "channels of one tensor": lambda m, x: (
        (h := m.a(x)[:, None]) is not None and _cascade(m, h.view(4, 3, 2))
    ),
    "identity taken away": lambda m, x: m.a(x) - x,
    "straight-through quantizer": lambda m, x: m.a(
        (z := m.b(x)) + (m.c(F.embedding(_nearest(m, z), m.table)) - z).detach()
    ),
    "halfway to the nearest entry": lambda m, x: m.a(
        (z := m.b(x)) + 0.5 * (F.embedding(_nearest(m, z), m.table) - z)
    ),
    "straight-through, one-hot": lambda m, x: m.a(
        (z := m.b(x)) + (F.one_hot(_nearest(m, z), 4).float() @ m.table - z)
    ),
    "residual quantizer of projections": lambda m, x: m.a(
        (r := m.b(x)) - m.d((z := m.c(r)) + (F.embedding(_nearest(m, z), m.table) - z).detach())
    ),
    "identity taken away and added again": lambda m, x: x + (m.a(x) - x),
    "residual quantizer": lambda m, x: m.a((z := m.b(x)) - F.embedding(_nearest(m, z), m.table)),
    "attention scores and a learned bias": lambda m, x: (q := m.a(x)) @ q.T + q @ m.table.T,
    "a direction taken away": lambda m, x: m.a(_without(m.b(x), F.normalize(x, dim=1))),
    "a scale from elsewhere": lambda m, x: m.a((h := m.b(x)) + h * m.c(m.norm(x))),
    "global and local values": lambda m, x: m.d(v := m.c(x)) + m.a(m.b(x).relu()) @ x.T @ v,
    "a coupling by masks": lambda m, x: _masked_coupling(m, x, MASK),
    "broadcast": lambda m, x: x + m.a(x.mean(0, keepdim=True)),
    "two gates of one tensor": lambda m, x: (
        (h := m.a(x)) * m.b(h).sigmoid() + h * m.c(m.d(h).relu()).sigmoid()
    ),
    "distances from a table": lambda m, x: _distances(x, m.table, lambda z: z.square().sum(1, keepdim=True)),
    "distances, powers": lambda m, x: _distances(m.a(x), m.table, lambda z: z.pow(2).sum(1, keepdim=True)),
    "distances, norms": lambda m, x: _distances(x, m.table, lambda z: z.norm(dim=1, keepdim=True) ** 2),
}


@pytest.mark.parametrize("form", NOT_RESIDUAL)
def test_other_additions_are_not_residual(form):
    assert find_residual_adds(Function(NOT_RESIDUAL[form]), VECTORS) == []


@pytest.mark.parametrize("keep", [lambda x: x, lambda x: 0.5 * x])
def test_layers_on_what_enters_from_the_side_make_no_branch(keep):
    """As where a graph network adds to each node what its neighbours and their edges send."""

    class Side(Function):
        def forward(self, x, side):
            edges = self.a(side)
            for _ in range(2):
                x = keep(x) + (x.roll(1, 0) + edges).relu()
            return x + self.b(x.roll(1, 0) + edges).relu()

    (add,) = find_residual_adds(Side(None), (VECTORS, VECTORS.flip(0)))
    assert (add.name, add.skip_operand, add.branch_modules) == ("Side", 0, ("b",))


def test_a_branch_scalar_beside_a_branch_makes_it_none():
    """As where a physics-informed network multiplies its derivative by its output."""

    class Beside(Function):
        def forward(self, x, side):
            return x + x.sin() * (self.branch_alpha * self.a(side))

    model = Beside(None)
    model.branch_alpha = nn.Parameter(torch.tensor(0.0))
    assert find_residual_adds(model, (VECTORS, VECTORS.flip(0))) == []


def test_layers_that_compute_the_weights_of_a_branch_make_it_one():
    """As in a hypernetwork, or StyleGAN2: x meets no parameter."""

    class Weights(Function):
        def forward(self, x, side):
            return x + x.relu() @ self.a(side[:, None]).mT @ self.b(side[:, None])[0] / 6

    (add,) = find_residual_adds(Weights(None), (VECTORS[:, None], VECTORS))
    assert (add.name, add.skip_operand) == ("Weights", 0)


@pytest.mark.parametrize("blocks", [False, True])
def test_a_stream_goes_on_through_a_sum_that_is_no_block(blocks):
    """As in GENConv: what all layers add to the neighbours, the edges, is no skip around these layers."""

    class Messages(Function):
        def forward(self, x, side):
            edges = self.d(side)
            for layer in (self.a, self.b, self.c):
                given = layer(x + (x.roll(1, 0) + edges).relu()).relu()
                x = x + given if blocks else given
            return x

    adds = find_residual_adds(Messages(None), (VECTORS, VECTORS.flip(0)))
    assert [add.branch_modules for add in adds] == [("a",), ("b",), ("c",)][: 3 * blocks]


def _gated(m, x, merge):
    """GTrXL's block: x and what its layers give enter two gates and a candidate. The last sum merges."""
    given = m.a(m.norm(x)).relu()
    reset = (m.b(given) + m.c(x)).sigmoid()
    update = (m.d(given) + m.e(x) - 2).sigmoid()
    return merge(x, (m.f(given) + m.g(reset * x)).tanh(), update)


MERGES = {"sum": lambda x, h, z: (1 - z) * x + z * h, "interpolation": torch.lerp}


@pytest.mark.parametrize("form", MERGES)
def test_the_sums_in_gates_are_no_blocks(form):
    model = Function(lambda m, x: _gated(m, x, MERGES[form]))
    model.e, model.f, model.g = (nn.Linear(6, 6) for _ in range(3))
    (add,) = find_residual_adds(model, VECTORS)
    assert (add.name, add.skip_operand, add.nested) == ("Function", 0, False)


def test_an_attention_gate_is_no_block():
    """As in Attention U-Net: deeper features gate those of a long skip."""

    def gate(m, x):
        given = m.norm(m.b(m.a(x).relu()))
        return x * m.d((m.c(given) + m.e(x)).relu()).sigmoid()

    model = Function(gate)
    model.e = nn.Linear(6, 6)
    report = probe(model, VECTORS)
    assert report.num_blocks == 0
    assert "it only gates what its skip projects" in report.rejected


def test_a_focal_modulation_has_no_blocks():
    """As in FocalNet: three parts of a tensor are a query, its context and gates. The context is summed."""

    def modulate(m, x):
        query, context, gates = m.a(x).split(2, 1)
        total = 0
        for layer, gate in zip((m.e, m.f), gates.split(1, 1), strict=True):
            context = layer(context).relu()
            total = total + context * gate
        total = total + context.mean(1, keepdim=True).relu() * gates
        return query * m.g(total)

    model = Function(modulate)
    model.e, model.f, model.g = (nn.Linear(2, 2) for _ in range(3))
    assert find_residual_adds(model, VECTORS) == []


def test_a_sum_that_gates_and_goes_on_is_a_block():
    def forward(m, x):
        total = m.a(x) + m.c(m.b(x).relu())
        return m.d(total), x * total.sigmoid()

    (add,) = find_residual_adds(Function(forward), VECTORS)
    assert add.branch_modules == ("b", "c")


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("joined", [True, False])
def test_two_halves_of_a_tensor_are_coupled_streams(joined, batch):
    """Reversible networks: a' = a + f(b), b' = b + g(a'), three times; the halves may be joined between."""

    def coupled(m, x):
        halves = x.chunk(2, 1)
        for f, g in ((m.e, m.f), (m.g, m.h), (m.i, m.j)):
            a, b = torch.cat(halves, 1).chunk(2, 1) if joined else halves
            a = a + f(b).relu()
            halves = a, b + g(a).relu()
        return torch.cat(halves, 1)

    model = Function(coupled)
    for name in "efghij":
        setattr(model, name, nn.Linear(3, 3))
    adds = find_residual_adds(model, vectors(batch))
    assert [add.branch_modules for add in adds] == [(name,) for name in "efghij"]


@pytest.mark.parametrize("scale", [1, 0.5, "learned"])
@pytest.mark.parametrize("start", ["zeros", "first"])
def test_halves_that_are_summed_as_outputs_are_no_coupled_stream(start, scale):
    """WaveNet's: one half of what a layer gives is added to the stream, the other one to the outputs."""

    def wave(m, x):
        total = x.new_zeros(4, 3) if start == "zeros" else None
        for layer in (m.a, m.b, m.c, m.d):
            ahead, out = layer(torch.cat([x, x], 1).tanh()).chunk(2, 1)
            ahead = ahead if scale == 1 else ahead * (m.scalar if scale == "learned" else scale)
            x, total = x + ahead, (out if total is None else total + out)
        return x, total

    adds = find_residual_adds(Function(wave), torch.randn(4, 3))
    assert [(add.branch_modules, add.skip_is_identity) for add in adds] == [((n,), True) for n in "abcd"]


def test_a_bias_of_attention_that_positions_choose_is_no_skip():
    """As in LayoutLMv3: boxes choose the first embeddings, and the biases of all layers."""

    def attend(m, boxes):
        x = F.embedding(boxes, m.table)
        bias = F.embedding((boxes[:, None] - boxes).clamp(0, 3), m.table)[..., 0]
        for query, value in ((m.a, m.b), (m.c, m.d)):
            x = x + (query(x) @ x.T + bias).softmax(1) @ value(x)
        return x

    adds = find_residual_adds(Function(attend), torch.arange(4))
    assert [(add.branch_modules, add.nested) for add in adds] == [(("a", "b"), False), (("c", "d"), False)]


@pytest.mark.parametrize("start", ["learned", "zeros"])
def test_a_coupled_stream_may_start_from_a_constant(start):
    """The first a + f(b) adds a constant; from then on each stream sees the other."""

    def coupled(m, x):
        a, b = x, torch.zeros(4, 6) if start == "zeros" else m.table.expand(4, 6)
        for f, g in ((m.a, m.b), (m.c, m.d), (m.e, m.f)):
            a = a + f(b).relu()
            b = b + g(a).relu()
        return a, b

    model = Function(coupled)
    model.e, model.f = nn.Linear(6, 6), nn.Linear(6, 6)
    adds = find_residual_adds(model, VECTORS)
    assert [add.branch_modules[-1] for add in adds] == list("bcdef")
    assert [add.skip_is_identity for add in adds[1:]] == [True] * 4


def test_each_part_of_a_sum_onto_the_skip_counts():
    """As in MobileOne: the skip goes through a norm, and several towers are added to it one by one."""
    adds = find_residual_adds(Function(lambda m, x: (m.a(x) + m.norm(x)) + m.b(x) + m.c(x)), VECTORS)
    assert [(add.skip_operand, add.branch_modules) for add in adds] == [(1, ("a",)), (0, ("b",)), (0, ("c",))]


POSITIONS = {
    "added to the stream again": lambda m, x: _layers(m, x + m.table, lambda y: y + m.table, stay=True),
    "added before attention": lambda m, x: _layers(m, x, lambda y: y + m.table),
    "made from the batch": lambda m, x: _layers(m, x, lambda y: y + (x > 0).float().cumsum(1)),
    "an input of its own": lambda m, x: _layers(m, x[0], lambda y: y + x[1]),
}


def _layers(m, x, position, stay=False):
    for layer in (m.a, m.b, m.c):
        placed = position(x)
        x = (placed if stay else x) + layer(placed)
    return x


@pytest.mark.parametrize("form", POSITIONS)
def test_positions_added_in_every_layer_are_no_skip(form):
    model, inputs = Function(POSITIONS[form]), VECTORS
    if form == "an input of its own":
        model, inputs = Function(lambda m, x: POSITIONS[form](m, (x, m.other))), VECTORS
        model.forward = lambda x, other: model.function(model, setattr(model, "other", other) or x)
        inputs = (VECTORS, vectors(4).flip(0))
    adds = find_residual_adds(model, inputs)
    assert [add.branch_modules for add in adds] == [("a",), ("b",), ("c",)]


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
def test_encoder_is_not_part_of_the_cross_attentions_branch():
    """Whether encoder and decoder get one tensor or two."""
    model = nn.Transformer(16, 4, 2, 2, 32, batch_first=True, norm_first=True)
    source, target = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    for inputs in ((source, target), (source, source)):
        adds = find_residual_adds(model, inputs)
        assert len(adds) == 2 * 2 + 2 * 3
        crossed = adds[5]
        assert crossed.branch_norms == ("decoder.layers.0.norm2",)
        assert not any(name.startswith("encoder") for name in crossed.branch_modules)
        assert not any(add.nested for add in adds)


def _gru(m, x):
    state = m.d(x).tanh()
    for _ in range(3):
        gate = m.a(state * x).sigmoid()
        state = (1 - gate) * state + gate * m.c(state).tanh()
    return state


def test_recurrent_cell_of_ones_own_has_none():
    model = Function(_gru)
    assert find_residual_adds(model, VECTORS) == []
    assert probe(model, VECTORS).rejected["it joins the gates of a recurrent layer"] == 3


def _two_inputs(m, x):
    def gated(x):
        gate = m.a(x).sigmoid()
        return (1 - gate) * x + gate * m.c(x.tanh())

    def block(x):
        return x + m.b(x.tanh())

    return block(gated(x)) - block(gated(x.roll(1, 0)))


def test_one_network_on_two_inputs_is_no_recurrence():
    """As a siamese network, or one that looks at several crops: no run sees what another computed."""
    adds = find_residual_adds(Function(_two_inputs), VECTORS)
    assert [add.name for add in adds] == ["Function", "Function#2", "Function#3", "Function#4"]
    assert {add.doubt for add in adds} == {None}


def test_shared_blocks_may_start_from_a_table_without_data():
    """As ALBERT's, whose tokens are all of one type."""

    def forward(m, ids):
        x = F.embedding(ids, m.table) + F.embedding(torch.zeros_like(ids), m.b.weight)
        for _ in range(2):
            x = x + m.a(m.norm(x))
        return x

    adds = find_residual_adds(Function(forward), torch.arange(4)[None])
    assert [bool(add.doubt) for add in adds] == [True, True]


def test_doubtful_adds_say_both_readings():
    shared = find_residual_adds(LoopNet(), VECTORS)
    assert {add.doubt for add in shared} == {"blocks that share their weights, or the steps of a recurrence"}
    state_space = Function(lambda m, x: x + m.a((u := m.b(x)) * m.table[0] + u.cumsum(0) * m.c(u)))
    inner, outer = find_residual_adds(state_space, VECTORS)
    assert "such as a state space with its D" in inner.doubt
    assert (outer.doubt, outer.nested) == (None, True)


def test_the_weight_of_a_norm_written_by_hand_is_no_doubt():
    """On the skip of a block inside a block."""

    def normalize(m, x):
        return m.table[0] * (x / (x.square().mean(1, keepdim=True) + 1e-6).sqrt())

    model = Function(lambda m, x: x + m.d(normalize(m, h := m.a(x)) + m.c(m.b(h).relu())))
    inner, outer = find_residual_adds(model, VECTORS)
    assert (inner.nested, outer.nested) == (False, True)
    assert (inner.doubt, outer.doubt) == (None, None)


def test_layers_are_not_dropped_while_the_structure_is_read():
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Function(lambda m, x: x + m.a(x)) for _ in range(6))

        def forward(self, x):
            for layer in self.layers:
                if not (self.training and torch.rand(()) < 0.5):
                    x = layer(x)
            return x

    model = Dropping().train()
    assert [len(find_residual_adds(model, VECTORS)) for _ in range(3)] == [6] * 3
    assert all(module.training for module in model.modules())


def _recurrence(m, x):
    state = torch.zeros(6)
    for step in x.split(1):
        state = torch.tanh(m.a(step) + m.b(state))
    return state


def test_recurrent_layers_have_none():
    sequence = torch.randn(5, 2, 6)
    for layer in (nn.RNN(6, 6, 2), nn.GRU(6, 6, 2), nn.LSTM(6, 6, 2), nn.GRUCell(6, 6), nn.LSTMCell(6, 6)):
        inputs = sequence[0] if isinstance(layer, nn.RNNCellBase) else sequence
        assert find_residual_adds(layer, inputs) == []
    assert find_residual_adds(Function(_recurrence), VECTORS) == []


@pytest.mark.parametrize("recurrent", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("shape", [{}, {"batch_first": True}, {"num_layers": 2}, {"bidirectional": True}])
def test_a_recurrent_layer_is_a_branch(recurrent, shape):
    """Also where it is one operation, as an LSTM on the CPU is."""
    width = 3 if "bidirectional" in shape else 6

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(recurrent(6, width, **shape) for _ in range(3))

        def forward(self, x):
            for layer in self.layers:
                x = x + layer(x)[0]
            return x

    adds = find_residual_adds(Net(), torch.randn(5, 2, 6))
    assert [add.branch_modules for add in adds] == [("layers.0",), ("layers.1",), ("layers.2",)]
    assert [add.continues for add in adds] == [None, "Net", "Net#2"]
    assert set(adds[1].parameters) == {f"layers.1.{name}" for name, _ in Net().layers[1].named_parameters()}


def test_pyramid_has_only_its_inner_residual_add():
    adds = find_residual_adds(Function(_pyramid), VECTORS)
    assert [add.branch_from for add in adds] == ["a"]


def test_partial_sums_carry_on_within_one_forward_only():
    """A finished block's output plus another map of its input is a sum of two towers."""
    block = Function(lambda m, x: x + m.a(x))
    outer = Function(lambda m, x: m.d(x) + m.a(x), make=lambda: block)
    outer.a = nn.Linear(6, 6)
    assert [add.module for add in find_residual_adds(outer, VECTORS)] == ["b"]


def test_compiled_and_channels_last_and_autocast_models():
    block = Bottleneck(8, 4, 1, project=True).eval()
    images = torch.randn(2, 8, 8, 8)
    compiled = torch.compile(copy.deepcopy(block), backend="eager")
    compiled(images)
    assert len(find_residual_adds(compiled, images)) == 1
    last = copy.deepcopy(block).to(memory_format=torch.channels_last)
    assert len(find_residual_adds(last, images.to(memory_format=torch.channels_last))) == 1
    with torch.autocast("cpu", torch.bfloat16):
        assert len(find_residual_adds(PostActivationResNet(), IMAGES)) == 16


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [("wrn16_2", {"scheme": s}, 6) for s in ("batchnorm", "skipinit", "none", "divide-sqrt2", "fixup")]
    + [
        ("resnet50_v1", {}, 16),
        ("resnet50_v2", {"scheme": "skipinit"}, 16),
        ("fc_relu_bn", {"width": 8}, 100),
    ],
)
def test_the_papers_networks(name, options, count):
    model = create_model(name, **options)
    shape = torch.Size([4, 100] if name.startswith("fc") else [2, 3, 64, 64])
    adds = find_residual_adds(model, shape)
    assert [add.module for add in adds] == [f"blocks.{i}.merge" for i in range(count)]
    assert all(add.skip_operand == 0 for add in adds)
    if options.get("scheme") == "skipinit":
        assert all(add.scale == f"{add.module}.alpha" for add in adds)
    if name == "wrn16_2" and options["scheme"] in ("none", "skipinit"):
        # An identity skip uses the sum beside the ReLU; a transition's skip and the head come after it.
        relus = [
            None,
            "blocks.2.preactivation.relu1",
            None,
            "blocks.4.preactivation.relu1",
            None,
            "head.relu0",
        ]
        assert [add.activation for add in adds] == relus


def test_real_and_complex_views_of_one_part_are_compared():
    def halves(m, x):
        x = x * 1.0
        left = torch.view_as_complex(x.view(len(x), 3, 2))[:, :2]
        return left + torch.view_as_complex(F.linear(x[:, 1:5], m.a.weight[:4, :4]).view(len(x), 2, 2))

    (add,) = find_residual_adds(Function(halves), vectors(8))
    assert add.shape == (8, 2)
