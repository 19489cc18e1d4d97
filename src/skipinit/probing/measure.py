"""`probe`: how much of each residual block's output comes from the skip, and how much from the branch.

Each operand is reduced at once to three numbers, which stay on the device until the pass is over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import ConfigError, one_line
from .adds import TracedAdd
from .balance import ProbeReport, ProbeRow
from .forward import Mode, traced
from .graph import Kind
from .inputs import Inputs
from .residual import ResidualAdd, describe_adds
from .tensors import TensorInfo, is_spread, values_of, whole_norm
from .trace import Tracer

Loss = Callable[[Any, Tensor], Tensor]
_CHUNK_ON_CPU = 1 << 18
"""Values converted to float64 at a time: 2 MiB, which fits into a cache."""
_CHUNK_ELSEWHERE = 1 << 24
"""Larger, because launching a kernel costs more than its work."""
_STACK = 256
"""Entries of a buffer that become one tensor."""


def probe(
    model: nn.Module, inputs: Inputs, targets: Tensor | None = None, loss: Loss | None = None
) -> ProbeReport:
    """Measure both operands of every residual add in one forward pass of `model` on `inputs`.

    The model runs in training mode, so batch norm uses the statistics of these inputs. Mode, buffers,
    gradients, hooks and random generators are restored. A model without residual adds gives a
    report without rows, whose text says which additions were seen.

    Args:
        model: any module; the names of its layers do not matter.
        inputs: a tensor, a tuple or list of arguments or a batch of a data loader, a dictionary of keyword
            arguments, or a shape, which stands for Gaussian values.
        targets: if given, also run backward and measure gradients.
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
    """`probe` with the model in the given mode."""
    if loss is not None and not callable(loss):
        raise ConfigError(f"loss={loss!r} is no function of the model's output and the targets")
    gradients = targets is not None
    with traced(model, inputs, mode, StatisticsBuffer(), gradients) as (tracer, output):
        norms = {} if targets is None else _gradient_norms(model, output, targets, loss)
        return report_of(tracer, model, norms)


def measure_with_outputs(model: nn.Module, inputs: Inputs, mode: Mode) -> tuple[ProbeReport, Any]:
    """The report of a pass, and what the model returned."""
    with traced(model, inputs, mode, StatisticsBuffer()) as (tracer, output):
        return report_of(tracer, model), output


def report_of(tracer: Tracer, model: nn.Module, norms: Norms | None = None) -> ProbeReport:
    """The report of a pass that was traced with statistics, with these norms of the parameters' gradients."""
    assert tracer.statistics is not None
    adds = describe_adds(tracer.adds, type(model).__name__)
    values = Readings(tracer.adds, tracer.statistics, norms or {})
    rows = [_row(add, traced_add, values) for add, traced_add in zip(adds, tracer.adds, strict=True)]
    finite = [row.is_finite for row in rows]
    end = finite.index(False) if False in finite else len(rows)
    return ProbeReport(
        model=type(model).__name__,
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
    (LayerDrop). Its state is restored afterwards.

    Args:
        model: any module.
        inputs: a tensor, a tuple or list of arguments or a batch of a data loader, a dictionary of keyword
            arguments, or a shape, which stands for Gaussian values.
    """
    with traced(model, inputs, "whole") as (tracer, _):
        return describe_adds(tracer.adds, type(model).__name__)


Norms = Mapping[tuple[str, str], Tensor | None]
"""Norms by quantity and name, such as ("gradient", "layer1.weight"); None if other processes hold parts."""


class Readings:
    """All numbers of a traced pass, copied from the device at once."""

    def __init__(self, adds: Sequence[TracedAdd], statistics: StatisticsBuffer, norms: Norms) -> None:
        outputs = {add: add.gradient_norm for add in adds if add.gradient_norm is not None}
        entries = statistics.stacked()
        known = {key: norm for key, norm in norms.items() if norm is not None}
        numbers = iter(_fetch([entries, *outputs.values(), *known.values()]))
        self._statistics = [[next(numbers) for _ in range(3)] for _ in range(len(entries))]
        self.gradient_norms = {add: next(numbers) for add in outputs}
        self.norms: dict[tuple[str, str], float | None] = dict.fromkeys(norms)
        self.norms |= {key: next(numbers) for key in known}

    def statistics(self, index: int | None) -> list[float]:
        """Variance within channels, variance of the channel means, mean square of the channel means."""
        assert index is not None
        return self._statistics[index]

    def variance(self, index: int | None) -> float:
        """Over all values."""
        within, between, _ = self.statistics(index)
        return within + between

    def total_norm(self, quantity: str, names: Iterable[str]) -> float | None:
        """The norm over several parameters; None if it is known of none, or unknown of one."""
        found = [self.norms[quantity, name] for name in names if (quantity, name) in self.norms]
        known = [norm for norm in found if norm is not None]
        return math.hypot(*known) if known and len(known) == len(found) else None


def _fetch(tensors: Sequence[Tensor]) -> list[float]:
    """All their values, in one copy to the host; a model may be spread over devices."""
    flat = [tensor.detach().flatten() for tensor in tensors]
    values: list[float] = torch.cat([values.to(flat[0].device, torch.float64) for values in flat]).tolist()
    return values


def _row(add: ResidualAdd, traced_add: TracedAdd, values: Readings) -> ProbeRow:
    branch = values.variance(traced_add.branch_statistics)
    within, between, _ = values.statistics(traced_add.output_statistics)
    nodes = (*traced_add.paths.shared, *traced_add.paths.branch)
    norms = [n.input_statistics for n in nodes if n.kind is Kind.NORM and n.input_statistics is not None]
    moving = values.statistics(norms[0]) if norms else None
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
        parameter_gradient_norm=values.total_norm("gradient", add.parameters),
    )


def _before_scalar(add: TracedAdd, after: float, values: Readings) -> float | None:
    """The branch's variance before the multiplications at its end; None if there are none.

    The input of a tensor or of zero was measured; another number is divided out.
    """
    variance, scaled = after, False
    for scaling in add.scalings():
        if scaling.input_statistics is not None:
            variance, scaled = values.variance(scaling.input_statistics), True
        elif scaling.constant not in (None, 0.0, 1.0):
            variance, scaled = variance / scaling.constant**2, True
    return variance if scaled else None


def _gradient_norms(model: nn.Module, output: Any, targets: Tensor, loss: Loss | None) -> Norms:
    """Norm of the loss's gradient for each parameter. No `.grad` is changed."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not parameters:
        raise ConfigError(f"no parameter of {type(model).__name__} requires a gradient; omit the targets")
    value = (loss or _cross_entropy)(output, targets)
    if not isinstance(value, Tensor):
        raise ConfigError(f"the loss returns a {type(value).__name__}; it must return a tensor of one number")
    try:
        gradients = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
    except RuntimeError as error:
        name, reason = type(model).__name__, one_line(error)
        raise ConfigError(f"{name} cannot go backward from its loss: {reason}") from error
    return {
        ("gradient", name): None if gradient is None else whole_norm(gradient)
        for name, gradient in zip(parameters, gradients, strict=True)
        if gradient is not None or is_spread(parameters[name])
    }


def _cross_entropy(output: Any, targets: Tensor) -> Tensor:
    if not isinstance(output, Tensor):
        raise ConfigError(f"the model returns a {type(output).__name__}; give a `loss` of it and the targets")
    if not isinstance(targets, Tensor):
        raise ConfigError(f"targets is a {type(targets).__name__}; give a tensor of classes, or a `loss`")
    if targets.is_floating_point():
        raise ConfigError(f"targets of {targets.dtype} have no default loss; give `loss`, or integer classes")
    try:
        return F.cross_entropy(output, targets)
    except (RuntimeError, IndexError, ValueError) as error:
        shapes = f"targets {tuple(targets.shape)} do not fit outputs {tuple(output.shape)}"
        raise ConfigError(f"{shapes}: {one_line(error)}") from error


def channel_statistics(values: Tensor, channel_axis: int) -> Tensor:
    """(mean over channels of the variance, variance of the channel means, mean of the squared channel means).

    The first two add up to the variance over all values. Variances are biased and computed in two passes in
    float64, so that float32 activations of any finite size neither overflow nor cancel. The tensor is
    converted chunk by chunk; its variance is the mean variance within chunks plus the variance of their
    means. The result stays on the device: nothing waits for it. Real and imaginary parts are channels.
    """
    channel_axis -= values.is_nested  # Its first two axes become one.
    values = values_of(values)
    if values.is_complex():
        values = torch.cat([values.real, values.imag], channel_axis)
    chunks = _split(values.detach(), channel_axis)
    means, variances = torch.stack([_moments(chunk) for chunk in chunks]).unbind(1)
    counts = torch.tensor([chunk[0].numel() for chunk in chunks], dtype=torch.float64, device=values.device)
    weights = (counts / counts.sum())[:, None]
    mean = (weights * means).sum(0)
    variance = (weights * (variances + (means - mean).square())).sum(0)
    return torch.stack([variance.mean(), mean.var(correction=0), mean.square().mean()])


def _split(values: Tensor, channel_axis: int) -> tuple[Tensor, ...]:
    """Views with channels first, split along the longest of the other axes."""
    view = values.movedim(channel_axis, 0)
    axis = 1 + max(range(view.dim() - 1), key=lambda i: view.shape[1 + i])
    chunk = _CHUNK_ON_CPU if values.device.type == "cpu" else _CHUNK_ELSEWHERE
    chunks: tuple[Tensor, ...] = view.split(max(1, chunk * view.shape[axis] // max(1, view.numel())), axis)
    return chunks


def _moments(chunk: Tensor) -> Tensor:
    """Mean and variance of each channel."""
    wide, others = chunk.to(torch.float64, copy=True), tuple(range(1, chunk.dim()))
    means = wide.mean(dim=others, keepdim=True)
    return torch.stack([means.flatten(), wide.sub_(means).square_().mean(dim=others)])


class StatisticsBuffer:
    """The statistics of many tensors, kept on the device until all are read at once.

    Entries are stacked 256 at a time: thousands of tiny tensors need more memory than the numbers in them.
    """

    def __init__(self) -> None:
        self._stacks: list[Tensor] = []
        self._latest: list[Tensor] = []
        self._length = 0

    def measure(self, values: Tensor, axis: int, info: TensorInfo | None = None) -> int:
        """The index of the statistics. A view that `info` says was measured is not measured again:
        a block's output is the next block's skip.
        """
        view = (values.storage_offset(), values.shape, values.stride(), axis)
        if info is not None and info.measured is not None and info.measured[0] == view:
            return info.measured[1]
        index = self.append(channel_statistics(values, axis))
        if info is not None:
            info.measured = view, index
        return index

    def append(self, statistics: Tensor) -> int:
        """Add an entry; returns its index."""
        self._latest.append(statistics)
        if len(self._latest) == _STACK:
            self._stack_latest()
        self._length += 1
        return self._length - 1

    def stacked(self) -> Tensor:
        """All entries as rows of one tensor, on the device of the first."""
        if self._latest:
            self._stack_latest()
        if not self._stacks:
            return torch.empty(0, 3)
        return torch.cat([stack.to(self._stacks[0].device) for stack in self._stacks])

    def _stack_latest(self) -> None:
        # A model may be spread over devices.
        device = self._latest[0].device
        self._stacks.append(torch.stack([entry.to(device) for entry in self._latest]))
        self._latest.clear()
