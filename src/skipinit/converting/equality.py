"""Whether two models compute the same: their outputs on one batch, in evaluation mode."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..probing.run import Batch
from .flow import tensors_in


@torch.no_grad()
def outputs_in_evaluation(model: nn.Module, batch: Batch) -> list[Tensor]:
    """The floating-point tensors of the model's output; its training mode is left as it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        match batch:
            case Tensor():
                output = model(batch.clone())
            case tuple() | list():
                output = model(*batch)
            case _:
                output = model(**batch)
    finally:
        for module, mode in modes:
            module.training = mode
    return [tensor for tensor in tensors_in(output) if tensor.is_floating_point()]


def largest_difference(outputs: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """max |output - expected| / max |expected|, the worst over all tensors; NaN if anything is."""
    if len(outputs) != len(expected):
        return float("inf")
    ratios = [
        ((output - wanted).abs().max() / wanted.abs().max().clamp(min=torch.finfo(wanted.dtype).tiny)).item()
        for output, wanted in zip(outputs, expected, strict=True)
        if wanted.numel()
    ]
    return max(ratios, default=0.0, key=lambda ratio: float("inf") if ratio != ratio else ratio)


def tolerance(expected: Sequence[Tensor]) -> float:
    """The square root of the coarsest rounding error: more than folding costs, less than a mistake does."""
    return max((torch.finfo(tensor.dtype).eps ** 0.5 for tensor in expected), default=0.0)
