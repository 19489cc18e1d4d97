"""Forward passes against the plain NumPy networks of reference_resnet.py, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from skipinit import create_model
from skipinit.nets.blocks import Dropout
from support.reference_resnet import Network, ResNetV1, ResNetV2, Variant, Weights, WideResNet

# Both sides are float64 and sum the same products in another order: 1e-10 leaves room for some 50 layers
# of rounding and none for a misplaced layer.
TOLERANCE = 1e-10

WIDE_RESNET = {
    "batchnorm": Variant(norms=True, last_norm=True),
    "none": Variant(),
    "skipinit": Variant(merge="scale"),
    "regularized-skipinit": Variant(merge="scale", conv_biases=True),
    "divide-sqrt2": Variant(merge="divide"),
    "batchnorm-divide-sqrt2": Variant(norms=True, last_norm=True, merge="divide"),
    "batchnorm-block-end": Variant(norms=True, last_norm=True, merge="norm of the sum"),
    "batchnorm-on-skip": Variant(norms=True, last_norm=True, merge="norm of the skip"),
    "batchnorm-final-only": Variant(last_norm=True),
    "fixup": Variant(merge="scale", scalar_biases=True),
    "fixup-dropout": Variant(merge="scale", scalar_biases=True),
}
NORMALIZED = [name for name, variant in WIDE_RESNET.items() if variant.last_norm]
# On ImageNet every SkipInit network has convolution biases.
RESNET_V2 = WIDE_RESNET | {"skipinit": Variant(merge="scale", conv_biases=True)}
RESNET_V1 = {
    "batchnorm": ({}, Variant(norms=True)),
    "none": ({}, Variant()),
    "fixup": ({}, Variant(merge="scale", scalar_biases=True)),
    "regularized-skipinit": (
        {"scalar_bias": True},
        Variant(merge="scale", conv_biases=True, merged_bias=True),
    ),
}


def randomized(name: str, seed: int = 0, **options: object) -> nn.Module:
    """A float64 network whose every number is random: no zero, no one that could hide a layer."""
    model = create_model(name, seed=seed, **options).double()
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for key, tensor in model.state_dict().items():
            if key.endswith("running_var"):
                tensor.uniform_(0.5, 2.0, generator=generator)
            elif tensor.dim() <= 1:
                tensor.uniform_(0.2, 0.8, generator=generator)
            elif not tensor.any():  # Fixup's zero layers
                tensor.normal_(0, tensor[0].numel() ** -0.5, generator=generator)
    return model


def images(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def assert_equal_to(kind: type[Network], model: nn.Module, variant: Variant, x: Tensor, *size: int) -> None:
    weights = Weights({name: tensor.numpy().copy() for name, tensor in model.state_dict().items()})
    expected = kind(weights, variant, batch_statistics=model.training)(x.numpy(), *size)
    with torch.no_grad():
        actual = model(x).numpy()
    assert np.abs(actual - expected).max() <= TOLERANCE * np.abs(expected).max()
    assert weights.unused == set()


@pytest.mark.parametrize("scheme", WIDE_RESNET)
def test_wide_resnet_at_test_time(scheme: str) -> None:
    model = randomized("wrn16_2", scheme=scheme).eval()
    assert_equal_to(WideResNet, model, WIDE_RESNET[scheme], images(2, 3, 16, 12), 2, 2)


@pytest.mark.parametrize("scheme", NORMALIZED)
def test_wide_resnet_with_batch_statistics(scheme: str) -> None:
    model = randomized("wrn16_2", scheme=scheme).train()
    assert_equal_to(WideResNet, model, WIDE_RESNET[scheme], images(4, 3, 16, 16), 2, 2)


@pytest.mark.parametrize("size", [(32, 32), (17, 13)])
def test_narrow_wide_resnet_keeps_the_identity_in_its_first_group(size: tuple[int, int]) -> None:
    model = randomized("wrn10_1", scheme="regularized-skipinit", in_channels=2, num_classes=3).eval()
    assert_equal_to(WideResNet, model, WIDE_RESNET["regularized-skipinit"], images(2, 2, *size), 1, 1)


@pytest.mark.parametrize("size", [(64, 64), (65, 61)])
def test_resnet50_v2_is_the_appendix_code(size: tuple[int, int]) -> None:
    model = randomized("resnet50_v2", scheme="regularized-skipinit").eval()
    assert_equal_to(ResNetV2, model, RESNET_V2["regularized-skipinit"], images(2, 3, *size))


@pytest.mark.parametrize("scheme", ["batchnorm", "skipinit", "fixup", "batchnorm-on-skip", "divide-sqrt2"])
def test_resnet50_v2_of_other_schemes(scheme: str) -> None:
    model = randomized("resnet50_v2", scheme=scheme).eval()
    assert_equal_to(ResNetV2, model, RESNET_V2[scheme], images(1, 3, 35, 34))


@pytest.mark.parametrize("scheme", RESNET_V1)
def test_resnet50_v1_at_test_time(scheme: str) -> None:
    options, variant = RESNET_V1[scheme]
    model = randomized("resnet50_v1", scheme=scheme, **options).eval()
    assert_equal_to(ResNetV1, model, variant, images(2, 3, 45, 64))


@pytest.mark.parametrize(
    ("kind", "name", "variant"),
    [(ResNetV1, "resnet50_v1", Variant(norms=True)), (ResNetV2, "resnet50_v2", RESNET_V2["batchnorm"])],
)
def test_resnet50_with_batch_statistics(kind: type[Network], name: str, variant: Variant) -> None:
    assert_equal_to(kind, randomized(name).train(), variant, images(3, 3, 48, 48))


def test_the_stem_of_v2_pools_over_zeros() -> None:
    """Where every value is negative the border of the pooled image is the padding's 0."""
    model = create_model("resnet50_v2", scheme="none", seed=0)
    pooled = model.stem[-1](torch.full((1, 64, 4, 4), -1.0))
    assert torch.equal(pooled[0, 0], torch.tensor([[0.0, 0.0], [0.0, -1.0]]))


@pytest.mark.parametrize("name", ["wrn16_2", "resnet50_v2"])
def test_dropout_scales_features_once_before_the_classifier(name: str) -> None:
    """In training each pooled feature is dropped, or divided by 1 - p: 0.6 on CIFAR, 0.2 on ImageNet."""
    model = create_model(name, scheme="regularized-skipinit", seed=0).train()
    drop = {"wrn16_2": 0.6, "resnet50_v2": 0.2}[name]
    seen: list[tuple[Tensor, Tensor]] = []
    (layer,) = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    layer.register_forward_hook(lambda _, args, out: seen.append((args[0], out)))
    model.head[-1].register_forward_hook(lambda _, args, out: seen.append((args[0], out)))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model(torch.randn(4, 3, 64, 64))
    (features, dropped), (classified, _) = seen
    assert features.shape == (4, {"wrn16_2": 128, "resnet50_v2": 2048}[name])
    assert torch.equal(dropped, classified)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], features[kept] / (1 - drop))
    share = (~kept & (features != 0)).sum() / (features != 0).sum()
    spread = (drop * (1 - drop) / (features != 0).sum()) ** 0.5
    assert abs(share - drop) < 4 * spread


@pytest.mark.parametrize("name", ["wrn16_2", "resnet50_v2", "resnet50_v1"])
@pytest.mark.parametrize("scheme", ["batchnorm", "none", "skipinit", "fixup", "divide-sqrt2"])
def test_schemes_without_dropout_have_no_such_layer(name: str, scheme: str) -> None:
    with torch.device("meta"):
        model = create_model(name, scheme=scheme)
    assert not [module for module in model.modules() if isinstance(module, nn.Dropout)]


def test_a_mask_that_was_drawn_before_is_the_one_used_in_training() -> None:
    layer, x = Dropout(0.75, features=4), torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    layer.mask = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]])
    torch.testing.assert_close(layer(x), 4 * x * layer.mask)
    assert torch.equal(layer.eval()(x), x)
