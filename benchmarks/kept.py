"""How far `convert(keep_function=True)` changes the outputs of models of torchvision and timm, as a table.

    python benchmarks/kept.py

Weights are random, and so are the statistics, scales and shifts of the batch norms. torchvision and timm must
be installed.
"""

from __future__ import annotations

import timm
import torch
from torch import nn
from torchvision.models import get_model

import skipinit

TORCHVISION = (
    "resnet18", "resnet50", "resnext50_32x4d", "wide_resnet50_2", "regnet_y_400mf", "regnet_x_400mf",
    "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "efficientnet_v2_s", "mnasnet0_5",
)  # fmt: skip
TIMM = (
    "resnet18", "resnet50", "resnet50d", "seresnet50", "resnetv2_50", "resnetv2_50d", "regnety_002",
    "regnetx_002", "efficientnet_b0", "mobilenetv3_small_050", "ecaresnet50t", "convmixer_768_32",
    "ghostnet_050", "hrnet_w18_small",
)  # fmt: skip


@torch.no_grad()
def draw_norms(model: nn.Module) -> None:
    """As after training: no norm is the identity."""
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.normal_(0, 0.5)
            norm.running_var.uniform_(0.3, 3)
            norm.weight.normal_(1, 0.5)
            norm.bias.normal_(0, 0.5)


@torch.no_grad()
def row(name: str, model: nn.Module, images: torch.Tensor) -> str:
    draw_norms(model)
    conversion = skipinit.convert(model, images, keep_function=True)
    wanted, found = model.eval()(images), conversion.model.eval()(images)
    difference = (found - wanted).abs().max() / wanted.abs().max()
    scales = sum("scale and shift" in change.added for change in conversion.changes)
    return f"| {name} | {conversion.num_norms} | {conversion.num_blocks} | {scales} | {difference:.1e} |"


def main() -> None:
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    print("| model | norms | residual adds | scale and shift | difference |\n| --- | --- | --- | --- | --- |")
    makers = [("torchvision", get_model, TORCHVISION), ("timm", timm.create_model, TIMM)]
    for library, make, names in makers:
        for name in names:
            torch.manual_seed(0)
            print(row(f"{library} {name}", make(name), images), flush=True)


if __name__ == "__main__":
    main()
