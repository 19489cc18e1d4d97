"""What replaces normalization: small layers, and layers of the model that are extended in place.

A model's own forward is never changed. To scale a branch, the layer that ends it gets a class derived from
its own, with one more parameter. Its name, its other parameters and its place in the model stay.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, wraps
from inspect import get_annotations
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn import functional as F
from torch.nn.utils.parametrize import is_parametrized

from ..errors import SkipinitError


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
        """If the layer returns a tuple, as attention does, its first tensor is the branch.

        From a dictionary or list nothing is scaled. A surgery notices that, and puts the scalar at the add.
        """
        return _change_output(lambda branch: _scale(branch, self), super().forward(*args, **kwargs))


def _scale(branch: Tensor, by: BranchScale | ScaledOutput) -> Tensor:
    scaled = by.branch_alpha * branch
    return scaled if by.merge_bias is None else scaled + by.merge_bias


def _change_output(change: Callable[[Any], Any], output: Any) -> Any:
    """The output with its tensor, or the first of its tuple, changed; any other output as it is."""
    if isinstance(output, (Tensor, Proxy)):  # torch.fx traces with proxies.
        return change(output)
    if isinstance(output, tuple) and output and isinstance(output[0], (Tensor, Proxy)):
        changed = (change(output[0]), *output[1:])
        return type(output)(*changed) if hasattr(output, "_fields") else changed
    return output


def _change_input(change: Callable[[Tensor], Tensor], args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments with the first of them changed, whether it was given by position or by name."""
    if args:
        return (change(args[0]), *args[1:]), kwargs
    first = next(iter(kwargs))
    return args, kwargs | {first: change(kwargs[first])}


class DividedOutput(nn.Module):
    """layer(x) / sqrt(2)"""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The variance stays constant with depth, yet skip and branch weigh the same."""
        output = super().forward(*args, **kwargs)
        divided = _change_output(lambda total: total * 0.5**0.5, output)
        if divided is output:
            raise SkipinitError(
                f"{type(self).__name__} returns a {type(output).__name__}: its sum cannot be divided by "
                "sqrt(2) from outside; return a tensor or a tuple, or try scheme='skipinit'"
            )
        return divided


class BiasedInput(nn.Module):
    """layer(x + input_bias): Fixup's scalar before a convolution or dense layer"""

    input_bias: nn.Parameter

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """One number for all values."""
        args, kwargs = _change_input(lambda x: x + self.input_bias, args, kwargs)
        return super().forward(*args, **kwargs)


class ScaledTable(nn.Module):
    """table_scale * embedding(ids)"""

    table_scale: Tensor

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The scale is a constant, saved with the model: the entries learn."""
        return self.table_scale * super().forward(*args, **kwargs)


class ScaledInput(nn.Module):
    """layer(input_scale * x): what is left of a norm on data that no layer computed"""

    input_scale: Tensor

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The scale is a constant, saved with the model."""
        args, kwargs = _change_input(lambda x: self.input_scale * x, args, kwargs)
        return super().forward(*args, **kwargs)


class DroppedInput(nn.Module):
    """layer(dropout(x)): Regularized SkipInit's classifier"""

    input_dropout: float

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The identity at test time."""
        args, kwargs = _change_input(lambda x: F.dropout(x, self.input_dropout, self.training), args, kwargs)
        return super().forward(*args, **kwargs)


def extend(module: nn.Module, extension: type[nn.Module], **fields: Any) -> None:
    """Change the class of a module to one derived from it and `extension`, and set these fields.

    Of a parametrized layer the class that reads the parametrization stays in front: to remove it, torch
    replaces the class of the layer by its first base.
    """
    kind = type(module)
    front = vars(kind) if is_parametrized(module) else None
    base, extensions = _parts(kind if front is None else kind.__base__)
    extended = _extended_class(base, (extension, *extensions))
    module.__class__ = extended if front is None else type(kind.__name__, (extended,), dict(front))
    for name, value in fields.items():
        setattr(module, name, value)


def own_forward(module: nn.Module) -> Callable[..., Any]:
    """The forward of the module's class, without its extensions."""
    forward: Callable[..., Any] = _parts(type(module))[0].forward
    return forward


def _parts(kind: Any) -> tuple[Any, Any]:
    """The class that was extended, and its extensions, the latest first."""
    return getattr(kind, "extended", (kind, ()))


@cache
def _extended_class(base: Any, extensions: Any) -> type[nn.Module]:
    """The class has the name of the user's, which other code may look at; `print` shows what extends it."""
    shown = "".join(extension.__name__ for extension in extensions) + base.__name__
    fields = {
        "extended": (base, extensions),
        "forward": _like(base.forward, extensions[0].forward),
        "__reduce_ex__": _reduce,
        "_save_to_state_dict": _save,
        "__prepare_scriptable__": _refuse_script,
        "__doc__": extensions[0].__doc__,
        "__qualname__": shown,
        "_get_name": lambda _: shown,
    }
    if nn.Module in _layouts(base):
        return type(base.__name__, (*extensions, base), fields)
    # An object changes its class only if its memory has the same layout, which is that of the first base.
    order = {"mro": lambda kind: [kind, *extensions, *base.__mro__]}
    kind: type[nn.Module] = type("Extended", (type(base),), order)(base.__name__, (base, *extensions), fields)
    return kind


def _like(forward: Callable[..., Any], extension: Callable[..., Any]) -> Callable[..., Any]:
    """The extension with the signature of the layer's forward, which trainers and exports look at.

    It has no `__wrapped__`, by which they would find the forward without the extension and call that.
    """

    @wraps(forward)
    def extended(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if isinstance(args, Proxy):  # For the root of a trace, torch.fx reads the code.
            raise SkipinitError(
                f"{type(self).__name__} is itself extended by a conversion, which torch.fx cannot trace; "
                "use torch.export"
            )
        return extension(self, *args, **kwargs)

    extended.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    del extended.__wrapped__
    return extended


def _layouts(kind: Any) -> list[type]:
    """The classes that the layout of a class comes from: of `class Layer(ABC, nn.Module)` it is ABC's."""
    return [] if kind is None else [kind, *_layouts(kind.__base__)]


def _reduce(self: nn.Module, protocol: Any) -> str | tuple[Any, ...]:
    """Pickle and copy the module by its parts, since its class has no importable name."""
    parts = vars(type(self)).get("extended")
    if parts is None:  # Another class was derived from it, as for a parametrization.
        return object.__reduce_ex__(self, protocol)
    return _rebuild, parts, self.__getstate__()


def _refuse_script(self: nn.Module) -> None:
    raise SkipinitError(
        f"{type(self).__name__} is extended by a conversion, which torch.jit.script cannot read; "
        "use torch.export or torch.jit.trace"
    )


def _save(self: nn.Module, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
    """Save the extensions' tensors, too, where the layer names those that it saves, as PyG's Linear does."""
    base, extensions = type(self).__dict__["extended"]
    base._save_to_state_dict(self, destination, prefix, keep_vars)
    for name in chain.from_iterable(map(get_annotations, extensions)):
        tensor = getattr(self, name)
        if isinstance(tensor, Tensor):
            destination[prefix + name] = tensor if keep_vars else tensor.detach()


def _rebuild(base: Any, extensions: Any) -> nn.Module:
    kind = _extended_class(base, extensions)
    return kind.__new__(kind)


def scalar(value: float, *homes: nn.Module) -> nn.Parameter:
    """A learnable scalar with the dtype and device of the first of these modules that has tensors."""
    tensors = (tensor for home in homes for tensor in chain(home.parameters(), home.buffers()))
    like = next((tensor for tensor in tensors if tensor.is_floating_point()), torch.empty(()))
    return nn.Parameter(torch.tensor(value, dtype=like.dtype, device=like.device))
