"""Draw the weights of a model anew: variance 2 / fan-in for convolutions and dense layers (section 2.3)."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrize import is_parametrized

from ..errors import ConfigError
from ..nets.layers import CONVOLUTIONS_AND_DENSE, Weighted, scale_normal
from .plan import Plan, Selection


def draw_weights(model: nn.Module, selection: Selection, plan: Plan, classifier: str | None) -> None:
    """He for every convolution and dense layer, biases 0.

    A dense layer that shares its weight with an embedding keeps it: the embedding is no layer of this kind.
    """
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, CONVOLUTIONS_AND_DENSE) and name in selection and not is_tied(module, model)
    }
    for name, layer in layers.items():
        zero = plan.scheme.fixup or (name == classifier and plan.classifier_init == "zero")
        _check_drawable(name, layer, plan, zero)
    device = next((parameter.device for parameter in model.parameters()), None)
    generator = None if plan.seed is None else torch.Generator(device).manual_seed(plan.seed)
    for layer in layers.values():
        scale_normal(cast(Weighted, layer), 2.0, generator)


def is_tied(layer: nn.Module, model: nn.Module) -> bool:
    """Whether the layer shares its weight with an embedding."""
    weight = layer._parameters.get("weight")
    tables = (module for module in model.modules() if isinstance(module, nn.Embedding))
    return weight is not None and any(table.weight is weight for table in tables)


def _check_drawable(name: str, layer: nn.Module, plan: Plan, zero: bool) -> None:
    """Raise if the layer computes its weight in a way that does not take the values that are to be set."""
    if "weight" in layer._parameters:
        return
    if not is_parametrized(layer, "weight"):
        reason, remove = "a hook computes its weight", "remove the hook (remove_spectral_norm, prune.remove)"
    elif zero or not _takes_values(layer):
        reason = f"its parametrization takes no {'zero' if zero else 'drawn'} weight"
        remove = "torch.nn.utils.parametrize.remove_parametrizations"
    else:
        return
    other = "scheme='skipinit'" if plan.scheme.fixup else "keep_function=True"
    raise ConfigError(
        f"{name or 'the model'}: {reason}, so it cannot start anew; use {remove}, exclude={name!r} or {other}"
    )


@torch.no_grad()
def _takes_values(layer: nn.Module) -> bool:
    """Whether the weight is what it is set to, but for its scale, which a spectral norm settles itself."""
    old = cast(Tensor, layer.weight)
    value = torch.randn(old.shape, generator=torch.Generator().manual_seed(0)).to(old)
    try:
        layer.weight = value
    except (RuntimeError, NotImplementedError):
        return False
    return F.cosine_similarity(layer.weight.flatten(), value.flatten(), 0).item() > 0.999
