"""One measured step of a training.

The forward pass runs under the tracer of `probe`. The tracer reads the operands of each addition and reduces
them on the device; it changes no number of the pass. Hooks on the sums reduce their gradients in the
backward pass, and hooks of the optimizer give gradients and updates of the parameters. The host reads
nothing until `fetch`, which copies one vector.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from .adds import TracedAdd
from .balance import ProbeReport
from .forward import GradientHooks, preserve_state
from .history import Measurement, WatchRow
from .inputs import copy_arguments, tensors_given
from .measure import Readings, StatisticsBuffer
from .residual import ResidualAdd, describe_adds
from .tensors import local_part, norm_of, whole_norm
from .trace import Tracer


class Snapshot:
    """The numbers of one step, on the device.

    Args:
        step: the number of updates before this step.
        model: the module that gives names to blocks and parameters.
    """

    def __init__(self, step: int, model: nn.Module) -> None:
        self.step = step
        self._model = model
        self._statistics = StatisticsBuffer()
        self._tracer = Tracer(model, (), self._statistics)
        self._modes = ExitStack()
        self._adds: list[ResidualAdd] = []
        self._traced: list[TracedAdd] = []
        self._before: dict[str, Tensor] = {}
        self._norms: dict[tuple[str, str], Tensor | None] = {}
        """Keyed by quantity and name: weight, gradient or update of a parameter, scale of a block."""

    def open(self, inputs: Any) -> None:
        """Begin to trace the forward pass that runs next, on these inputs."""
        if "torch._dynamo" in sys.modules:  # Compiled functions in the model would hide their operations.
            self._modes.enter_context(torch.compiler.set_stance("force_eager"))
        self._tracer = Tracer(self._model, tensors_given(inputs), self._statistics)
        self._modes.enter_context(self._tracer)
        self._modes.enter_context(GradientHooks(self._tracer))

    def close(self) -> None:
        """End the trace after the forward pass; keep its residual adds and the current scales."""
        self._modes.close()
        self._traced = self._tracer.adds
        self._adds = describe_adds(self._traced, type(self._model).__name__)
        for add, traced in zip(self._adds, self._traced, strict=True):
            scaling = traced.learned_scaling()
            if scaling is not None and scaling.factor is not None:
                self._norms["scale", add.name] = _scale(scaling.factor)

    def pass_eagerly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Trace an additional eager pass without gradients, for a model whose additions are compiled.

        Buffers and random generators are restored, so that the compiled pass computes the same as without it.
        """
        args, kwargs = copy_arguments(args, kwargs)
        self._tracer = Tracer(self._model, tensors_given((args, kwargs)), self._statistics)
        with preserve_state(self._model), torch.no_grad(), self._tracer:
            self._model(*args, **kwargs)
        torch.clear_autocast_cache()  # Its casts of the parameters were made without gradients.
        self.close()

    @property
    def has_blocks(self) -> bool:
        """Whether the pass had a residual add."""
        return bool(self._adds)

    def explain_nothing(self) -> str:
        """Say in a sentence which additions the pass had, and why none is residual."""
        name, rejected = type(self._model).__name__, dict(self._tracer.rejected.most_common())
        empty = ProbeReport(name, (), (), 0, operations=self._tracer.operations, rejected=rejected)
        return str(empty.verdict)

    def before_update(self, held: Sequence[Tensor] | None = None) -> None:
        """Copy the blocks' parameters that an optimizer holds; all of them if `held` is None."""
        for name, parameter in self._held(held):
            self._before.setdefault(name, parameter.detach().clone())

    def after_update(self, held: Sequence[Tensor] | None = None) -> None:
        """Reduce the gradients that the optimizer used and the updates that it made."""
        for name, parameter in self._held(held):
            if parameter.grad is not None:
                self._norms["gradient", name] = whole_norm(parameter.grad)
            # Kept after the update: another optimizer may be wrapped around this one and change them further.
            if (before := self._before.get(name)) is not None:
                self._norms["weight", name] = whole_norm(before)
                self._norms["update", name] = whole_norm(parameter.detach() - before)

    def _held(self, held: Sequence[Tensor] | None) -> Iterator[tuple[str, nn.Parameter]]:
        """By name: during the forward pass a sharded model has other parameters than now."""
        identities = None if held is None else {id(tensor) for tensor in held}
        known = dict(self._model.named_parameters(remove_duplicate=False))
        for name in dict.fromkeys(name for add in self._adds for name in add.parameters):
            parameter = known.get(name)
            if parameter is not None and (identities is None or id(parameter) in identities):
                yield name, parameter

    def fetch(self) -> Measurement:
        """All numbers, copied from the device at once."""
        values = Readings(self._traced, self._statistics, self._norms)
        rows = (
            WatchRow(
                name=add.name,
                depth=add.depth,
                skip_variance=values.variance(traced.skip_statistics),
                branch_variance=values.variance(traced.branch_statistics),
                scale=values.norms.get(("scale", add.name)),
                gradient_norm=values.gradient_norms.get(traced),
                parameter_gradient_norm=values.total_norm("gradient", add.parameters),
                update_ratio=_update_ratio(values, add.parameters),
            )
            for add, traced in zip(self._adds, self._traced, strict=True)
        )
        return Measurement(self.step, tuple(rows))


def _scale(values: Tensor) -> Tensor:
    """The value of a real scalar, with its sign; the root mean square of several."""
    values = local_part(values)
    single = values.numel() == 1 and not values.is_complex()
    return values.clone() if single else norm_of(values) / values.numel() ** 0.5


def _update_ratio(values: Readings, parameters: Sequence[str]) -> float | None:
    update, weight = values.total_norm("update", parameters), values.total_norm("weight", parameters)
    return None if update is None or not weight else update / weight
