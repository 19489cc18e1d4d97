"""How weights start, and the variances that follow from it, against the equations of sections 2 and 6."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from skipinit import create_model
from skipinit.nets import layers as init

# --- the weights themselves ---------------------------------------------------------------------------


def weighted(model: nn.Module) -> dict[str, nn.Conv2d | nn.Linear]:
    return {name: m for name, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)}


def assert_normal(weight: Tensor, std: float) -> None:
    """Mean 0, that std, and normal tails, each within 5 standard errors of its estimate."""
    values = weight.detach().double().flatten() / std
    count = values.numel()
    assert abs(values.mean()) < 5 / math.sqrt(count)
    assert abs((values**2).mean() - 1) < 5 * math.sqrt(2 / count)
    assert abs((values**4).mean() - 3) < 5 * math.sqrt(96 / count)


def he(layer: nn.Conv2d | nn.Linear) -> float:
    return math.sqrt(2 / layer.weight[0].numel())


@pytest.mark.parametrize(("name", "scheme"), [("wrn16_2", "batchnorm"), ("wrn16_2", "regularized-skipinit"),
                                               ("wrn16_2", "divide-sqrt2"), ("resnet50_v1", "none"),
                                               ("resnet50_v2", "skipinit")])  # fmt: skip
def test_he_everywhere_skips_and_classifier_too(name: str, scheme: str) -> None:
    layers = weighted(create_model(name, scheme=scheme, seed=3))
    for layer in layers.values():
        assert_normal(layer.weight, he(layer))
        assert layer.bias is None or not layer.bias.any()
    assert any("skip" in name for name in layers)


@pytest.mark.parametrize(("start", "gain"), [("he", 2), ("lecun", 1), ("zero", 0)])
def test_the_classifier_starts_as_asked_for_and_nothing_else_changes(start: str, gain: int) -> None:
    usual = create_model("wrn16_2", scheme="skipinit", seed=0)
    model = create_model("wrn16_2", scheme="skipinit", classifier_init=start, num_classes=100, seed=0)
    dense = model.head.dense
    assert not dense.bias.any()
    if gain:
        assert_normal(dense.weight, math.sqrt(gain / dense.in_features))
    else:
        assert not dense.weight.any()
    for name, layer in weighted(model).items():
        if name != "head.dense":
            assert torch.equal(layer.weight, weighted(usual)[name].weight), name


@pytest.mark.parametrize("name", ["wrn16_2", "resnet50_v2"])
def test_a_raw_projection_convolves_what_the_block_was_given(name: str) -> None:
    for kind in ("activated", "raw"):
        block = create_model(name, scheme="skipinit", projection=kind, seed=0).blocks[0].double()
        x = torch.randn(2, block.skip.conv.in_channels, 8, 8, dtype=torch.float64)
        seen = x if kind == "raw" else x.relu()
        assert torch.equal(block(x), block.skip.conv(seen)), "alpha is 0: only the skip is left"


@pytest.mark.parametrize(("name", "gain"), [("fc_linear", 1), ("fc_linear_bn", 1), ("fc_relu_bn", 2)])
def test_lecun_for_linear_theory_networks_and_he_with_relus(name: str, gain: int) -> None:
    layers = weighted(create_model(name, blocks=2, width=300, in_channels=100, seed=0))
    assert [layer.in_features for layer in layers.values()] == [100, 300, 300]
    for layer in layers.values():
        assert_normal(layer.weight, math.sqrt(gain / layer.in_features))
        assert layer.bias is None


@pytest.mark.parametrize(("name", "blocks", "convolutions"), [("wrn16_2", 6, 2), ("resnet50_v2", 16, 3)])
@pytest.mark.parametrize("components", [(), (1,), (2,), (1, 2, 3, 4)])
def test_fixup_weights(name: str, blocks: int, convolutions: int, components: tuple[int, ...]) -> None:
    """1: classifier and last branch convolution zero. 2: the others of the branch times d^(-1/(2m-2))."""
    model = create_model(name, scheme="fixup", fixup_components=components, seed=1)
    shrink = blocks ** (-1 / (2 * convolutions - 2))
    seen = 0
    for name, layer in weighted(model).items():
        if name.endswith((f"branch.conv{convolutions}", "head.dense")) and 1 in components:
            assert not layer.weight.any()
            seen += 1
        elif "branch" in name and not name.endswith(f"conv{convolutions}") and 2 in components:
            assert_normal(layer.weight, he(layer) * shrink)
            seen += 1
        else:
            assert_normal(layer.weight, he(layer))
    assert seen == (1 in components) * (blocks + 1) + (2 in components) * blocks * (convolutions - 1)


def test_fixup_scalars_start_at_one_and_zero() -> None:
    model = create_model("wrn16_2", scheme="fixup", seed=0)
    scalars = {name: p.item() for name, p in model.named_parameters() if p.dim() == 0}
    multipliers = {name for name in scalars if "merge" in name}
    assert len(multipliers) == 6
    assert all(value == (name in multipliers) for name, value in scalars.items())


# --- the variances that follow ------------------------------------------------------------------------

# The second moment after a block from that before it, by the paper's recursion: He keeps it through ReLU and
# convolution, batch norm makes it 1 whatever came before, and branch and skip are uncorrelated. Each group
# of WRN-16-2 opens with a transition, whose skip is a He convolution of the same activation.
IDENTITY: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda v: 2 * v,
    "batchnorm-final-only": lambda v: 2 * v,
    "divide-sqrt2": lambda v: v,
    "batchnorm": lambda v: v + 1,
    "batchnorm-divide-sqrt2": lambda v: (v + 1) / 2,
    "batchnorm-block-end": torch.ones_like,
    "batchnorm-on-skip": lambda v: 2 * torch.ones_like(v),
    "skipinit": lambda v: v,
    "regularized-skipinit": lambda v: v,
    "fixup": lambda v: v,
}
TRANSITION = IDENTITY | {
    "batchnorm": lambda v: 2 * torch.ones_like(v),
    "batchnorm-divide-sqrt2": torch.ones_like,
}
SEEDS = 48


def second_moments(scheme: str, **options: object) -> Tensor:
    """Mean square of the stem's output and of every block's: one row per place, one column per seed.

    Convolutions wrap around here: the zeros that pad an image would take variance from its border.
    """
    columns = []
    for seed in range(SEEDS):
        model = create_model("wrn16_2", scheme=scheme, seed=seed, **options)
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                module.padding_mode = "circular"
        with torch.no_grad():
            x = model.stem(torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(seed)))
            moments = [x.square().mean()]
            for block in model.blocks:
                x = block(x)
                moments.append(x.square().mean())
        columns.append(torch.stack(moments))
    return torch.stack(columns, dim=1).double()


def assert_mean_equal(actual: Tensor, expected: Tensor) -> None:
    """Over the seeds, within 4 standard errors of their difference, which must be small enough to tell.

    Flipping the sign of all that feeds a channel leaves the law of the weights as it is, so the recursion is
    exact in the mean over weights and the seeds' scatter is the only error. With a scatter of 4 % at most,
    4 of them stay below 1 + 1/6, the smallest step told from none here.
    """
    difference = actual - expected
    scatter = float(difference.std() / math.sqrt(SEEDS))
    assert scatter < 0.04 * float(expected.mean())
    assert abs(float(difference.mean())) <= 4 * scatter + 1e-4 * float(expected.mean())


@pytest.mark.parametrize("scheme", IDENTITY)
def test_variance_block_by_block(scheme: str) -> None:
    moments = second_moments(scheme)
    for index in range(6):
        step = (TRANSITION if index % 2 == 0 else IDENTITY)[scheme]
        assert_mean_equal(moments[index + 1], step(moments[index]))


def test_variance_with_alpha_one_over_sqrt_d() -> None:
    """v (1 + alpha^2) a block: (1 + 1/d)^d < e in all, however deep."""
    moments = second_moments("skipinit", alpha="1/sqrt(d)")
    for before, after in itertools.pairwise(moments):
        assert_mean_equal(after, before * (1 + 1 / 6))


def test_a_seed_is_allowed_on_the_meta_device() -> None:
    """There is nothing to draw, but a script may give its seed on every device."""
    with torch.device("meta"):
        model = create_model("wrn10_1", scheme="skipinit", seed=3)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert {name: tensor.shape for name, tensor in model.state_dict().items()} == {
        name: tensor.shape for name, tensor in create_model("wrn10_1", scheme="skipinit").state_dict().items()
    }


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors:UserWarning")
def test_a_layer_without_outputs_has_no_weights_to_draw() -> None:
    """A squeeze by 8 of 4 channels, in a network that was made narrow to try it."""
    layers = nn.Sequential(nn.Linear(4, 4 // 8), nn.Linear(4 // 8, 4))
    init.he(layers)
    assert torch.equal(layers(torch.ones(1, 4)), torch.zeros(1, 4))
