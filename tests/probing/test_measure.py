"""What is measured at each residual add, against closed forms, NumPy in float64, and hooks set by hand."""

from __future__ import annotations

import math
import tracemalloc
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from skipinit.errors import ConfigError
from skipinit.nets.create import create_model
from skipinit.probing.measure import StatisticsBuffer, channel_statistics, probe
from skipinit.probing.tensors import norm_of
from support.probe_models import (
    ConvNeXt,
    Function,
    PostActivationResNet,
    PreActivationResNet,
    ViT,
    images,
    vectors,
)

IMAGES, VECTORS = images(4), vectors(64)


def float64(tensor):
    return tensor.detach().double().numpy()


def test_rows_equal_a_float64_reference_network():
    model = create_model("fc_relu_bn", blocks=5, width=40, in_channels=20, seed=3)
    batch = torch.randn(32, 20, generator=torch.Generator().manual_seed(4))

    def normalize(x):
        return (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)

    x = np.maximum(normalize(float64(batch)), 0) @ float64(model.stem.dense.weight).T
    rows = probe(model, batch).rows
    assert [row.depth for row in rows] == [1, 2, 3, 4, 5]
    for block, row in zip(model.blocks, rows, strict=True):
        branch = np.maximum(normalize(x), 0) @ float64(block.branch.dense.weight).T
        out = x + branch
        expected = {
            "skip_variance": x.var(),
            "branch_variance": branch.var(),
            "output_variance": out.var(),
            "branch_share": branch.var() / (x.var() + branch.var()),
            "channel_variance": out.var(0).mean(),
            "channel_mean_variance": out.mean(0).var(),
            "moving_variance": x.var(0).mean(),
            "squared_moving_mean": (x.mean(0) ** 2).mean(),
        }
        assert {name: getattr(row, name) for name in expected} == pytest.approx(expected, rel=1e-4)
        assert row.branch_variance_before_scalar is None
        x = out


@pytest.mark.parametrize(
    ("model", "channel_axis"),
    [(PostActivationResNet(), 1), (PreActivationResNet(), 1), (ConvNeXt(), 1), (ViT(), 2)],
)
def test_skip_variance_is_that_of_the_blocks_input(model, channel_axis):
    """An identity skip is what the block was given: hooks set by hand must see the same tensor."""
    report = probe(model, IMAGES)
    inputs = {}
    for add in report.adds:
        module = model.get_submodule(add.module)
        module.register_forward_pre_hook(
            lambda _, args, name=add.name: inputs.update({name: args[0].clone()})
        )
    with torch.no_grad():
        model.train()(IMAGES)
    checked = 0
    for add, row in zip(report.adds, report.rows, strict=True):
        if add.skip_is_identity and "#" not in add.name:
            assert row.skip_variance == pytest.approx(float64(inputs[add.name]).var(), rel=1e-5)
            checked += 1
    assert checked >= len(report.rows) // 2 - 4
    split = report.rows[-1]
    assert split.channel_variance + split.channel_mean_variance == pytest.approx(split.output_variance)
    assert report.adds[-1].shape[channel_axis] == model_channels(model)


def model_channels(model):
    return {"PostActivationResNet": 256, "PreActivationResNet": 32, "ConvNeXt": 8, "ViT": 24}[
        type(model).__name__
    ]


LAYOUTS = {
    "NCHW": (nn.Conv2d(3, 5, 1), (4, 3, 6, 7), 1, lambda x: x),
    "NCHW, channels last in memory": (
        nn.Conv2d(3, 5, 1).to(memory_format=torch.channels_last), (4, 3, 6, 7), 1, lambda x: x,
    ),
    "NHWC": (nn.Linear(3, 5), (4, 6, 7, 3), 3, lambda x: x),
    "NHWC of a convolution": (nn.Conv2d(3, 5, 1), (4, 3, 6, 7), 3, lambda x: x.permute(0, 2, 3, 1).clone()),
    "tokens of a convolution": (nn.Conv2d(3, 5, 1), (4, 3, 6, 7), 2, lambda x: x.flatten(2).transpose(1, 2)),
    "NLC": (nn.Linear(3, 5), (4, 6, 3), 2, lambda x: x),
    "NCL": (nn.Conv1d(3, 5, 1), (4, 3, 6), 1, lambda x: x),
    "NHWC of a layer norm": (nn.LayerNorm(3), (4, 6, 7, 3), 3, lambda x: x),
    "images as they come": (nn.Identity(), (4, 3, 6, 7), 1, lambda x: x),
    "sequences as they come": (nn.Identity(), (4, 6, 3), 2, lambda x: x),
    "NC": (nn.Linear(3, 5), (4, 3), 1, lambda x: x),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_channel_axis_is_told_by_the_layers(layout):
    stem, shape, axis, arrange = LAYOUTS[layout]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.a = stem, nn.LazyLinear(4)

        def forward(self, x):
            x = arrange(self.stem(x))
            y = x + self.a(x.flatten(1)).mean() * x
            self.out = y.detach().clone()
            return y

    model = Net()
    model(torch.randn(shape))
    row = probe(model, torch.randn(shape)).rows[0]
    others = tuple(i for i in range(model.out.dim()) if i != axis)
    assert row.channel_variance == pytest.approx(float64(model.out).var(others).mean(), rel=1e-5)
    assert row.channel_mean_variance == pytest.approx(float64(model.out).mean(others).var(), rel=1e-5)


SCALED = {
    "fused": lambda m, x: torch.addcmul(x, m.scalar, m.a(x)),
    "learned": lambda m, x: x + m.scalar * m.a(x),
    "in place": lambda m, x: m.a(x).mul_(m.scalar).add_(x),
    "with a bias after it": lambda m, x: x + (m.scalar * m.a(x) + m.table[0, 0]),
    "with a drop path after it": lambda m, x: x + m.scalar * m.a(x) * x.new_empty(64, 1).bernoulli_(1.0),
    "learned and constant": lambda m, x: x + 3.0 * (m.scalar * m.a(x)) / 3.0,
}


@pytest.mark.parametrize("form", SCALED)
@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_branch_variance_before_and_after_a_learned_scalar(form, alpha):
    model = Function(SCALED[form])
    model.scalar.data.fill_(alpha)
    row = probe(model, VECTORS).rows[0]
    branch = float64(model.a(VECTORS))
    assert row.branch_variance_before_scalar == pytest.approx(branch.var(), rel=1e-5)
    assert row.branch_variance == pytest.approx(alpha**2 * branch.var(), rel=1e-5)


def test_each_view_of_one_tensor_is_measured_by_itself():
    model = Function(lambda m, x: (y := x + m.a(x)) is not None and (z := y[::2]) is not None and z + m.b(z))
    first, second = probe(model, VECTORS).rows
    full = float64(VECTORS + model.a(VECTORS))
    assert (first.output_variance, second.skip_variance) == pytest.approx(
        (full.var(), full[::2].var()), rel=1e-5
    )


def test_constant_scalars():
    for forward in (lambda m, x: x + 0.2 * m.a(x), lambda m, x: torch.add(x, m.a(x), alpha=0.2),
                    lambda m, x: x + m.a(x) / 5):  # fmt: skip
        model = Function(forward)
        row = probe(model, VECTORS).rows[0]
        assert row.branch_variance_before_scalar == pytest.approx(float64(model.a(VECTORS)).var(), rel=1e-5)
        assert row.branch_variance == pytest.approx(0.04 * row.branch_variance_before_scalar, rel=1e-5)


CONSTANT = {
    "a number": lambda m, f: 0.2 * f,
    "a buffer": lambda m, f: m.scale * f,
    "divided by a buffer": lambda m, f: f / (5 * m.scale / m.scale),
    "one for each channel": lambda m, f: f * m.scale.expand(6),
    "zero": lambda m, f: 0 * f,
    "a buffer of zero": lambda m, f: f * (m.scale - m.scale),
    "a number and a buffer": lambda m, f: 3 * (m.scale * f),
}


@pytest.mark.parametrize("form", CONSTANT)
def test_constant_factors_of_all_kinds(form):
    """`x + c f(x)` of twelve blocks: what the factor multiplies is known, and so is the paper's law."""

    def forward(m, x):
        for layer in m.layers:
            x = x + CONSTANT[form](m, layer(x))
        return x

    torch.manual_seed(0)
    model = Function(forward)
    model.register_buffer("scale", torch.tensor(0.2))
    model.layers = nn.ModuleList(nn.Linear(6, 6, bias=False) for _ in range(12))
    factor = 0.0 if "zero" in form else 0.6 if "and" in form else 0.2
    row, *_ = (report := probe(model, VECTORS)).rows
    assert row.branch_variance_before_scalar == pytest.approx(
        float64(model.layers[0](VECTORS)).var(), rel=1e-5
    )
    assert row.branch_variance == pytest.approx(factor**2 * row.branch_variance_before_scalar, rel=1e-5)
    assert f"unnormalized branches times {factor:.3g}:" in report.verdict.text


@pytest.mark.parametrize("weight", [0.25, torch.tensor(0.25)])
def test_interpolation_scales_its_skip(weight):
    """lerp(x, f(x), w) = (1 - w) x + w f(x), also where x is a sum that was measured before."""
    model = Function(lambda m, x: torch.lerp(y := torch.lerp(x, m.a(x), weight), m.b(y), weight))
    report, y = probe(model, VECTORS), torch.lerp(VECTORS, model.a(VECTORS), weight)
    for row, x in zip(report.rows, (VECTORS, y), strict=True):
        assert row.skip_variance == pytest.approx(float64(0.75 * x).var(), rel=1e-5)
    assert report.rows[1].branch_variance == pytest.approx(float64(0.25 * model.b(y)).var(), rel=1e-5)
    assert not any(add.skip_is_identity for add in report.adds)
    if isinstance(weight, float):
        assert (report.adds[1].continues, report.adds[1].skip_constant) == ("Function", 0.75)
    assert "no prediction" in report.verdict.text  # Its laws are for skips that nothing multiplies alone.


@pytest.mark.parametrize("tracked", [False, True])
def test_an_instance_norm_has_statistics_of_each_example(tracked):
    """It normalizes the branch, so the law of normalized branches is the one for it."""
    norm = nn.InstanceNorm2d(3, track_running_stats=tracked)
    report = probe(
        Function(lambda m, x: x + m.a(x), make=lambda: nn.Sequential(norm, nn.Conv2d(3, 3, 1))), IMAGES
    )
    (row,), values = report.rows, float64(IMAGES)
    assert row.moving_variance == pytest.approx(values.var((2, 3)).mean(), rel=1e-5)
    assert row.squared_moving_mean == pytest.approx((values.mean((2, 3)) ** 2).mean(), rel=1e-5)
    assert "Theory (normalized branches" in report.verdict.text


def test_random_masks_and_tables_are_no_scalars():
    for forward in (lambda m, x: x + m.a(x) * torch.empty(64, 1).bernoulli_(0.5),
                    lambda m, x: x + m.a(x) * torch.rand(64, 6)):  # fmt: skip
        assert probe(Function(forward), VECTORS).rows[0].branch_variance_before_scalar is None


def test_a_sum_times_a_tensor_is_no_constant_multiple():
    """The next skip is the sum times a buffer: no number says by how much."""
    scale = torch.tensor(0.5)
    model = Function(lambda m, x: (y := scale * (x + m.a(x))) + m.b(y))
    assert [add.continues for add in probe(model, VECTORS).adds] == [None, None]
    assert "no prediction" in probe(model, VECTORS).verdict.text


def test_scalars_of_data_are_no_obstacle():
    """A learned factor of one number per example has no channels to measure."""
    model = Function(lambda m, x: x + (m.scalar * x.mean(1))[:, None] * m.a(x))
    assert len(probe(model, VECTORS).rows) == 1


def test_gradients_equal_autograd_by_hand():
    model = Function(lambda m, x: (h := x + m.a(x)) is not None and m.d(h + m.b(F.relu(m.c(h)))))
    targets = torch.randint(6, (64,))
    first, second = probe(model, VECTORS, targets).rows
    h = VECTORS + model.a(VECTORS)
    out = h + model.b(F.relu(model.c(h)))
    loss = F.cross_entropy(model.d(out), targets)
    wanted = [h, out, *model.a.parameters(), *model.b.parameters(), *model.c.parameters()]
    g_h, g_out, *g_parameters = torch.autograd.grad(loss, wanted)
    assert first.gradient_norm == pytest.approx(float(g_h.norm()), rel=1e-5)
    assert second.gradient_norm == pytest.approx(float(g_out.norm()), rel=1e-5)
    norms = [
        math.sqrt(sum(float(g.square().sum()) for g in gs)) for gs in (g_parameters[:2], g_parameters[2:])
    ]
    assert [first.parameter_gradient_norm, second.parameter_gradient_norm] == pytest.approx(norms, rel=1e-5)


def test_gradients_through_inplace_additions_and_activations():
    model = PostActivationResNet()
    seen = []

    def keep(module, args, output):
        output.register_hook(lambda gradient: seen.append(float(gradient.norm())))

    rows = probe(model, IMAGES, torch.tensor([0, 1, 2, 3])).rows
    model.layer4[2].bn3.register_forward_hook(lambda m, a, output: keep(m, a, output))
    model.train()
    F.cross_entropy(model(IMAGES), torch.tensor([0, 1, 2, 3])).backward()
    # A plain addition hands its gradient on to both operands.
    assert rows[-1].gradient_norm == pytest.approx(seen[0], rel=1e-4)


class Deep(nn.Module):
    """Blocks x + W norm(x)."""

    def __init__(self, depth):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6)) for _ in range(depth))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


def test_bookkeeping_is_small():
    """What grows with depth is names, lineage and the rows themselves: Python's memory counts them."""

    def most(depth):
        model = Deep(depth)
        tracemalloc.start()
        probe(model, VECTORS)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    most(5)
    assert (most(400) - most(100)) / 300 < 8 * 1024


def test_no_activation_outlives_its_use():
    """However deep the network, only a few layers' outputs are alive at a time."""

    def most_alive(depth):
        model, outputs, counts = Deep(depth), [], []

        def count(module, args, output):
            outputs.append(weakref.ref(output))
            counts.append(sum(ref() is not None for ref in outputs))

        for layer in model.modules():
            layer.register_forward_hook(count)
        assert len(probe(model, VECTORS).rows) == depth
        return max(counts)

    assert most_alive(50) == most_alive(5) <= 4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_gpu_gives_the_same_rows_and_keeps_its_generator():
    model = create_model("wrn16_2", scheme="regularized-skipinit", alpha=0.5, seed=0)
    targets = torch.tensor([0, 1, 2, 3])
    here = probe(model, IMAGES).rows
    model.cuda()
    state = torch.cuda.get_rng_state()
    there = probe(model, IMAGES.cuda(), targets.cuda())
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert probe(model, IMAGES.cuda(), targets.cuda()).rows[0].skip_variance == there.rows[0].skip_variance
    for row, cuda in zip(here, there.rows, strict=True):
        assert cuda.skip_variance == pytest.approx(row.skip_variance, rel=1e-2)
        assert cuda.branch_variance == pytest.approx(row.branch_variance, rel=1e-2)
        assert cuda.gradient_norm > 0


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
    assert [buffer.stacked().tolist()[index] for index in indices] == [[i, -1] for i in range(1000)]
    assert buffer.append(torch.tensor([7.0, 7.0])) == len(buffer.stacked().tolist()) - 1


def test_complex_gradients_count_with_both_parts():
    model = Function(lambda m, x: x + torch.tanh(x @ m.weight))
    model.weight = nn.Parameter(torch.randn(6, 6, dtype=torch.complex64))
    values = torch.complex(vectors(8), vectors(8).flip(0))
    (row,) = probe(model, values, torch.zeros(8), lambda output, _: (1j * output.square()).real.sum()).rows
    output = model(values)
    output.retain_grad()
    (1j * output.square()).real.sum().backward()
    assert row.gradient_norm == pytest.approx(output.grad.abs().square().sum().sqrt().item(), rel=1e-5)
    weights = model.weight.grad.abs().square().sum().sqrt().item()
    assert row.parameter_gradient_norm == pytest.approx(weights, rel=1e-5)


def test_the_norm_of_a_sparse_gradient_is_that_of_the_dense_one():
    """An embedding that is looked up twice at one entry: its two gradients add up before they are squared."""
    layer, ids = nn.Embedding(5, 3, sparse=True), torch.tensor([1, 3, 1])
    (layer(ids) * torch.arange(9.0).view(3, 3)).sum().backward()
    assert layer.weight.grad.is_sparse
    assert norm_of(layer.weight.grad).item() == pytest.approx(layer.weight.grad.to_dense().norm().item())


def test_an_output_that_is_no_tensor_needs_a_loss():
    model = Function(lambda m, x: {"logits": x + m.a(x)})
    with pytest.raises(ConfigError, match=r"returns a dict; give a `loss` of it and the targets"):
        probe(model, VECTORS, torch.zeros(64, dtype=torch.long))
