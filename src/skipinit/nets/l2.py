"""Which parameters take L2 regularization: the one place that says so."""

from __future__ import annotations

from torch import nn

_WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def l2_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The weights of convolutions and dense layers; no bias, no norm's scale or shift, no branch scalar."""
    owners = [name for name, module in model.named_modules() if isinstance(module, _WEIGHTED)]
    weights = {f"{name}.weight".lstrip(".") for name in owners}
    return {name: parameter for name, parameter in model.named_parameters() if name in weights}
