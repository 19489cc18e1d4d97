"""What replaces normalization: small layers, and layers of the model that are extended in place.

A model's own forward is never changed. To scale a branch, the layer that ends it gets a class derived from
its own, with one more parameter. Its name, its other parameters and its place in the model stay.
"""

from __future__ import annotations

from functools import cache
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ChannelAffine(nn.Module):
    """scale * x + shift, per channel: what batch norm computes in evaluation mode"""

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.scale = nn.Parameter(scale)
        self.shift = nn.Parameter(shift)

    def forward(self, x: Tensor) -> Tensor:
        """Channels are the second axis, as they are for batch norm."""
        shape = (-1, *(1,) * (x.dim() - 2))
        return torch.addcmul(self.shift.view(shape), x, self.scale.view(shape)).to(x.dtype)

    def extra_repr(self) -> str:
        """Show the number of channels."""
        return str(self.scale.numel())


class Copy(nn.Module):
    """A copy of x"""

    def forward(self, x: Tensor) -> Tensor:
        """The next layer may write into it."""
        return x.clone()


class BranchScale(nn.Module):
    """branch_alpha * branch [+ merge_bias]"""

    def __init__(self, branch_alpha: nn.Parameter, merge_bias: nn.Parameter | None) -> None:
        super().__init__()
        self.branch_alpha = branch_alpha
        self.merge_bias = merge_bias

    def forward(self, branch: Tensor) -> Tensor:
        """For a branch that does not end in a module."""
        return _scale(branch, self)


class ScaledOutput(nn.Module):
    """branch_alpha * layer(x) [+ merge_bias]: the end of a branch

    x + alpha f(x) is all that SkipInit is. The scalar bias that ResNet-V1 needs between the add and its ReLU
    is added to the branch, which is the same: (x + alpha f(x)) + b = x + (alpha f(x) + b).
    """

    branch_alpha: nn.Parameter
    merge_bias: nn.Parameter | None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """If the layer returns a tuple, as attention does, its first tensor is the branch."""
        out = super().forward(*args, **kwargs)
        if isinstance(out, tuple):
            return (_scale(out[0], self), *out[1:])
        return _scale(out, self)


def _scale(branch: Tensor, by: BranchScale | ScaledOutput) -> Tensor:
    scaled = by.branch_alpha * branch
    return scaled if by.merge_bias is None else scaled + by.merge_bias


class DividedOutput(nn.Module):
    """layer(x) / sqrt(2)"""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The variance stays constant with depth, yet skip and branch weigh the same."""
        out = super().forward(*args, **kwargs)
        if isinstance(out, tuple):
            return (out[0] * 0.5**0.5, *out[1:])
        return out * 0.5**0.5


class BiasedInput(nn.Module):
    """layer(x + input_bias): Fixup's scalar before a convolution or dense layer"""

    input_bias: nn.Parameter

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        """One number for all values."""
        return super().forward(x + self.input_bias, *args, **kwargs)


class ScaledTable(nn.Module):
    """table_scale * embedding(ids)"""

    table_scale: Tensor

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The scale is a constant, saved with the model: the entries learn."""
        return self.table_scale * super().forward(*args, **kwargs)


class ScaledInput(nn.Module):
    """layer(input_scale * x): what is left of a norm on data that no layer computed"""

    input_scale: Tensor

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        """The scale is a constant, saved with the model."""
        return super().forward(self.input_scale * x, *args, **kwargs)


class DroppedInput(nn.Module):
    """layer(dropout(x)): Regularized SkipInit's classifier"""

    input_dropout: float

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        """The identity at test time."""
        dropped = F.dropout(x, self.input_dropout, self.training)
        return super().forward(dropped, *args, **kwargs)


def extend(module: nn.Module, extension: type[nn.Module], **fields: Any) -> None:
    """Change the class of a module to one derived from it and `extension`, and set these fields."""
    kind: Any = type(module)
    base, extensions = getattr(kind, "extended", (kind, ()))
    module.__class__ = _extended_class(base, (extension, *extensions))
    for name, value in fields.items():
        setattr(module, name, value)


@cache
def _extended_class(base: Any, extensions: Any) -> type[nn.Module]:
    name = "".join(extension.__name__ for extension in extensions) + base.__name__
    fields = {"extended": (base, extensions), "__reduce_ex__": _reduce, "__doc__": extensions[0].__doc__}
    return type(name, (*extensions, base), fields)


def _reduce(self: nn.Module, protocol: Any) -> tuple[Any, ...]:
    """Pickle and copy the module by its parts, since its class has no importable name."""
    return _rebuild, type(self).__dict__["extended"], self.__dict__


def _rebuild(base: Any, extensions: Any) -> nn.Module:
    kind = _extended_class(base, extensions)
    return kind.__new__(kind)


def scalar(value: float, *homes: nn.Module) -> nn.Parameter:
    """A learnable scalar with the dtype and device of the first of these modules that has tensors."""
    tensors = (tensor for home in homes for tensor in chain(home.parameters(), home.buffers()))
    like = next((tensor for tensor in tensors if tensor.is_floating_point()), torch.empty(()))
    return nn.Parameter(torch.tensor(value, dtype=like.dtype, device=like.device))
