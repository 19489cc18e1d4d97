"""torchvision's wheel beside a CPU-only torch lacks its compiled operators; others import it all the same."""

from __future__ import annotations

import torch

_kept: list[torch.library.Library] = []


def stub_torchvision() -> None:
    """Declare the operators whose absence stops the import."""
    if not _kept and not hasattr(torch.ops.torchvision, "nms"):
        _kept.append(torch.library.Library("torchvision", "DEF"))
        for name in ("nms", "qnms"):
            _kept[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
