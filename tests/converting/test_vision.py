"""torchvision's and timm's own models, with random statistics: what they compute is kept, norms are gone."""

from __future__ import annotations

import pytest
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from skipinit.converting.convert import convert
from support.convert_models import relative_difference, with_statistics

pytestmark = pytest.mark.vision

TORCHVISION = [
    "resnet18", "resnet50", "resnext50_32x4d", "wide_resnet50_2", "regnet_y_400mf", "regnet_x_400mf",
    "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "mnasnet0_5",
]  # fmt: skip
TIMM = [
    "resnet18", "resnet50d", "seresnet50", "ecaresnet50t", "resnetv2_50", "resnetv2_50d", "regnety_002",
    "regnetx_002", "efficientnet_b0", "mobilenetv3_small_050", "ghostnet_050", "hrnet_w18_small",
]  # fmt: skip
TRANSFORMERS = ["vit_tiny_patch16_224", "mixer_s16_224", "convnext_atto", "poolformer_s12"]
IMAGES = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))


def assert_kept_and_fresh(model):
    model = with_statistics(model)
    conversion = convert(model, IMAGES, keep_function=True)
    kept = conversion.model
    wanted = model.eval()(IMAGES)
    assert relative_difference(kept.eval()(IMAGES), wanted) < 1e-4
    assert conversion.num_norms == sum(isinstance(module, _BatchNorm) for module in model.modules())
    conversion = convert(model, IMAGES)
    assert all(row.branch_share == 0 for row in conversion.after.rows)


@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvision(name):
    models = pytest.importorskip("torchvision.models", exc_type=(ImportError, RuntimeError))
    assert_kept_and_fresh(models.get_model(name, weights=None))


@pytest.mark.parametrize("name", TIMM)
def test_timm(name):
    timm = pytest.importorskip("timm", exc_type=(ImportError, RuntimeError))
    assert_kept_and_fresh(timm.create_model(name, pretrained=False))


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_per_example_norms_go_too(name):
    timm = pytest.importorskip("timm", exc_type=(ImportError, RuntimeError))
    conversion = convert(timm.create_model(name, pretrained=False), IMAGES)
    assert conversion.num_norms > conversion.num_blocks / 2
    assert all(row.branch_share == 0 for row in conversion.after.rows)
