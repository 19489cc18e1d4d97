"""What is measured at each residual add, against closed forms, NumPy in float64, and hooks set by hand."""

from __future__ import annotations

import csv
import io
import json
import math
import random
import tracemalloc
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules import module as module_hooks

import skipinit
from skipinit.errors import ConfigError, SkipinitError
from skipinit.nets.create import create_model
from skipinit.probing import laws as theory
from skipinit.probing.laws import predict
from skipinit.probing.measure import probe
from skipinit.probing.moments import Ledger, channel_statistics
from skipinit.probing.verdict import fit_growth
from support.probe_models import ConvNeXt, Function, PostActivationResNet, PreActivationResNet, ViT

IMAGES = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
VECTORS = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))


def float64(tensor):
    return tensor.detach().double().numpy()


# What a row holds


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


def test_statistics_neither_overflow_nor_cancel():
    values = torch.tensor([[3e37, -3e37], [1e37, 2e37]])
    within, between, squares = channel_statistics(values, 1).tolist()
    reference = float64(values)
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
    wide = float64(values)
    expected = [wide.var(others).mean(), wide.mean(others).var(), (wide.mean(others) ** 2).mean()]
    before = values.clone()
    assert channel_statistics(values, axis).tolist() == pytest.approx(expected, rel=1e-11)
    assert torch.equal(values, before)
    assert channel_statistics(values.double(), axis).tolist() == pytest.approx(expected, rel=1e-11)


def test_ledger_keeps_thousands_of_lines_in_order():
    ledger = Ledger()
    lines = [ledger.enter(torch.tensor([float(i), -1.0])) for i in range(1000)]
    assert [ledger.read()[line] for line in lines] == [[i, -1] for i in range(1000)]
    assert ledger.enter(torch.tensor([7.0, 7.0])) == len(ledger.read()) - 1


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


# The model comes out as it went in


class Noisy(nn.Module):
    """Draws from every generator, counts its calls in a buffer, replaces another one."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", torch.zeros(6))

    def forward(self, x):
        self.calls += 1
        self.last = x.detach().mean(0)
        x.mul_(2)
        noise = random.random() + np.random.random()
        out = x + F.dropout(self.norm(self.layer(x)), 0.5, training=self.training) * noise
        if x.shape[0] == 7:
            raise RuntimeError("seven is\nnot allowed")
        return out


def _generators():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


@pytest.mark.parametrize("examples", [64, 7])
@pytest.mark.parametrize("targets", [True, False])
def test_model_and_generators_are_untouched(examples, targets):
    model = Noisy()
    model.norm.eval()
    model.layer.weight.grad = torch.ones(6, 6)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    objects = {name: id(value) for name, value in model.named_buffers()}
    batch, generators = torch.randn(examples, 6), _generators()
    given, labels = (
        batch.clone(),
        torch.randint(6, (examples,), generator=torch.Generator()) if targets else None,
    )
    if examples == 7:
        with pytest.raises(
            ConfigError, match=r"Noisy cannot take the batch 7x6 float32: seven is not allowed"
        ):
            probe(model, batch, labels)
    else:
        assert probe(model, batch, labels) == probe(model, batch, labels)
    assert _generators() == generators
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert {name: id(value) for name, value in model.named_buffers()} == objects
    assert (model.training, model.norm.training, model.layer.training) == (True, False, True)
    assert torch.equal(model.layer.weight.grad, torch.ones(6, 6))
    assert model.norm.weight.grad is None
    assert torch.equal(batch, given)
    hooks = [
        hook
        for module in model.modules()
        for kind in (
            "_forward_hooks",
            "_forward_pre_hooks",
            "_backward_hooks",
            "_forward_hooks_always_called",
        )
        for hook in getattr(module, kind)
    ]
    assert hooks == []
    assert not module_hooks._global_forward_pre_hooks
    assert not module_hooks._global_forward_hooks
    assert torch.backends.mha.get_fastpath_enabled()


# Wrong input, one clear line


def _error(*arguments, **keywords):
    with pytest.raises(SkipinitError) as caught:
        probe(*arguments, **keywords)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_model_without_residual_adds_says_what_it_saw():
    towers = Function(lambda m, x: m.a(x) + m.b(x) + m.table[0])
    message = _error(towers, VECTORS)
    assert "Function has no residual add" in message
    assert "1 because both operands went through as many layers: neither is a skip" in message
    assert "1 because the operands differ in shape" in message


def test_batches_that_do_not_fit():
    model = create_model("wrn16_2")
    assert "with 3 channels in the second" in _error(model, torch.randn(2, 4, 32, 32))
    assert "cannot take the batch 2x3x32x32 int64" in _error(
        model, torch.ones(2, 3, 32, 32, dtype=torch.int64)
    )
    assert "NaN or infinity before the model saw it" in _error(model, torch.full((2, 3, 32, 32), math.nan))
    assert "2 of the batch" not in _error(model, torch.randn(2, 3, 32, 32), torch.tensor([0, 99]))
    frozen = Function(lambda m, x: (x + m.a(x)).detach())
    assert "cannot go backward" in _error(frozen, VECTORS, torch.zeros(64, dtype=torch.int64))
    assert "have no default loss" in _error(model, torch.randn(2, 3, 32, 32), torch.randn(2, 10))


def test_integer_input_is_welcome_where_the_model_takes_it():
    model = nn.Sequential(nn.Embedding(9, 6), Function(lambda m, x: x + m.a(x)))
    assert [row.name for row in probe(model, torch.randint(9, (4, 5))).rows] == ["1"]


def test_nonfinite_values_end_the_rows_and_name_the_block():
    def explode(m, x):
        for factor in (1.0, 1.0, 1e30, 1e30, 1.0):
            x = x + factor * m.a(x)
        return x

    report = probe(Function(explode), VECTORS)
    assert [row.name for row in report.rows] == ["Function", "Function#2", "Function#3"]
    assert report.first_nonfinite == "Function#4"
    assert all(math.isfinite(row.output_variance) for row in report.rows)
    assert "first appears in Function#4" in str(report.verdict)
    assert "1/sqrt(5)" in str(report.verdict)
    first = probe(Function(lambda m, x: x + math.inf * m.a(x)), VECTORS)
    assert (first.rows, first.first_nonfinite) == ((), "Function")
    assert "very first block, Function" in str(first)
    assert json.loads(first.to_json())["rows"] == []


def test_variances_far_beyond_float32_are_measured():
    model = create_model("fc_linear", blocks=200, width=16, seed=0)
    report = probe(model, torch.randn(16, 100))
    assert report.rows[-1].output_variance > 1e45  # float32 ends at 3e38, and 200 doublings at 2e60
    assert report.first_nonfinite is None


# Verdict and theory


def test_theory():
    assert [theory.unnormalized_variance(depth) for depth in (1, 2, 5)] == [1, 2, 16]
    assert [theory.normalized_variance(depth) for depth in (1, 7)] == [1, 7]
    assert theory.relu_moving_variance(3) + theory.relu_squared_moving_mean(3) == pytest.approx(3)
    assert theory.relu_squared_moving_mean(math.pi) == pytest.approx(1)
    assert [theory.normalized_branch_share(depth) for depth in (1, 3)] == [0.5, 0.25]
    assert theory.scaled_branch_share(1) == 0.5
    for alpha in (0, 0.3, 1):  # the share is what the growth says it is
        assert theory.scaled_variance(5, alpha) == pytest.approx(
            theory.scaled_variance(4, alpha) / (1 - theory.scaled_branch_share(alpha))
        )


def test_growth_laws_are_told_apart_under_noise():
    noise = np.random.default_rng(0).normal(1, 0.03, 40)
    depths = np.arange(1, 41)
    exponential = fit_growth((1.5**depths * noise).tolist())
    assert (exponential.law, exponential.rate) == ("exponential", pytest.approx(1.5, rel=0.01))
    wandering = np.cumsum(np.random.default_rng(1).normal(0.4, 0.3, 160))  # what deep networks really do
    exponential = fit_growth(np.exp(wandering).tolist())
    assert (exponential.law, exponential.rate) == ("exponential", pytest.approx(math.exp(0.4), rel=0.1))
    linear = fit_growth(((3 + 0.9 * depths) * noise).tolist())
    assert (linear.law, linear.rate) == ("linear", pytest.approx(0.9, rel=0.05))
    constant = fit_growth((4 * noise).tolist())
    assert (constant.law, constant.rate) == ("constant", pytest.approx(4, rel=0.02))
    assert fit_growth([1.0, 2.0]).law == "unknown"
    assert fit_growth([0.0, 0.0, 0.0]).law == "unknown"


@pytest.mark.parametrize(
    ("scheme", "biased", "law"),
    [
        ("batchnorm", True, "linear"),
        ("skipinit", True, "constant"),
        ("none", False, "exponential"),
    ],
)
def test_verdict_on_the_papers_schemes(scheme, biased, law):
    """Section 2.1 for each; 8 blocks a group, so that the fit has something to fit."""
    model = create_model("wrn52_1", scheme=scheme, seed=0)
    verdict = probe(model, IMAGES).verdict
    assert (verdict.biased_to_identity, verdict.growth.law, verdict.growth.blocks) == (biased, law, 8)
    assert ("Advice: none" in verdict.text) is biased
    if law == "exponential":
        assert verdict.growth.rate == pytest.approx(2, rel=0.2)


def test_predictions_follow_the_section_on_theory():
    """Section 2.1: doubling, l from each projection on, constant after division by sqrt(2), no law for V1."""
    rows = {
        scheme: predict(probe(create_model("wrn28_1", scheme=scheme, seed=0), IMAGES))
        for scheme in ("none", "batchnorm", "divide-sqrt2", "skipinit")
    }
    assert rows["none"].skip[11] / rows["none"].skip[0] == pytest.approx(2**11)
    assert set(rows["none"].share) == {0.5}
    assert rows["batchnorm"].skip == (1, 2, 3, 4) * 3
    assert rows["batchnorm"].share == pytest.approx([1 / 2, 1 / 3, 1 / 4, 1 / 5] * 3)
    assert rows["divide-sqrt2"].skip == pytest.approx([rows["divide-sqrt2"].skip[0]] * 12)
    assert set(rows["divide-sqrt2"].share) == {0.5}
    assert set(rows["skipinit"].branch) == {0}
    for scheme in ("batchnorm", "skipinit"):
        assert predict(probe(create_model("resnet50_v1", scheme=scheme, seed=0), IMAGES)) is None
    assert predict(probe(create_model("wrn28_1", scheme="batchnorm-on-skip", seed=0), IMAGES)) is None


# Forms of the report


def test_json_csv_and_table_hold_the_rows(tmp_path):
    report = skipinit.probe(create_model("wrn16_1", scheme="skipinit", alpha=0.5, seed=0), IMAGES)
    loaded = json.loads(report.to_json())
    assert [row["name"] for row in loaded["rows"]] == [row.name for row in report.rows]
    assert loaded["rows"][2]["branch_share"] == report.rows[2].branch_share
    lines = list(csv.DictReader(io.StringIO(report.to_csv())))
    assert [float(line["skip_variance"]) for line in lines] == [row.skip_variance for row in report.rows]
    assert lines[0]["moving_variance"] == ""
    header, *body = report.table().splitlines()
    assert "before scalar" in header
    assert "moving var" not in header  # nothing is normalized here
    assert [line.split()[0] for line in body] == [row.name for row in report.rows]
    report.plot(tmp_path / "a.png")
    report.plot(tmp_path / "a.svg")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "a.svg").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "a.svg"]
    with pytest.raises(ConfigError, match=r"no picture format '\.bmp'; use one of \.png, \.svg, \.pdf"):
        report.plot(tmp_path / "a.bmp")
    with pytest.raises(ConfigError, match="cannot be written there"):
        report.plot(tmp_path / "nowhere" / "a.png")


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
