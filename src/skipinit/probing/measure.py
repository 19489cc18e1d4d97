"""`probe`: how much of each residual block's output comes from the skip, and how much from the branch."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import ConfigError, SkipinitError
from .adds import ResidualAdd, describe, scalings
from .balance import ProbeReport, ProbeRow
from .forward import Batch, watched
from .operations import Kind
from .trace import Sighting, Watcher

Loss = Callable[[Any, Tensor], Tensor]


def probe(
    model: nn.Module, batch: Batch, targets: Tensor | None = None, loss: Loss | None = None
) -> ProbeReport:
    """Measure both operands of every residual add in one forward pass of `model` on `batch`.

    The model runs in training mode, so batch norm uses the statistics of this batch, and comes out as it went
    in: mode, buffers, gradients, hooks, random generators.

    Args:
        model: any module; the residual adds are found, no layer needs a name.
        batch: a tensor, a tuple of arguments or a dictionary of keyword arguments for the model.
        targets: if given, also go backward and measure gradients.
        loss: a function of the model's output and the targets; cross-entropy for integer targets.
    """
    with watched(model, batch, measure=True, gradients=targets is not None) as (watcher, output):
        squares = {} if targets is None else _parameter_gradients(model, output, targets, loss)
        if not watcher.sightings:
            raise SkipinitError(_nothing_found(model, watcher))
        adds = describe(model, watcher)
        numbers = _Numbers(watcher, squares)
        rows = [_row(add, sighting, numbers) for add, sighting in zip(adds, watcher.sightings, strict=True)]
    finite = [row.is_finite for row in rows]
    end = finite.index(False) if False in finite else len(rows)
    return ProbeReport(
        model=type(model).__name__,
        rows=tuple(rows[:end]),
        adds=tuple(adds[:end]),
        num_blocks=len(adds),
        first_nonfinite=rows[end].name if end < len(rows) else None,
    )


def find_residual_adds(model: nn.Module, batch: Batch) -> list[ResidualAdd]:
    """The residual adds of one forward pass of `model` on `batch`; an empty list if it has none.

    The model runs in training mode without gradients and is left as it was. `batch` is a tensor, a tuple of
    arguments, or a dictionary of keyword arguments.
    """
    with watched(model, batch, measure=False) as (watcher, _):
        return describe(model, watcher)


class _Numbers:
    """All measurements, fetched from the device at once."""

    def __init__(self, watcher: Watcher, squares: dict[str, Tensor]) -> None:
        self._lines = watcher.ledger.read()
        norms = {s: s.gradient_norm for s in watcher.sightings if s.gradient_norm is not None}
        self.gradient_norms = dict(zip(norms, _fetch(norms.values()), strict=True))
        self.squared_gradients = dict(zip(squares, _fetch(squares.values()), strict=True))

    def of(self, line: int | None) -> list[float]:
        """Within channels, between channels, mean square of the channel means."""
        assert line is not None
        return self._lines[line]

    def variance(self, line: int | None) -> float:
        within, between, _ = self.of(line)
        return within + between


def _fetch(tensors: Collection[Tensor]) -> list[float]:
    if not tensors:
        return []
    device = next(iter(tensors)).device
    values: list[float] = torch.stack([tensor.to(device) for tensor in tensors]).tolist()
    return values


def _row(add: ResidualAdd, sighting: Sighting, numbers: _Numbers) -> ProbeRow:
    skip, branch = numbers.variance(sighting.skip), numbers.variance(sighting.branch)
    within, between, _ = numbers.of(sighting.output)
    nodes = (*sighting.split.shared_path, *sighting.split.branch_path)
    norms = [n.input_statistics for n in nodes if n.kind is Kind.NORM and n.input_statistics is not None]
    moving = numbers.of(norms[0]) if norms else None
    squares = [numbers.squared_gradients[p] for p in add.parameters if p in numbers.squared_gradients]
    return ProbeRow(
        name=add.name,
        depth=add.depth,
        skip_variance=skip,
        branch_variance=branch,
        branch_variance_before_scalar=_before_scalar(sighting, branch, numbers),
        output_variance=within + between,
        channel_variance=within,
        channel_mean_variance=between,
        moving_variance=moving[0] if moving else None,
        squared_moving_mean=moving[2] if moving else None,
        gradient_norm=numbers.gradient_norms.get(sighting),
        parameter_gradient_norm=sum(squares) ** 0.5 if squares else None,
    )


def _before_scalar(sighting: Sighting, after: float, numbers: _Numbers) -> float | None:
    """The branch's variance before the multiplications at its end; None if there are none.

    A learned factor was measured on both sides, since it may be zero; a constant is divided out.
    """
    variance, scaled = after, False
    for scaling in scalings(sighting.operands[1 - sighting.split.skip]):
        if scaling.input_statistics is not None:
            variance, scaled = numbers.variance(scaling.input_statistics), True
        elif scaling.constant not in (0.0, 1.0):
            variance, scaled = variance / scaling.constant**2, True
    return variance if scaled else None


def _parameter_gradients(
    model: nn.Module, output: Any, targets: Tensor, loss: Loss | None
) -> dict[str, Tensor]:
    """Squared norm of the loss's gradient for each parameter; no `.grad` is touched."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not parameters:
        raise ConfigError(f"no parameter of {type(model).__name__} requires a gradient; omit the targets")
    value = (loss or _cross_entropy)(output, targets)
    try:
        gradients = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
    except RuntimeError as error:
        message = " ".join(str(error).split())
        raise ConfigError(f"{type(model).__name__} cannot go backward from its loss: {message}") from error
    return {
        name: gradient.to(torch.float64).square().sum()
        for name, gradient in zip(parameters, gradients, strict=True)
        if gradient is not None
    }


def _cross_entropy(output: Any, targets: Tensor) -> Tensor:
    if not isinstance(output, Tensor):
        raise ConfigError(f"the model returns a {type(output).__name__}; give a `loss` of it and the targets")
    if targets.is_floating_point():
        raise ConfigError(f"targets of {targets.dtype} have no default loss; give `loss`, or integer classes")
    try:
        return F.cross_entropy(output, targets)
    except (RuntimeError, IndexError, ValueError) as error:
        shapes = f"targets {tuple(targets.shape)} do not fit outputs {tuple(output.shape)}"
        raise ConfigError(f"{shapes}: {' '.join(str(error).split())}") from error


def _nothing_found(model: nn.Module, watcher: Watcher) -> str:
    seen = "; ".join(f"{count} because {reason}" for reason, count in watcher.rejected.most_common())
    additions = f"{watcher.rejected.total()} additions ({seen})" if seen else "no addition at all"
    return (
        f"{type(model).__name__} has no residual add, x + f(x) with layers in f; "
        f"of {watcher.operations} operations seen on the batch, there is {additions}"
    )
