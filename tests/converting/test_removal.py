"""`keep_function`: the converted network computes what the original computes in evaluation mode."""

from __future__ import annotations

import copy
import math
import re
import warnings
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from skipinit.converting.convert import convert
from skipinit.converting.extensions import ChannelAffine
from skipinit.converting.norms import is_batch_norm, is_frozen_batch_norm
from skipinit.converting.removal import (
    as_affine,
    can_fold,
    check_finite,
    in_double,
    largest_difference,
    rounding_tolerance,
)
from skipinit.errors import SkipinitError
from skipinit.nets.create import create_model
from skipinit.probing.measure import measure
from support.convert_models import (
    CifarResNet,
    Lines,
    Odd,
    ResNet18,
    relative_difference,
    scalars,
    with_statistics,
)
from support.probe_models import PostActivationResNet, PreActivationResNet, ViT, images
from support.written_norms import TWINS, WIDTH, WrittenNorm, by_scale_over_deviation, network

IMAGES = images(4)
UNSEEN = torch.randn(3, 3, 40, 32, generator=torch.Generator().manual_seed(1))
LINES = torch.randn(4, 3, 8, generator=torch.Generator().manual_seed(2))

# model: (factory, example, other input, residual adds, norms that no layer can take)
MODELS = {
    "ResNet-18": (ResNet18, IMAGES, UNSEEN, 8, []),
    "ResNet-50": (PostActivationResNet, IMAGES, UNSEEN, 16, []),
    "pre-activation": (PreActivationResNet, IMAGES, UNSEEN, 8, [f"blocks.{i}.bn1" for i in range(8)]),
    "padded skips": (lambda: CifarResNet(2, 8, 3), IMAGES, UNSEEN, 6, []),
    "skip, groups, dilation": (Odd, IMAGES, UNSEEN, 3, ["skip_norm", "after_used_twice"]),
    "one-dimensional": (Lines, LINES, LINES[..., :5].flip(0), 2, ["norm3"]),
    "ghost batches": (
        lambda: create_model("wrn10_1", ghost_batch=2), IMAGES, UNSEEN, 3,
        [f"blocks.{i}.preactivation.norm1" for i in range(3)] + ["head.norm"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_outputs_are_kept(name, dtype, bound):
    factory, example, other, blocks, unfolded = MODELS[name]
    torch.manual_seed(3)
    model = with_statistics(factory()).to(dtype)
    conversion = convert(model, example.to(dtype), keep_function=True)
    converted = conversion.model
    model.eval()
    converted.eval()
    for batch in (example, other):
        assert relative_difference(converted(batch.to(dtype)), model(batch.to(dtype))) < bound
    assert conversion.difference < bound
    assert conversion.num_blocks == blocks
    assert [c.module for c in conversion.changes if c.added == "scale and shift"] == unfolded
    assert not any(isinstance(module, _BatchNorm) for module in converted.modules())
    assert [p.item() for p in scalars(converted).values()] == [1.0] * blocks
    assert all(p.dtype == dtype and p.requires_grad for p in converted.parameters())


def test_kept_function_does_not_hang_on_the_rest_of_the_batch():
    """The reason to convert: in training mode too, an example's output is its own."""
    model = with_statistics(ResNet18())
    converted = convert(model, IMAGES, keep_function=True).model.train()
    alone = torch.cat([converted(IMAGES[i : i + 1]) for i in range(4)])
    torch.testing.assert_close(alone, converted(IMAGES))
    model.train()
    assert relative_difference(model(IMAGES[:2]), model(IMAGES)[:2]) > 0.01


def test_scale_and_shift_is_batch_norm():
    """Against torch's own, for every number of axes it takes."""
    for norm, last, shape in (
        (nn.BatchNorm1d, nn.Linear(4, 4), (5, 4)),
        (nn.BatchNorm1d, nn.Conv1d(4, 4, 1), (5, 4, 3)),
        (nn.BatchNorm3d, nn.Conv3d(4, 4, 1), (2, 4, 3, 2, 2)),
    ):

        class Net(nn.Module):
            def __init__(self, norm=norm, last=last) -> None:
                super().__init__()
                self.norm, self.last = norm(4), last

            def forward(self, x):
                return x + self.last(self.norm(x))

        model = with_statistics(Net()).double()
        x = torch.randn(shape, dtype=torch.float64)
        converted = convert(model, x, keep_function=True).model
        assert isinstance(converted.norm, ChannelAffine)
        torch.testing.assert_close(converted.eval()(x), model.eval()(x), rtol=1e-12, atol=1e-12)


def test_norm_of_a_map_that_is_used_elsewhere_too_is_not_folded():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.last = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1)

        def forward(self, x):
            h = self.conv(x)
            return h + self.last(self.norm(h).relu())

    model = with_statistics(Net()).double()
    converted = convert(model, IMAGES.double(), keep_function=True).model
    assert isinstance(converted.norm, ChannelAffine)
    torch.testing.assert_close(converted.eval()(IMAGES.double()), model.eval()(IMAGES.double()))


def test_tied_weights_are_not_folded_twice():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
            self.b.weight = self.a.weight
            self.norm_a, self.norm_b = nn.BatchNorm2d(3), nn.BatchNorm2d(3)

        def forward(self, x):
            return x + self.norm_b(self.b(self.norm_a(self.a(x)).relu()))

    model = with_statistics(Net()).double()
    converted = convert(model, IMAGES.double(), keep_function=True).model
    assert converted.a.weight is converted.b.weight
    torch.testing.assert_close(converted.eval()(IMAGES.double()), model.eval()(IMAGES.double()))


def test_layer_with_two_names_is_folded():
    """nnU-Net's blocks have each layer as an attribute, and once more in the sequence that they run."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
            self.all_modules = nn.Sequential(self.conv, self.norm, nn.ReLU())

        def forward(self, x):
            return x + self.all_modules(x)

    model = with_statistics(Net()).double()
    converted = convert(model, IMAGES.double(), keep_function=True).model
    assert not any(isinstance(module, ChannelAffine) for module in converted.modules())
    assert converted.conv is converted.all_modules[0]
    torch.testing.assert_close(converted.eval()(IMAGES.double()), model.eval()(IMAGES.double()))


def test_regularized_keeps_the_function_and_drops_in_training():
    model = with_statistics(ResNet18())
    converted = convert(model, IMAGES, scheme="regularized-skipinit", dropout=0.5, keep_function=True).model
    assert relative_difference(converted.eval()(IMAGES), model.eval()(IMAGES)) < 1e-4
    converted.train()
    assert not torch.equal(converted(IMAGES), converted(IMAGES))


def test_frozen_layers_stay_frozen():
    model = with_statistics(ResNet18()).requires_grad_(False)
    converted = convert(model, IMAGES, keep_function=True).model
    trainable = {name for name, p in converted.named_parameters() if p.requires_grad}
    assert {name.split(".")[-1] for name in trainable} == {"branch_alpha", "merge_bias"}


@pytest.mark.parametrize("frozen", [True, False])
def test_a_scale_and_shift_is_frozen_as_its_norm_was(frozen):
    net = nn.Sequential(nn.Linear(6, 6), _PreActivation(), nn.Linear(6, 3)).eval()
    net[1].requires_grad_(not frozen)
    norm = convert(net, torch.randn(4, 6), keep_function=True).model[1].norm
    assert [p.requires_grad for p in norm.parameters()] == [not frozen] * 2
    assert not norm.training


def test_a_norm_without_weights_becomes_a_scale_and_shift_that_train():
    net = nn.Sequential(nn.Linear(6, 6), _PreActivation(), nn.Linear(6, 3)).double()
    net[1].norm = nn.BatchNorm1d(6, affine=False).double()
    with_statistics(net).eval()
    x = torch.randn(4, 6, dtype=torch.float64)
    converted = convert(net, x, keep_function=True).model
    norm, given = converted[1].norm, net[1].norm
    torch.testing.assert_close(norm.scale, (given.running_var + given.eps) ** -0.5)
    torch.testing.assert_close(norm.shift, -given.running_mean * norm.scale)
    torch.testing.assert_close(converted.eval()(x), net(x))
    assert all(p.requires_grad for p in norm.parameters())
    assert "(norm): ChannelAffine(6)" in str(converted)


class _PreActivation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(6), nn.Linear(6, 6)

    def forward(self, x):
        return x + self.layer(self.norm(x).relu())


def test_branch_that_was_nothing_but_a_norm(tmp_path):
    """x + alpha (scale * x + shift) has no layer; the scalar tells that it is a branch."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(6)

        def forward(self, x):
            return x + self.norm(x)

    conversion = convert(Net(), torch.randn(4, 6), keep_function=True)
    assert len(conversion.before.rows) == len(conversion.after.rows) == 1
    conversion.plot(tmp_path / "balance.png")


def test_layer_norms_stay_beside_batch_norms():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.norm, self.layer_norm = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.LayerNorm(6)

        def forward(self, x):
            x = x + self.norm(self.a(x))
            return x + self.layer_norm(x)

    model, x = with_statistics(Net()).double(), torch.randn(4, 6, dtype=torch.float64)
    conversion = convert(model, x, keep_function=True)
    converted = conversion.model
    assert conversion.left == (
        "layer_norm, LayerNorm normalizes each example by itself, which no scale and shift computes",
    )
    torch.testing.assert_close(converted.eval()(x), model.eval()(x))


def test_what_depends_on_the_batch_at_test_time_cannot_be_kept():
    model = ResNet18()
    model.layer1[0].bn1 = nn.BatchNorm2d(8, track_running_stats=False)
    with pytest.raises(SkipinitError, match=r"layer1.0.bn1 has no running statistics"):
        convert(model, IMAGES, keep_function=True)
    with pytest.raises(SkipinitError, match="no running statistics"):
        convert(create_model("wrn10_1", batch_statistics_at_test=True), IMAGES, keep_function=True)


def test_what_is_not_finite_cannot_be_kept():
    model = ResNet18()
    model.layer1[0].bn1.running_var.fill_(float("nan"))
    with pytest.raises(SkipinitError, match="gives NaN or infinity in evaluation mode"):
        convert(model, IMAGES, keep_function=True)


def test_layer_norm_cannot_be_kept():
    with pytest.raises(SkipinitError, match=r"blocks.0.norm1: LayerNorm normalizes each example by itself"):
        convert(ViT(2), IMAGES, keep_function=True)


def test_a_function_that_reads_its_norm_is_found_out():
    """The outputs are compared before the result is handed out."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)

        def forward(self, x):
            again = 1 if isinstance(self.norm, nn.BatchNorm1d) else 2
            return x + again * self.norm(self.a(x))

    model = with_statistics(Net())
    with pytest.raises(SkipinitError, match="its outputs would change by"):
        convert(model, torch.randn(4, 6), keep_function=True)


@dataclass
class Outputs:
    logits: torch.Tensor


class Holder:
    def __init__(self, logits) -> None:
        self.logits = logits


class Wrapped(ResNet18):
    """Returns the logits in an object and keeps its last activations."""

    wrap: type = Outputs

    def forward(self, x):
        self.last = super().forward(x)
        return self.wrap(self.last)


def test_outputs_in_a_dataclass_are_compared():
    model = with_statistics(Wrapped())
    conversion = convert(model, IMAGES, keep_function=True)
    expected, logits = (m.eval()(IMAGES).logits.detach() for m in (model, conversion.model))
    difference = (logits - expected).abs().max() / expected.abs().max()
    assert 0 < conversion.difference == pytest.approx(difference.item())


def test_outputs_that_cannot_be_found_are_not_called_equal():
    model = with_statistics(Wrapped())
    model.wrap = Holder
    with pytest.warns(UserWarning, match="no floating-point values were found in what Wrapped returns"):
        assert convert(model, IMAGES, keep_function=True).difference is None


class Selects(ResNet18):
    """Returns the logits that reach a threshold, as a detector its boxes: rounding changes how many."""

    threshold = torch.inf

    def forward(self, x):
        logits = super().forward(x)
        return {"boxes": logits[logits >= self.threshold]}


def test_empty_outputs_are_not_called_equal():
    model = with_statistics(Selects())
    with pytest.warns(UserWarning, match="no floating-point values were found in what Selects returns"):
        assert convert(model, IMAGES, keep_function=True).difference is None


def test_outputs_whose_number_depends_on_rounding_are_checked_in_float64():
    model = with_statistics(Selects()).eval()
    model.threshold = -torch.inf
    logits = model(IMAGES)["boxes"]
    kept = convert(model, IMAGES, keep_function=True).model.eval()(IMAGES)["boxes"]
    model.threshold = logits[kept < logits][0].item()  # a logit that folding makes smaller
    with pytest.warns(UserWarning, match="rounding errors: its outputs change in shape, in float64 by"):
        assert convert(model, IMAGES, keep_function=True).difference == math.inf


def test_activations_that_a_model_keeps_are_no_obstacle():
    model = with_statistics(Wrapped())
    model(IMAGES).logits.sum().backward()
    assert model.last.requires_grad
    assert convert(model, IMAGES, keep_function=True).difference < 1e-5


@pytest.mark.parametrize(("keep", "mode"), [(True, "evaluation"), (False, "whole")])
def test_reports_are_those_of_passes_of_their_own_and_no_pass_is_run_twice(keep, mode):
    class Counted(PreActivationResNet):
        calls = 0

        def forward(self, x):
            Counted.calls += 1
            return super().forward(x)

    model = with_statistics(Counted())
    conversion = convert(model, IMAGES, keep_function=keep, seed=None if keep else 0)
    assert Counted.calls == 8
    assert conversion.before.rows == measure(model, IMAGES, mode).rows
    assert conversion.after.rows == measure(conversion.model, IMAGES, mode).rows


class InlineNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("variance", torch.ones(3))

    def forward(self, x):
        return x + nn.functional.batch_norm(self.conv(x), self.mean, self.variance, training=self.training)


def test_a_batch_norm_that_is_no_module_is_named():
    """It stays, so the network still depends on the other examples of the batch."""
    said = "InlineNorm normalizes over the batch in its own forward; only layers of batch norm can be folded"
    with pytest.raises(SkipinitError, match=f"no batch norm to fold; 0: {said}"):
        convert(nn.Sequential(InlineNorm()), IMAGES, keep_function=True)
    with pytest.raises(SkipinitError, match=f"no batch norm to fold; InlineNorm: {said}"):
        convert(InlineNorm(), IMAGES, keep_function=True)
    model = nn.Sequential(nn.BatchNorm2d(3), InlineNorm())
    with pytest.warns(UserWarning, match=f"left as they were: 1 .{said}"):
        conversion = convert(model, IMAGES, keep_function=True)
    assert conversion.left == (f"1, {said}",)


@pytest.mark.parametrize(
    "layer",
    [
        *(partial(WrittenNorm, written) for written in (*TWINS, by_scale_over_deviation)),
        lambda: WrittenNorm(lambda x: F.batch_norm(x, None, None, training=True)),
        lambda: WrittenNorm(lambda x: x / x.std().expand_as(x)),
        lambda: nn.Sequential(nn.Unflatten(1, (3, 2)), nn.InstanceNorm1d(3)),
        lambda: nn.Sequential(nn.Unflatten(1, (3, 2)), nn.GroupNorm(3, 3)),
    ],
)
def test_why_a_norm_is_kept_is_what_it_does(layer):
    """It is over the batch if and only if an output depends on the other examples."""
    torch.manual_seed(0)
    norm, blocks = layer(), with_statistics(network(lambda: nn.BatchNorm1d(WIDTH))[:-1])
    x, other = torch.randn(2, 8, WIDTH)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        conversion = convert(nn.Sequential(blocks, norm), x, keep_function=True)
    over_batch = not torch.equal(norm(x)[0], norm(torch.cat([x[:1], other[1:]]))[0])
    (left,) = conversion.left
    assert ("normalizes over the batch" in left) == over_batch != ("each example by itself" in left)
    assert any("left as they were" in str(each.message) for each in caught) == over_batch


def test_modes_are_kept():
    model = with_statistics(ResNet18()).train()
    model.layer2.eval()
    before = copy.deepcopy({name: module.training for name, module in model.named_modules()})
    converted = convert(model, IMAGES, keep_function=True).model
    assert {name: module.training for name, module in model.named_modules()} == before
    assert converted.training
    assert not converted.layer2[0].conv1.training


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu():
    model = with_statistics(PreActivationResNet()).cuda()
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        conversion = convert(model, IMAGES.shape, keep_function=True)
        converted = conversion.model
    assert conversion.difference < 1e-4
    assert all(tensor.is_cuda for tensor in (*converted.parameters(), *converted.buffers()))
    fresh = convert(model, IMAGES.cuda(), seed=0).model
    assert all(tensor.is_cuda for tensor in fresh.parameters())


class FrozenNorm(nn.Module):
    """As torchvision has it, but without an eps of its own."""

    def __init__(self, mean: object, variance: object) -> None:
        super().__init__()
        self.running_mean, self.running_var = mean, variance
        self.weight, self.bias = torch.tensor([1.0, 2.0]), torch.tensor([0.0, -1.0])


class Statistics(FrozenNorm):
    """No norm by its name."""


def test_a_frozen_norm_is_told_by_its_name_and_both_its_statistics() -> None:
    vector, matrix = torch.ones(2), torch.ones(2, 2)
    assert is_frozen_batch_norm(FrozenNorm(vector, vector))
    assert is_batch_norm(FrozenNorm(vector, vector))
    for other in (FrozenNorm(vector, None), FrozenNorm(matrix, matrix), Statistics(vector, vector)):
        assert not is_frozen_batch_norm(other)
    assert not is_frozen_batch_norm(nn.BatchNorm1d(2))
    assert is_batch_norm(nn.BatchNorm1d(2))
    affine = as_affine(FrozenNorm(torch.tensor([3.0, 4.0]), torch.zeros(2)), "norm")
    assert affine.scale.tolist() == pytest.approx([1e5**0.5, 2 * 1e5**0.5])
    assert affine.shift.tolist() == pytest.approx([-3 * 1e5**0.5, -8 * 1e5**0.5 - 1])


def test_only_a_plain_layer_of_as_many_outputs_takes_a_scale() -> None:
    class Own(nn.Linear):
        """May use its weight in another way."""

    affine = as_affine(nn.BatchNorm1d(3), "norm")
    assert can_fold(nn.Linear(5, 3), affine)
    assert not can_fold(nn.Linear(3, 5), affine)
    assert not can_fold(Own(5, 3), affine)
    assert not can_fold(nn.utils.parametrizations.weight_norm(nn.Linear(5, 3)), affine)


def test_the_largest_difference_is_relative_to_what_was_expected() -> None:
    expected = [torch.tensor([1.0, -4.0]), torch.tensor([10.0]), torch.ones(0)]
    assert (
        largest_difference([torch.tensor([1.0, -2.0]), torch.tensor([11.0]), torch.ones(0)], expected) == 0.5
    )
    assert largest_difference(expected[:2], expected) == math.inf
    assert largest_difference([torch.ones(3), *expected[1:]], expected) == math.inf
    assert largest_difference([torch.zeros(2)], [torch.zeros(2)]) == largest_difference([], []) == 0
    for place in range(2):  # one NaN is the largest, wherever it is
        outputs = [torch.full_like(each, math.nan) if n == place else each for n, each in enumerate(expected)]
        assert math.isnan(largest_difference(outputs, expected))


def test_the_tolerance_is_that_of_the_coarsest_type() -> None:
    double, single, half = (torch.ones(1, dtype=t) for t in (torch.float64, torch.float32, torch.bfloat16))
    assert rounding_tolerance([]) == 0
    assert rounding_tolerance([double]) == 2.0**-26
    assert rounding_tolerance([double, single]) == rounding_tolerance([single, double]) == 2.0**-11.5
    assert rounding_tolerance([single, half]) == 2.0**-3.5


def test_outputs_are_all_finite_or_refused() -> None:
    check_finite([torch.ones(2), torch.zeros(0)], "Net")
    for bad in (math.nan, math.inf):
        with pytest.raises(SkipinitError, match="Net gives NaN or infinity in evaluation mode"):
            check_finite([torch.ones(2), torch.tensor([1.0, bad])], "Net")


def test_everything_within_becomes_double_but_whole_numbers() -> None:
    layer, single, whole = nn.Linear(2, 2), torch.ones(1), torch.ones(1, dtype=torch.int32)
    held = SimpleNamespace(values=single)
    (second, third), named, text, holds = in_double([(single, whole), {"x": single}, "text", held])
    assert (in_double(layer).weight.dtype, layer.weight.dtype) == (torch.float64, torch.float32)
    assert (second.dtype, third.dtype, named["x"].dtype) == (torch.float64, torch.int32, torch.float64)
    assert (text, holds.values.dtype, held.values.dtype) == ("text", torch.float64, torch.float32)


class Mixer(nn.Module):
    """A dense layer over the last axis, a batch norm over the second: both have 8 entries."""

    def __init__(self, transposed) -> None:
        super().__init__()
        self.layer, self.norm, self.transposed = nn.Linear(8, 8), nn.BatchNorm1d(8), transposed

    def forward(self, x):
        out = self.layer(x)
        return x + (self.norm(out.transpose(1, 2)).transpose(1, 2) if self.transposed else self.norm(out))


@pytest.mark.parametrize(("transposed", "added"), [(True, "folded into 0.layer"), (False, "scale and shift")])
def test_a_norm_over_another_axis_than_that_of_the_layer_is_not_folded(transposed, added):
    torch.manual_seed(0)
    model = with_statistics(nn.Sequential(Mixer(transposed), Mixer(transposed), nn.Linear(8, 3))).double()
    conversion = convert(model, torch.randn(4, 8, 8, dtype=torch.float64), keep_function=True)
    assert conversion.difference < 1e-12
    assert conversion.changes[0].added == added


class Stays(nn.Module):
    """Normalizes by the batch at test time, too; named as a norm, it is left."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.BatchNorm1d(6, track_running_stats=False)

    def forward(self, x):
        return self.inner(x)


class Chaotic(nn.Module):
    """Multiplies rounding errors by 50."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)

    def forward(self, x):
        return x + self.norm(self.layer(torch.sin(50 * x)))


def test_the_check_in_float64_has_the_options_of_the_conversion():
    """Without `norms`, it would fail on a norm that is to stay, and rounding would be taken for a mistake."""
    torch.manual_seed(0)
    blocks = with_statistics(nn.Sequential(*(Chaotic() for _ in range(4))))
    model = nn.Sequential(*blocks, Stays())
    stays = "4 (Stays normalizes over the batch in its own forward; only layers of batch norm can be folded)"
    with (
        pytest.warns(UserWarning, match=re.escape(f"left as they were: {stays}; strict=True")),
        pytest.warns(UserWarning, match="amplifies rounding errors") as caught,
    ):
        convert(model, torch.randn(16, 6), keep_function=True, norms=Stays)
    assert {warning.filename for warning in caught} == {__file__}, "it is about the line that converts"
