"""torchvision's and timm's own models, with random statistics: what they compute is kept, norms are gone."""

from __future__ import annotations

import pytest
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from skipinit.converting.convert import convert
from support.convert_models import with_statistics

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
    kept, report = convert(model, IMAGES, keep_function=True, report=True)
    wanted = model.eval()(IMAGES)
    assert ((kept.eval()(IMAGES) - wanted).abs().max() / wanted.abs().max()).item() < 1e-4
    assert report.num_norms == sum(isinstance(module, _BatchNorm) for module in model.modules())
    _, report = convert(model, IMAGES, report=True)
    assert all(row.branch_share == 0 for row in report.after.rows)


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
    _, report = convert(timm.create_model(name, pretrained=False), IMAGES, report=True)
    assert report.num_norms > report.num_blocks / 2
    assert all(row.branch_share == 0 for row in report.after.rows)
