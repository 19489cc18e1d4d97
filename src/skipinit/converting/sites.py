"""Scale a branch at the add itself, if it does not end in a module: a sum, a gate, a function.

A residual add is identified by its place in the source: the call path from the forward of the module that
adds to the expression. That forward then runs under a mode that multiplies the branch operand of the
expression. The model's code does not change.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import CodeType, FrameType
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn.modules import module as torch_module
from torch.overrides import TorchFunctionMode

from ..errors import SkipinitError
from ..probing.adds import TracedAdd
from ..probing.trace import Tracer
from .extensions import own_forward

# The names of torch's functions that add, and the positions of their two operands.
_OPERANDS = {"index_add": (0, 3), "addcmul": (0, 2)}
_KEYWORDS = {"index_add": "source", "addcmul": "tensor2", "lerp": "end"}
_FUNCTIONS = {
    name + suffix
    for name in ("add", "sub", "subtract", "addcmul", "lerp", "index_add", "sum")
    for suffix in ("", "_")
} | {"__add__", "__radd__", "__iadd__", "__sub__", "__isub__"}

_OUT_OF_PLACE = {"__add__", "__radd__", "__sub__"}
# Not the model's code: extensions, and what `torch.compiler.disable` and autograd put around functions.
_NOT_THE_MODELS = (f"{__package__}.", "torch._dynamo", "torch._compile", "torch.autograd")
_CHECKPOINT = "torch.utils.checkpoint"

_NOT_COMPILED = "it scales its branch at the add; torch.export.export(..., strict=False) exports it"

Path = tuple[str, ...]


@dataclass(frozen=True)
class Site:
    """A residual add in the source of a module."""

    path: Path
    """From the expression outwards to the module's forward: function, line within it, column."""
    hit: int
    """How often the expression ran before in this call of the module; in a loop, more than 0 times."""
    operation: str
    operand: int
    """Which operand is the branch: 0 or 1."""

    @property
    def is_recomputed(self) -> bool:
        """Whether the backward pass recomputes the expression outside of the module's forward."""
        return _CHECKPOINT in self.path


def call_path(frame: FrameType | None) -> tuple[Path, nn.Module | None]:
    """The places in the source from this frame out to the module that is running, and that module."""
    path: list[str] = []
    while frame is not None:
        home = frame.f_globals.get("__name__", "")
        # Its call, or its own forward, which a caller may also run without that.
        if home == torch_module.__name__ or (home == __name__ and frame.f_code.co_name == "forward"):
            return tuple(path), frame.f_locals.get("self")
        if home == _CHECKPOINT:
            path.append(_CHECKPOINT)
        elif not home.startswith(_NOT_THE_MODELS):
            path.append(_places(frame.f_code)[frame.f_lasti // 2])
        frame = frame.f_back
    return tuple(path), None


@cache
def _places(code: CodeType) -> tuple[str, ...]:
    """The place of each instruction. Lines are relative to the function: edits above it do not matter."""
    return tuple(
        f"{code.co_qualname}:{(line or 0) - code.co_firstlineno}:{column}"
        for line, _, column, _ in code.co_positions()
    )


@cache
def source_of(forward: Any) -> int:
    """A number that changes with the places in a function, or in one that it wraps; 0 for compiled code."""
    code, wrapped = getattr(forward, "__code__", None), getattr(forward, "__wrapped__", None)
    number = 0 if code is None else crc32("\n".join(_places(code)).encode())
    return number if wrapped is None else number ^ source_of(wrapped)


class SiteFinder(TorchFunctionMode):
    """Finds the site of each residual add while the model runs under the tracer."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self.tracer = tracer
        self.sites: dict[TracedAdd, Site] = {}
        self._hits: Counter[tuple[int, Path]] = Counter()

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the function; if that was a residual add, keep its site."""
        if getattr(function, "__name__", "") not in _FUNCTIONS:
            return function(*args, **(kwargs or {}))
        path, _ = call_path(sys._getframe(1))
        call, before = self.tracer.modules.running.number, len(self.tracer.adds)
        result = function(*args, **(kwargs or {}))
        for add in self.tracer.adds[before:]:
            hit = self._hits[call, path]
            self.sites[add] = Site(path, hit, add.operation, 1 - add.paths.skip_operand)
        self._hits[call, path] += 1
        return result


class ScaledAdds(nn.Module):
    """skip + branch_scale(branch), at additions in the module's own forward"""

    branch_scales: nn.ModuleList
    branch_sites: dict[Path, dict[int, tuple[int, Site]]]
    """By path and hit: the number of the scale, and the site."""
    branch_source: int
    """That of the module's own forward, when the sites were found."""

    @torch.compiler.disable(reason=_NOT_COMPILED)  # type: ignore[untyped-decorator]
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The call stack tells which addition it is. Compiled code has none: compilers skip this module."""
        if any(isinstance(arg, Proxy) for arg in (*args, *kwargs.values())):
            raise SkipinitError(
                f"{type(self).__name__} scales its branch at the add, which torch.fx cannot trace; "
                "use torch.export"
            )
        if source_of(own_forward(self)) != self.branch_source:
            raise SkipinitError(
                f"{type(self).__name__}: its forward is not the one that was converted, so its adds are not "
                "where its scalars expect them (an edited source, or another version of Python); convert the "
                "model again and load this one's state_dict"
            )
        with _Scaling(self):
            return super().forward(*args, **kwargs)


class _Scaling(TorchFunctionMode):
    def __init__(self, module: ScaledAdds) -> None:
        super().__init__()
        self.module = module
        self.hits: Counter[Path] = Counter()

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__name__", "") in _FUNCTIONS:
            path, running = call_path(sys._getframe(1))
            if running is self.module:
                self._check_recomputation(path)
                hits = self.module.branch_sites.get(path)
                hit = self.hits[path]
                self.hits[path] += 1
                # A loop that runs longer than during the conversion uses its last scale again.
                found = hits and hits.get(min(hit, max(hits)))
                if found:
                    scale = self.module.branch_scales[found[0]]
                    return _add(function, found[1], scale, args, kwargs)
        return function(*args, **kwargs)

    def _check_recomputation(self, path: Path) -> None:
        """Raise if the backward pass will recompute this add, because it would do so without the scale."""
        if _CHECKPOINT in path and path[0] in {site[0] for site in self.module.branch_sites}:
            raise SkipinitError(
                f"{type(self.module).__name__} checkpoints its own add, which is then recomputed without the "
                "branch scalar; checkpoint the module as a whole"
            )


def _add(
    function: Any,
    site: Site,
    scale: Callable[[Tensor], Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    in_place = function.__name__.endswith("_") and function.__name__ not in _OUT_OF_PLACE
    if not in_place or site.operand == 1:
        args, kwargs = _scale_operand(site, scale, args, kwargs)
        return function(*args, **kwargs)
    # The add writes into the branch, and the gradient of the scale needs the old value.
    branch = args[0]
    return branch.copy_(function(scale(branch.clone()), *args[1:], **kwargs))


def _scale_operand(
    site: Site, scale: Callable[[Tensor], Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if site.operation == "sum":
        kwargs = dict(kwargs)
        stacked = args[0] if args else kwargs.pop("input")
        # `axis` is numpy's word for `dim`, which torch takes, too.
        axis = args[1] if len(args) > 1 else kwargs["dim" if "dim" in kwargs else "axis"]
        axis = axis if isinstance(axis, int) else axis[0]
        parts = list(stacked.unbind(axis))
        parts[site.operand] = scale(parts[site.operand])
        return (torch.stack(parts, axis), *args[1:]), kwargs
    position = _OPERANDS.get(site.operation, (0, 1))[site.operand]
    if position < len(args):
        return (*args[:position], scale(args[position]), *args[position + 1 :]), kwargs
    keyword = _KEYWORDS.get(site.operation, "other") if site.operand else "input"
    return args, {**kwargs, keyword: scale(kwargs[keyword])}
