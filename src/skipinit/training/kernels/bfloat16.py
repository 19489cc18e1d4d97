"""A network in bfloat16 on a GPU: convolutions by rounded weights, and chains of unnormalized blocks.

The weights stay float32. Autocast would cast each of them in every forward pass and each gradient back in
every backward pass: two tiny kernels a layer, thousands in a deep network. Here all weights are copied to
bfloat16 at once, by `RoundedWeights.refresh`, and the gradients of 3x3 weights are computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...nets.blocks import PreActivationBlock, RawTransitionBlock, TransitionBlock
from ...nets.merges import Add, DivideSqrt2, SkipInit
from .convolution import FEW_CHANNELS, convolve_3x3, convolve_into, weight_gradient_3x3, weight_gradients

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


_SCALES: dict[type[nn.Module], float] = {Add: 1.0, DivideSqrt2: math.sqrt(0.5), SkipInit: 1.0}
"""a by the kind of merge; b is equal to it, or SkipInit's parameter."""


Block = PreActivationBlock | TransitionBlock


class Chain:
    """Unnormalized residual blocks of one shape as one operation:

        h_i = W1_i * relu(s_{i-1})        s_i = a s_{i-1} + b_i (W2_i * relu(h_i)),   i = 1 ... n

    with a = b = 1 for a plain sum, a = b = 1/sqrt(2) for the divided one, a = 1 and b_i = alpha_i for
    SkipInit. The kernel of a convolution also computes the scalar, the sum and the ReLU after it, and their
    gradients. A block takes two kernels forward and two backward. One launch at the end computes the weight
    gradients of all layers. The gradient of alpha_i needs no pass over the images: if D is the gradient of
    W2_i without the factor alpha_i,

        dW2_i = alpha_i D        dalpha_i = <ds_i, W2_i * relu(h_i)> = <W2_i, D>.

    If a chain begins with a transition, it gets s_0, the transition's skip, and h_1. Its convolutions are
    then W2_1, W1_2, W2_2, ...; otherwise they start with W1_1.
    """

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.transition = blocks[0] if isinstance(blocks[0], TransitionBlock) else None
        convolutions = [layer for block in blocks for layer in _convolutions(block)]
        self.convolutions = convolutions[1:] if self.transition else convolutions
        self.alphas = [block.merge.alpha for block in blocks if isinstance(block.merge, SkipInit)]
        self.keep = _SCALES[type(blocks[0].merge)]
        K, C = self.convolutions[0].weight.shape[:2]
        device = self.convolutions[0].weight.device
        shape = (len(self.convolutions) * K, C, 3, 3)
        stack = torch.empty(shape, dtype=torch.bfloat16, device=device, memory_format=torch.channels_last)
        self.weights = stack.view(-1, K, C, 3, 3)
        """All weights in bfloat16."""
        self.scales = torch.ones(len(self.convolutions), device=device)
        """b of the layers that close a block; 1 for the others."""
        self.closing = slice(0 if self.transition else 1, None, 2)
        self.scales[self.closing] = self.keep
        self._enter = torch.compile(_enter, dynamic=False)

    def __call__(self, x: Tensor) -> Tensor:
        """The output of the last block."""
        skip = None
        if self.transition is not None:
            skip, x = self._enter(self.transition, x)
            skip = self._as_weights(skip)
        x = self._as_weights(x)
        if not torch.is_grad_enabled():
            return self.run(x if skip is None else skip, x.relu(), None)
        parameters = [*(layer.weight for layer in self.convolutions), *self.alphas]
        out: Tensor = _Differentiable.apply(self, skip, x, *parameters)  # type: ignore[no-untyped-call]
        return out

    def _as_weights(self, x: Tensor) -> Tensor:
        return x.to(self.weights.dtype, memory_format=torch.channels_last)

    def closes_block(self, layer: int) -> bool:
        """Whether the layer is the second of its block."""
        return (self.transition is None) == bool(layer % 2)

    def run(self, skip: Tensor, x: Tensor, inputs: Tensor | None) -> Tensor:
        """The output for the first layer's input (after its ReLU); `inputs` takes those of all layers."""
        state = skip
        for layer, weight in enumerate(self.weights):
            last = layer + 1 == len(self.weights)
            following = None if last else torch.empty_like(x) if inputs is None else inputs[layer + 1]
            if self.closes_block(layer):
                out, scale = torch.empty_like(x), self.scales[layer]
                convolve_into(
                    out, x, weight, False, activated=following, scale=scale, added=state, keep=self.keep
                )
                state = out
            else:
                convolve_into(None, x, weight, False, activated=following)
            x = state if following is None else following
        return state

    def run_back(self, inputs: Tensor, grads: Tensor) -> Tensor:
        """The gradient of the first layer's input. `grads` holds the last output's and takes the others."""
        state_grad = grads[-1]
        for layer in reversed(range(len(self.weights))):
            out = grads[layer - 1] if layer else torch.empty_like(grads[0])
            grad, gate, weight = grads[layer], inputs[layer], self.weights[layer]
            if self.closes_block(layer):
                state_grad = grad
                convolve_into(out, grad, weight, True, scale=self.scales[layer], gate=gate)
            else:
                convolve_into(out, grad, weight, True, gate=gate, added=state_grad, keep=self.keep)
        return out


class _Differentiable(torch.autograd.Function):
    """A chain, and the gradients of its inputs and parameters."""

    @staticmethod
    def forward(ctx: Any, chain: Chain, skip: Tensor | None, x: Tensor, *parameters: Tensor) -> Tensor:
        shape = (len(chain.weights) * len(x), *x.shape[1:])
        room = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        inputs = room.view(-1, *x.shape)
        torch.clamp_min(x, 0, out=inputs[0])
        ctx.chain = chain
        ctx.save_for_backward(inputs)
        return chain.run(x if skip is None else skip, inputs[0], inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        chain: Chain = ctx.chain
        (inputs,) = ctx.saved_tensors
        grads = torch.empty_like(inputs)
        grads[-1].copy_(grad)
        to_input = chain.run_back(inputs, grads)
        to_skip = None if chain.transition is None else grads[0] if chain.keep == 1 else grads[0] * chain.keep
        to_weights, products = weight_gradients(inputs, grads, chain.scales, chain.weights)
        to_alphas = products[chain.closing].sum(1) if chain.alphas else ()
        return None, to_skip, to_input, *to_weights, *to_alphas


class ChainedBlocks(nn.Sequential):
    """The same blocks, run as chains where they form any."""

    pieces: Sequence[Callable[[Tensor], Tensor]]

    def forward(self, x: Tensor) -> Tensor:
        """The pieces in turn."""
        for piece in self.pieces:
            x = piece(x)
        return x


def chain_blocks(blocks: nn.Sequential) -> list[Chain]:
    """Make the blocks run as chains, which are returned; their parameters do not change."""
    pieces: list[Any] = []
    for block in blocks:
        if not _fits(block):
            pieces.append(block)
        elif isinstance(block, PreActivationBlock) and pieces and isinstance(pieces[-1], list):
            pieces[-1].append(block)
        else:
            pieces.append([block])
    blocks.__class__ = ChainedBlocks
    assert isinstance(blocks, ChainedBlocks)
    blocks.pieces = [Chain(piece) if isinstance(piece, list) else piece for piece in pieces]
    return [piece for piece in blocks.pieces if isinstance(piece, Chain)]


def _fits(block: nn.Module) -> bool:
    """Whether the branch is ReLU, 3x3, ReLU, 3x3 of few channels, and the merge has no norm."""
    if not isinstance(block, Block) or type(block.merge) not in _SCALES:
        return False
    names = [name for part in (block.preactivation, block.branch) for name, _ in part.named_children()]
    if names != ["relu1", "conv1", "relu2", "conv2"]:
        return False
    first, second = _convolutions(block)
    few = second.in_channels == second.out_channels and second.in_channels in FEW_CHANNELS
    whole = isinstance(block, TransitionBlock) or isinstance(block.skip, nn.Identity)
    return few and whole and first.kernel_size == second.kernel_size == (3, 3) and second.bias is None


def _convolutions(block: Block) -> list[nn.Conv2d]:
    return [layer for layer in block.branch if isinstance(layer, nn.Conv2d)]


def _enter(block: TransitionBlock, x: Tensor) -> tuple[Tensor, Tensor]:
    """A transition up to its second ReLU: its skip, and the branch before that ReLU."""
    h = block.preactivation(x)
    return block.skip(x if isinstance(block, RawTransitionBlock) else h), block.branch[0](h)


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
