"""`convert`: norms out, scalars in, and the result is an ordinary module."""

from __future__ import annotations

import copy
import io
import json
import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from skipinit.converting.convert import convert
from skipinit.converting.extensions import ChannelAffine
from skipinit.errors import ConfigError, SkipinitError
from skipinit.nets.create import create_model
from skipinit.nets.layers import l2_parameters
from skipinit.probing.measure import probe
from skipinit.training.world import leave_group
from support.convert_models import CifarResNet, Lines, Odd, ResNet18, scalars, with_statistics
from support.probe_models import ConvNeXt, PostActivationResNet, PreActivationResNet, ViT, images

IMAGES = images(4)
LINES = torch.randn(4, 3, 8, generator=torch.Generator().manual_seed(1))
TOKENS = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(2))
NORMS = (_BatchNorm, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)


def parallel_vit():
    model = ViT(3, parallel=True)
    for block in model.blocks:
        del block.norm2  # Its forward has no use for it.
    return model


# model: (factory, example, residual adds, whether an activation follows each add)
MODELS = {
    "ResNet-18": (ResNet18, IMAGES, 8, True),
    "ResNet-50": (PostActivationResNet, IMAGES, 16, True),
    "padded skips": (lambda: CifarResNet(2, 8, 3), IMAGES, 6, True),
    "pre-activation": (PreActivationResNet, IMAGES, 8, False),
    "odd": (Lines, LINES, 2, False),
    "ViT": (lambda: ViT(3), IMAGES, 6, False),
    "parallel ViT": (parallel_vit, IMAGES, 6, False),
    "ConvNeXt": (ConvNeXt, IMAGES, 18, False),
}


class Unnormalized(nn.Module):
    """x + W2 relu(W1 x), forty times, by He: f has twice the variance of x, so each block triples it."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(6, 64), nn.Linear(64, 5)
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)) for _ in range(40)
        )
        for layer in (layer for branch in self.branches for layer in (branch[0], branch[2])):
            nn.init.normal_(layer.weight, std=math.sqrt(2 / 64))

    def forward(self, x):
        x = self.stem(x)
        for branch in self.branches:
            x = x + branch(x)
        return self.head(x)


def test_a_network_without_norms_gets_the_scalars_it_lacks():
    torch.manual_seed(0)
    model, x = Unnormalized(), torch.randn(64, 6)
    with pytest.warns(UserWarning, match="no normalization was found in Unnormalized; .* with norms="):
        conversion = convert(model, x)
    growth = conversion.before.verdict.growth
    assert (growth.law, growth.rate) == ("exponential", pytest.approx(3, rel=0.1))
    assert (conversion.num_norms, conversion.num_blocks) == (0, 40)
    assert [p.item() for p in scalars(conversion.model).values()] == [0.0] * 40
    net = conversion.model
    assert torch.equal(net(x), net.head(net.stem(x)))  # every block is the identity
    with pytest.raises(SkipinitError, match="there is nothing to fold; use keep_function=False"):
        convert(model, x, keep_function=True)


@pytest.mark.parametrize("name", MODELS)
def test_every_branch_starts_at_nothing_and_no_norm_is_left(name):
    factory, batch, blocks, activated = MODELS[name]
    model = factory()
    converted = convert(model, batch).model
    assert not any(isinstance(module, NORMS) for module in converted.modules())
    assert [p.item() for p in scalars(converted).values()] == [0.0] * blocks
    assert len(scalars(converted, "merge_bias")) == (blocks if activated else 0)
    rows = probe(converted, batch).rows
    assert [row.branch_share for row in rows] == [0.0] * blocks
    assert all(row.branch_variance_before_scalar > 0 for row in rows)


@pytest.mark.parametrize("name", MODELS)
def test_names_and_shapes_of_what_stays_are_kept(name):
    factory, batch, _, _ = MODELS[name]
    model = factory()
    kept = {n: p.shape for n, p in model.named_parameters() if "norm" not in n and "bn" not in n}
    kept = {n: shape for n, shape in kept.items() if not n.startswith("stem.1") and "downsample.1" not in n}
    now = {n: p.shape for n, p in convert(model, batch).model.named_parameters()}
    assert kept.items() <= now.items()
    added = {n.rsplit(".", 1)[1] for n in now.keys() - kept.keys()}
    assert added <= {"bias", "branch_alpha", "merge_bias"}


def test_scalars_and_biases_are_where_the_paper_has_them():
    """Against the same network written by hand: relu(skip + (alpha f(x)) + b), biases in all convolutions."""
    converted = convert(ResNet18(), IMAGES, seed=0).model
    block = converted.layer2[0]
    for value in (*scalars(converted).values(), *scalars(converted, "merge_bias").values()):
        nn.init.normal_(value)
    nn.init.normal_(block.conv1.bias)
    nn.init.normal_(block.conv2.bias)
    nn.init.normal_(block.downsample[0].bias)
    x = torch.randn(2, 8, 8, 8)
    branch = block.conv2(block.conv1(x).relu())
    wanted = block.downsample[0](x) + block.bn2.branch_alpha * branch + block.bn2.merge_bias
    torch.testing.assert_close(block(x), wanted.relu())


def test_he_initialization_and_seed():
    torch.manual_seed(5)
    first = convert(ResNet18(width=32), IMAGES, seed=0).model
    state = torch.get_rng_state()
    second = convert(ResNet18(width=32), IMAGES, seed=0).model
    assert all(map(torch.equal, first.parameters(), second.parameters()))
    for name, weight in l2_parameters(first).items():
        if weight.numel() > 10_000:
            assert weight.std().item() == pytest.approx(math.sqrt(2 / weight[0].numel()), rel=0.05), name
    assert all(not layer.bias.any() for layer in first.modules() if isinstance(layer, (nn.Conv2d, nn.Linear)))
    torch.set_rng_state(state)
    drawn = convert(first.__class__(width=32), IMAGES).model
    assert not torch.equal(drawn.fc.weight, first.fc.weight)


def test_scalars_take_no_l2():
    converted = convert(ResNet18(), IMAGES).model
    decayed = l2_parameters(converted).keys()
    assert not any("alpha" in name or "bias" in name for name in decayed)
    assert len(decayed) == 21


def test_biases_can_be_left_out():
    converted = convert(ResNet18(), IMAGES, biases=False).model
    assert all(layer.bias is None for layer in converted.modules() if isinstance(layer, nn.Conv2d))


def test_learned_scale_at_the_end_of_a_branch_starts_at_one():
    """ConvNeXt's starts at 1e-6, which together with alpha = 0 would never learn."""
    assert all((p == 1).all() for p in scalars(convert(ConvNeXt(), IMAGES).model, "gamma").values())


def test_divide_sqrt2_divides_skip_and_branch():
    model = convert(ResNet18(), IMAGES, scheme="divide-sqrt2", seed=0).model
    block, x = model.layer1[1], torch.randn(2, 8, 8, 8)
    wanted = (x + block.conv2(block.conv1(x).relu())).relu() / math.sqrt(2)
    torch.testing.assert_close(block(x), wanted)


def test_fixup_on_a_post_activation_network():
    model = convert(ResNet18(), IMAGES, scheme="fixup", seed=0).model
    plain = convert(ResNet18(), IMAGES, scheme="none", seed=0).model
    for block, before in zip(model.layer1, plain.layer1, strict=True):
        assert not block.conv2.weight.any()
        torch.testing.assert_close(block.conv1.weight, before.conv1.weight * 8**-0.5)
        assert block.bn2.branch_alpha == 1
    assert not model.fc.weight.any()
    # Before every convolution and dense layer (20 and 1), and before every ReLU (the stem's, two a block).
    assert len(scalars(model, "input_bias")) == 21
    biases = [n for n in model.state_dict() if n.endswith(("bn1.bias", "merge_bias"))]
    assert len(biases) == 1 + 2 * 8


def test_fixup_on_a_transformer():
    """Weights, not the biases beside them; d counts both adds of a block, m the branch's two maps."""
    torch.manual_seed(0)
    model = convert(ViT(3), IMAGES, scheme="fixup", seed=0).model
    plain = convert(ViT(3), IMAGES, scheme="none", seed=0).model
    for block, before in zip(model.blocks, plain.blocks, strict=True):
        assert not block.attn.proj.weight.any()
        assert not block.mlp[2].weight.any()
        torch.testing.assert_close(block.attn.qkv.weight, before.attn.qkv.weight * 6**-0.5)
        torch.testing.assert_close(block.mlp[0].weight, before.mlp[0].weight * 6**-0.5)
        assert block.mlp[2].branch_alpha == 1


def test_dropout_is_on_the_classifier_alone():
    model = convert(ResNet18(), IMAGES, scheme="regularized-skipinit", dropout=0.6, seed=0).model.train()
    features = torch.ones(2000, 64)
    zeros = torch.nn.functional.linear(features, model.fc.weight, model.fc.bias)
    torch.manual_seed(0)
    dropped = model.fc(features)
    torch.testing.assert_close(dropped.mean(0), zeros[0], rtol=0, atol=0.3)
    assert dropped.std(0).min() > 0.1
    assert torch.equal(model.eval().fc(features), zeros)


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_pre_norm_encoder(norm):
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=True)
    layer.norm1, layer.norm2 = norm(16), norm(16)
    encoder = nn.TransformerEncoder(layer, 3, norm(16), enable_nested_tensor=False)
    converted = convert(encoder, TOKENS).model
    assert len(scalars(converted)) == 6
    assert not any(isinstance(module, NORMS) for module in converted.modules())
    for mode in (True, False):  # The identity, and no fused kernel passes the scalars by.
        torch.testing.assert_close(converted.train(mode)(TOKENS), TOKENS)
    nn.init.ones_(converted.layers[0].dropout1.branch_alpha)
    block = converted.layers[0]
    wanted = TOKENS + block.self_attn(TOKENS, TOKENS, TOKENS)[0]
    with torch.no_grad():
        torch.testing.assert_close(converted(TOKENS), wanted)


def test_attention_that_ends_a_branch_is_scaled_as_a_tuple():
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.attention = nn.LayerNorm(16), nn.MultiheadAttention(16, 4, batch_first=True)

        def forward(self, x):
            h = self.norm(x)
            return x + self.attention(h, h, h)[0]

    converted = convert(Block(), TOKENS).model
    assert torch.equal(converted(TOKENS), TOKENS)
    assert len(converted.attention(TOKENS, TOKENS, TOKENS)) == 2


def test_post_norm_is_converted_with_a_warning():
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    with pytest.warns(
        UserWarning, match=r"layers.0.norm1, layers.0.norm2, layers.1.norm1: the skip path went"
    ):
        converted = convert(encoder, TOKENS).model
    assert torch.equal(converted.eval()(TOKENS), TOKENS)


def test_post_norm_is_named_also_where_a_factor_follows():
    """DeepNet's: norm(2 x + f(x))."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense, self.norm = nn.Linear(16, 16), nn.LayerNorm(16)

        def forward(self, x):
            return self.norm(F.dropout(2 * x, 0.1, self.training) + self.dense(x))

    with pytest.warns(UserWarning, match=r"0.norm, 1.norm: the skip path went"):
        convert(nn.Sequential(Layer(), Layer(), Layer()), TOKENS)


def test_norm_that_carries_its_activation():
    """As timm's BatchNormAct2d does: the norm goes, the activation stays under its name."""

    class NormAct(nn.BatchNorm2d):
        def __init__(self, channels: int) -> None:
            super().__init__(channels)
            self.drop, self.act = nn.Identity(), nn.ReLU()

        def forward(self, x):
            return self.act(self.drop(super().forward(x)))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.conv1 = NormAct(3), nn.Conv2d(3, 3, 3, 1, 1)
            self.norm2, self.conv2 = NormAct(3), nn.Conv2d(3, 3, 3, 1, 1)

        def forward(self, x):
            return x + self.conv2(self.norm2(self.conv1(self.norm1(x))))

    model = with_statistics(Net()).double()
    kept = convert(model, IMAGES.double(), keep_function=True).model
    assert isinstance(kept.norm1.affine, ChannelAffine)
    torch.testing.assert_close(kept.eval()(IMAGES.double()), model.eval()(IMAGES.double()))
    fresh = convert(model, IMAGES.double(), scheme="none").model
    x = IMAGES.double()
    torch.testing.assert_close(fresh(x), x + fresh.conv2(fresh.conv1(x.relu()).relu()))


@pytest.mark.parametrize("write", [nn.ReLU(inplace=True), torch.relu_, lambda x: F.relu(x, inplace=True)])
def test_nothing_writes_into_the_skip(write):
    """Behind a norm an in-place ReLU wrote into the norm's output; without it, x itself is next."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.conv = nn.BatchNorm2d(3), nn.Conv2d(3, 3, 3, 1, 1)
            if isinstance(write, nn.Module):
                self.write = write

        def forward(self, x):
            activate = self.write if isinstance(write, nn.Module) else write
            return x + self.conv(activate(self.norm(x)))

    converted = convert(nn.Sequential(Block(), Block()), IMAGES).model
    assert torch.equal(converted(IMAGES.clone()), IMAGES)
    nn.init.ones_(converted[0].conv.branch_alpha)
    torch.testing.assert_close(converted(IMAGES.clone()), IMAGES + converted[0].conv(IMAGES.relu()))


def test_one_block_applied_again_and_again_has_one_scalar():
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
            self.norms = nn.ModuleList(nn.LayerNorm(6) for _ in range(3))

        def forward(self, x):
            for norm in self.norms:
                x = x + self.last(self.first(norm(x)).relu())
            return x

    converted = convert(Loop(), torch.randn(4, 6)).model
    assert list(scalars(converted)) == ["last.branch_alpha"]


def test_long_skip_is_a_block_around_blocks():
    class Long(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.last = PreActivationResNet().blocks[:2], nn.Conv2d(8, 8, 1)

        def forward(self, x):
            h = x
            for block in self.body:
                h = block(h)
            return x + self.last(h)

    x = torch.randn(2, 8, 8, 8)
    conversion = convert(Long(), x)
    assert list(scalars(conversion.model)) == [
        "body.0.conv2.branch_alpha",
        "body.1.conv2.branch_alpha",
        "last.branch_alpha",
    ]
    assert conversion.left == ()
    assert torch.equal(conversion.model(x), x)


@pytest.fixture(params=["fresh", "kept", "fixup"])
def ordinary(request):
    """A converted network off its start, in evaluation mode."""
    options = {"fresh": {}, "kept": {"keep_function": True}, "fixup": {"scheme": "fixup"}}[request.param]
    converted = convert(with_statistics(PreActivationResNet()), IMAGES, **options).model
    for value in converted.parameters():
        if value.dim() == 0:
            nn.init.constant_(value, 0.3)
    nn.init.normal_(converted.head.weight)
    return converted.eval()


def test_result_copies_saves_and_moves(ordinary):
    wanted = ordinary(IMAGES)
    assert torch.equal(copy.deepcopy(ordinary)(IMAGES), wanted)
    file = io.BytesIO()
    torch.save(ordinary, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(loaded(IMAGES), wanted)
    assert [type(m) for m in loaded.modules()] == [type(m) for m in ordinary.modules()]
    twin = copy.deepcopy(ordinary)
    for value in twin.parameters():
        nn.init.zeros_(value)
    twin.load_state_dict(ordinary.state_dict())
    assert torch.equal(twin(IMAGES), wanted)
    torch.testing.assert_close(twin.double()(IMAGES.double()).float(), wanted, rtol=1e-3, atol=1e-4)


def test_result_exports(ordinary):
    program = torch.export.export(ordinary, (IMAGES,))
    torch.testing.assert_close(program.module()(IMAGES), ordinary(IMAGES))


def test_result_compiles(ordinary):
    compiled = torch.compile(ordinary, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(IMAGES), ordinary(IMAGES))


def test_result_exports_to_onnx(ordinary, tmp_path):
    pytest.importorskip("onnx", reason="needs the extra `onnx`")
    pytest.importorskip("onnxscript", reason="needs the extra `onnx`")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(ordinary, (IMAGES,), tmp_path / "net.onnx", dynamo=True, verbose=False)
    assert (tmp_path / "net.onnx").stat().st_size > 0


def test_result_runs_distributed(ordinary, tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        shared = nn.parallel.DistributedDataParallel(ordinary)
        shared(IMAGES).square().mean().backward()
        shared(IMAGES).square().mean().backward()  # Complains if a parameter had no part in the first.
    finally:
        leave_group()
    assert all(p.grad is not None for p in ordinary.parameters())


def test_result_has_no_hooks(ordinary):
    for module in ordinary.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not module._backward_hooks


def test_result_trains_in_bfloat16(ordinary):
    with torch.autocast("cpu", torch.bfloat16):
        out = ordinary.train()(IMAGES)
    assert out.dtype == torch.bfloat16
    out.float().square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in ordinary.parameters())


def test_conversion_says_what_was_removed_and_added(tmp_path):
    model = with_statistics(ResNet18())
    conversion = convert(model, IMAGES, keep_function=True)
    assert conversion.num_norms == 20
    assert conversion.num_blocks == 8
    assert max(map(len, str(conversion).splitlines())) <= 80
    lines = conversion.to_text(every=True).splitlines()
    assert lines[0].split() == ["block", "removed", "added"]
    first = next(line for line in lines if line.startswith("layer2.0"))
    assert "downsample.1, bn1, bn2" in first
    assert "bn2: branch scalar, 1, scalar bias before the activation" in first
    assert "bn1: folded into layer2.0.conv1" in first
    assert lines[9].split()[:2] == ["elsewhere", "bn1"]
    loaded = json.loads(conversion.to_json())
    assert loaded["num_norms"] == 20
    assert len(loaded["before"]["rows"]) == len(loaded["after"]["rows"]) == 8
    assert loaded["difference"] < 1e-4
    conversion.plot(tmp_path / "balance.svg")
    assert "<svg" in (tmp_path / "balance.svg").read_text()


class Branch(nn.Module):
    def __init__(self, end) -> None:
        super().__init__()
        self.norm, self.layer, self.end = nn.LayerNorm(8), nn.Linear(8, 8), end

    def forward(self, x):
        return x + self.end(self.layer(self.norm(x)))


@pytest.mark.parametrize(
    ("kinds", "shown"),
    [
        ([nn.Identity] * 30, ["0", "(28 more)", "29"]),
        ([nn.Identity] * 20 + [nn.GELU] * 20, ["0", "(18 more)", "19", "20", "(18 more)", "39"]),
        ([nn.Identity, nn.GELU] * 6, [str(i) for i in range(12)]),
        ([nn.Identity, nn.GELU] * 12, [str(i) for i in range(24)]),
        (
            [nn.Identity, nn.GELU] * 15,
            [*(str(i) for i in range(12)), "(6 more lines)", *(str(i) for i in range(18, 30))],
        ),
    ],
)
def test_of_many_blocks_the_table_shows_where_they_change(kinds, shown):
    model = nn.Sequential(*(Branch(kind()) for kind in kinds), nn.Linear(8, 3))
    conversion = convert(model, LINES)
    _, *lines, elsewhere = conversion.table().splitlines()
    assert [line.split("  ")[0] for line in lines] == shown
    assert elsewhere.split()[0] == "elsewhere"
    assert len(conversion.table(every=True).splitlines()) == len(kinds) + 2


def test_function_is_kept_for_every_form_of_inputs():
    for inputs in (torch.Size([2, 3, 32, 32]), (IMAGES,), {"x": IMAGES}):
        assert convert(with_statistics(ResNet18()), inputs, keep_function=True).difference < 1e-4


def test_control_flow_on_data():
    """Also a norm that runs on the skip: it goes, with a warning."""
    with pytest.warns(UserWarning, match="skip_norm: the skip path went through"):
        converted = convert(Odd(), IMAGES).model
    assert len(scalars(converted)) == 3
    with pytest.raises(Exception, match=r"control flow|symbolically traced"):
        torch.fx.symbolic_trace(converted)


def test_a_step_moves_the_scalars_first():
    """At alpha = 0 the branch's weights have no gradient yet, the scalar has."""
    converted = convert(PreActivationResNet(), IMAGES, seed=0).model
    F.cross_entropy(converted(IMAGES), torch.tensor([0, 1, 2, 3])).backward()
    assert all(p.grad.abs() > 0 for p in scalars(converted).values())
    assert not converted.blocks[0].conv1.weight.grad.any()


def test_a_converted_network_of_ours_is_not_saved_under_its_old_config(tmp_path):
    """It would be written well and never load again."""
    converted = convert(
        create_model("wrn10_1", num_classes=10, in_channels=1), torch.Size([2, 1, 8, 8])
    ).model
    with pytest.raises(ConfigError, match=r"was changed.* save its state_dict with torch\.save"):
        converted.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


class Counting(CifarResNet):
    """Writes into a tensor that it holds, which is no buffer."""

    def forward(self, x):
        self.calls.add_(1)
        return super().forward(x)


def test_what_a_model_holds_is_not_written():
    model = Counting(1, channels=3)
    model.calls = torch.zeros((), requires_grad=True) * 1  # Has a history, so that it is copied apart.
    convert(model, images(2))
    assert model.calls.item() == 0
