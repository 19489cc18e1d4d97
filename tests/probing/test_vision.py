"""The residual adds of torchvision's and timm's own models, with exact counts."""

from __future__ import annotations

import pytest
import torch

from skipinit.probing.measure import find_residual_adds

pytestmark = pytest.mark.vision

# name: (residual adds, how many of the skips are not the identity)
TORCHVISION = {
    "resnet18": (8, 3),
    "resnet50": (16, 4),
    "resnext50_32x4d": (16, 4),
    "wide_resnet50_2": (16, 4),
    "regnet_y_400mf": (16, 4),
    "mobilenet_v2": (10, 0),
    "mobilenet_v3_small": (6, 0),
    "efficientnet_b0": (9, 0),
    "convnext_tiny": (18, 0),
    "vit_b_16": (24, 0),
    "swin_t": (24, 0),
    "densenet121": (0, 0),
    "vgg11_bn": (0, 0),
    "shufflenet_v2_x0_5": (0, 0),
}
TIMM = {
    "resnetv2_50": (16, 4),
    "nf_resnet50": (16, 4),
    "vit_tiny_patch16_224": (24, 0),
    "mixer_s16_224": (16, 0),
    "gmlp_s16_224": (30, 0),
    "resmlp_12_224": (24, 0),
    "convmixer_768_32": (32, 0),
    "poolformer_s12": (24, 0),
    "convnext_atto": (12, 0),
    "swin_tiny_patch4_window7_224": (24, 0),
    "regnety_002": (13, 4),
    "cait_xxs24_224": (52, 0),
    "xcit_nano_12_p16_224": (40, 0),
    "poolformerv2_s12": (24, 16),
    "repvgg_a0": (17, 17),
    "mobileone_s0": (35, 35),
}
IMAGES = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))


def _counts(model):
    adds = find_residual_adds(model, IMAGES)
    assert len({add.name for add in adds}) == len(adds)
    assert not any(add.nested for add in adds)
    return len(adds), sum(not add.skip_is_identity for add in adds)


@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvision(name):
    models = pytest.importorskip("torchvision.models", exc_type=(ImportError, RuntimeError))
    assert _counts(models.get_model(name, weights=None)) == TORCHVISION[name]


@pytest.mark.parametrize("name", TIMM)
def test_timm(name):
    timm = pytest.importorskip("timm", exc_type=(ImportError, RuntimeError))
    assert _counts(timm.create_model(name, pretrained=False)) == TIMM[name]
