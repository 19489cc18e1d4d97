"""bfloat16 convolutions on a GPU without a cast per weight and step.

The weights stay float32. Autocast would cast each of them in every forward pass and each gradient back in
every backward pass: two tiny kernels a layer, thousands in a deep network. Here all weights are copied to
bfloat16 at once, by `refresh`, and the gradients of 3x3 weights are computed in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .chain import Chain
from .convolution import FEW_CHANNELS, convolve_3x3, weight_gradient_3x3

_aten = torch.ops.aten


class _Convolve(torch.autograd.Function):
    """Convolution by `rounded`; `weight` gets its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, rounded: Tensor, stride: int, padding: int) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        ctx.save_for_backward(x, rounded)
        ctx.shape = [stride, stride], [padding, padding], [1, 1], False, [0, 0], 1
        ctx.ours = rounded.shape[2:] == (3, 3) and stride == 1 and {*rounded.shape[:2]} <= FEW_CHANNELS
        ours: Tensor | None = convolve_3x3(x, rounded, False) if ctx.ours else None
        out: Tensor = _aten.convolution(x, rounded, None, *ctx.shape) if ours is None else ours
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, None, None, None]:
        x, rounded = ctx.saved_tensors
        grad = grad.contiguous(memory_format=torch.channels_last)
        if ctx.ours:
            return convolve_3x3(grad, rounded, True), weight_gradient_3x3(x, grad), None, None, None
        wanted = [ctx.needs_input_grad[0], True, False]
        grad_x, grad_weight, _ = _aten.convolution_backward(grad, x, rounded, None, *ctx.shape, wanted)
        return grad_x, grad_weight.float(), None, None, None


class BFloat16Conv2d(nn.Conv2d):
    """W * x in bfloat16, W float32"""

    rounded: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """The bias is added in bfloat16, too."""
        x = x.to(torch.bfloat16)
        padding = int(self.padding[0])
        arguments = (x, self.weight, self.rounded, self.stride[0], padding)
        out: Tensor = _Convolve.apply(*arguments)  # type: ignore[no-untyped-call]
        return out if self.bias is None else out + self.bias.to(torch.bfloat16)[:, None, None]


class RoundedWeights:
    """The bfloat16 copies of a network's convolution weights, and the scales that its chains read."""

    def __init__(self, model: nn.Module, chains: Sequence[Chain] = ()) -> None:
        convolutions = [module for module in model.modules() if type(module) is nn.Conv2d]
        for convolution in convolutions:
            convolution.__class__ = BFloat16Conv2d  # same parameters under the same names, another forward
            copy = convolution.weight.detach().to(torch.bfloat16)
            convolution.register_buffer("rounded", copy, persistent=False)
        for chain in chains:  # their kernels read all weights of a chain from one tensor
            for convolution, place in zip(chain.convolutions, chain.weights, strict=True):
                convolution.register_buffer("rounded", place, persistent=False)
        self.weights = [convolution.weight for convolution in convolutions]
        self.copies = [convolution.get_buffer("rounded") for convolution in convolutions]
        self.alphas: list[Tensor] = [alpha for chain in chains for alpha in chain.alphas]
        self.scales = [scale for chain in chains if chain.alphas for scale in chain.scales[chain.closing]]

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the current weights. Call it before every use of the network."""
        torch._foreach_copy_(self.copies, self.weights)
        if self.alphas:
            torch._foreach_copy_(self.scales, self.alphas)
