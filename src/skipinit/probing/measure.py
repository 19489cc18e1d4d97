"""`probe`: how much of each residual block's output comes from the skip, and how much from the branch."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import ConfigError, one_line
from .adds import ResidualAdd, TracedAdd, describe_adds
from .balance import ProbeReport, ProbeRow
from .forward import Inputs, Mode, traced
from .operations import Kind
from .trace import Tracer

Loss = Callable[[Any, Tensor], Tensor]


def probe(
    model: nn.Module, inputs: Inputs, targets: Tensor | None = None, loss: Loss | None = None
) -> ProbeReport:
    """Measure both operands of every residual add in one forward pass of `model` on `inputs`.

    The model runs in training mode, so batch norm uses the statistics of these inputs. Afterwards the model
    is as it was: mode, buffers, gradients, hooks, random generators. A model without residual adds gives a
    report without rows, whose text says which additions were seen.

    Args:
        model: any module; its residual adds are found, whatever its layers are called.
        inputs: a tensor, a tuple or list of arguments or a batch of a data loader, a dictionary of keyword
            arguments, or a shape, which stands for Gaussian values.
        targets: if given, also go backward and measure gradients.
        loss: a function of the model's output and the targets; cross-entropy by default, for integer targets.

    >>> model = skipinit.create_model("wrn52_1", scheme="batchnorm")
    >>> report = skipinit.probe(model, torch.Size([4, 3, 32, 32]))
    >>> len(report.rows), report.verdict.biased_to_identity
    (24, True)
    """
    return measure(model, inputs, "training", targets, loss)


def measure(
    model: nn.Module, inputs: Inputs, mode: Mode, targets: Tensor | None = None, loss: Loss | None = None
) -> ProbeReport:
    """`probe`, of the model in that mode."""
    with traced(model, inputs, True, mode, gradients=targets is not None) as (tracer, output):
        squares = {} if targets is None else _squared_gradients(model, output, targets, loss)
        name = type(model).__name__
        adds = describe_adds(tracer.adds, name)
        values = _Measurements(tracer, squares)
        rows = [_row(add, traced_add, values) for add, traced_add in zip(adds, tracer.adds, strict=True)]
    finite = [row.is_finite for row in rows]
    end = finite.index(False) if False in finite else len(rows)
    return ProbeReport(
        model=name,
        rows=tuple(rows[:end]),
        adds=tuple(adds[:end]),
        num_blocks=len(adds),
        first_nonfinite=rows[end].name if end < len(rows) else None,
        operations=tracer.operations,
        rejected=dict(tracer.rejected.most_common()),
    )


def find_residual_adds(model: nn.Module, inputs: Inputs) -> list[ResidualAdd]:
    """The residual adds of one forward pass of `model` on `inputs`; an empty list if it has none.

    The model runs without gradients, its layers in training mode; no layer is dropped at random as a whole
    (LayerDrop). Afterwards it is as it was.

    Args:
        model: any module.
        inputs: a tensor, a tuple or list of arguments or a batch of a data loader, a dictionary of keyword
            arguments, or a shape, which stands for Gaussian values.
    """
    with traced(model, inputs, measure=False, mode="whole") as (tracer, _):
        return describe_adds(tracer.adds, type(model).__name__)


class _Measurements:
    """All measured numbers, fetched from the device at once."""

    def __init__(self, tracer: Tracer, squares: dict[str, Tensor]) -> None:
        self._statistics = tracer.statistics.tolist()
        norms = {add: add.gradient_norm for add in tracer.adds if add.gradient_norm is not None}
        self.gradient_norms = dict(zip(norms, _fetch(norms.values()), strict=True))
        self.squared_gradients = dict(zip(squares, _fetch(squares.values()), strict=True))

    def statistics(self, index: int | None) -> list[float]:
        """Variance within channels, variance of the channel means, mean square of the channel means."""
        assert index is not None
        return self._statistics[index]

    def variance(self, index: int | None) -> float:
        within, between, _ = self.statistics(index)
        return within + between


def _fetch(tensors: Collection[Tensor]) -> list[float]:
    if not tensors:
        return []
    device = next(iter(tensors)).device
    values: list[float] = torch.stack([tensor.to(device) for tensor in tensors]).tolist()
    return values


def _row(add: ResidualAdd, traced_add: TracedAdd, values: _Measurements) -> ProbeRow:
    branch = values.variance(traced_add.branch_statistics)
    within, between, _ = values.statistics(traced_add.output_statistics)
    nodes = (*traced_add.paths.shared, *traced_add.paths.branch)
    norms = [n.input_statistics for n in nodes if n.kind is Kind.NORM and n.input_statistics is not None]
    moving = values.statistics(norms[0]) if norms else None
    squares = [values.squared_gradients[p] for p in add.parameters if p in values.squared_gradients]
    return ProbeRow(
        name=add.name,
        depth=add.depth,
        skip_variance=values.variance(traced_add.skip_statistics),
        branch_variance=branch,
        branch_variance_before_scalar=_before_scalar(traced_add, branch, values),
        output_variance=within + between,
        channel_variance=within,
        channel_mean_variance=between,
        moving_variance=moving[0] if moving else None,
        squared_moving_mean=moving[2] if moving else None,
        gradient_norm=values.gradient_norms.get(traced_add),
        parameter_gradient_norm=sum(squares) ** 0.5 if squares else None,
    )


def _before_scalar(add: TracedAdd, after: float, values: _Measurements) -> float | None:
    """The branch's variance before the multiplications at its end; None if there are none.

    The input of a learned factor was measured, since the factor may be zero; a constant is divided out.
    """
    variance, scaled = after, False
    for scaling in add.scalings():
        if scaling.input_statistics is not None:
            variance, scaled = values.variance(scaling.input_statistics), True
        elif scaling.constant not in (0.0, 1.0):
            variance, scaled = variance / scaling.constant**2, True
    return variance if scaled else None


def _squared_gradients(
    model: nn.Module, output: Any, targets: Tensor, loss: Loss | None
) -> dict[str, Tensor]:
    """Squared norm of the loss's gradient for each parameter. No `.grad` is changed."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not parameters:
        raise ConfigError(f"no parameter of {type(model).__name__} requires a gradient; omit the targets")
    value = (loss or _cross_entropy)(output, targets)
    try:
        gradients = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
    except RuntimeError as error:
        name, reason = type(model).__name__, one_line(error)
        raise ConfigError(f"{name} cannot go backward from its loss: {reason}") from error
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
        raise ConfigError(f"{shapes}: {one_line(error)}") from error
