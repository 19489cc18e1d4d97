"""`watch`: the balance of skip and branch over a whole training, in any training loop.

Hooks on the model's forward and on the steps of optimizers count the steps. Between measurements they do
nothing else. A step to be measured runs under a `Snapshot`, which reads the training pass itself.

A step is an update: the first forward in training mode after an optimizer has updated parameters of the model
begins the next step, and so does a second update by the same optimizer. So accumulated micro-batches are one
step, and so are the updates of two optimizers that each hold some of the parameters.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from ..errors import ConfigError
from .forward import check_model, state_is_preserved
from .history import Measurement, WatchReport, check_settings
from .snapshot import Snapshot

Writer = Callable[[Measurement], None]
"""A function that is called with each measurement when it is complete."""

_FORMAT = 1
_PARALLEL = (nn.parallel.DistributedDataParallel, nn.DataParallel)


def watch(model: nn.Module, every: int = 100, limit: int = 1000, writers: Iterable[Writer] = ()) -> Watch:
    """Measure every residual block of `model` every `every` steps of its training, from now on.

    Call it before the training loop, with the module that the loop calls. Losses and parameters are the same
    with and without it, to the bit.

    Args:
        model: any module, also one wrapped by `DistributedDataParallel` or `torch.compile`.
        every: the number of steps between two measurements. A step is an update of the parameters.
        limit: the number of measurements to keep. When there are more, every second one is dropped and
            `every` is doubled.
        writers: functions that are called with each `Measurement`, such as those of `skipinit.callbacks`.

    >>> model = skipinit.create_model("wrn10_1", scheme="skipinit", num_classes=10)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    >>> with skipinit.watch(model, every=2) as watch:
    ...     for _ in range(5):
    ...         loss = model(torch.randn(4, 3, 32, 32)).square().mean()
    ...         loss.backward()
    ...         optimizer.step()
    >>> watch.report().steps
    (0, 2, 4)
    """
    return Watch(model, every, limit, writers).start()


class Watch:
    """Measures the residual blocks of a model while it trains; `skipinit.watch` makes and starts one.

    As a context manager it stops at the end of the block. After it has stopped, no hook is left in the model.
    """

    def __init__(
        self, model: nn.Module, every: int = 100, limit: int = 1000, writers: Iterable[Writer] = ()
    ) -> None:
        check_model(model)
        check_settings(every, limit)
        self.every = int(every)
        self.limit = int(limit)
        self.step = 0
        """How many updates were counted; the last one counts when the next forward or `report` comes."""
        self._called, self._model = _unwrap(model)
        self._writers = check_writers(writers)
        self._measurements: list[Measurement] = []
        self._remark = ""
        self._handles: list[RemovableHandle] = []
        self._optimizers: WeakKeyDictionary[Optimizer, tuple[int, bool]] = WeakKeyDictionary()
        self._snapshot: Snapshot | None = None
        self._tracing = False
        self._due = 0
        self._outer_exception: BaseException | None = None
        self._updating = False
        self._updated = False
        self._ever_updated = False
        self._stepped: WeakSet[Optimizer] = WeakSet()
        self._forwards = 0

    def start(self, within_update: bool = False) -> Watch:
        """Start to watch, from the next forward on.

        Args:
            within_update: whether the forward runs in the closure of an optimizer's `step` that has begun.
        """
        self._updating = within_update
        if not self._handles:
            self._handles = [
                # The last hook before the forward and the first after it: what other hooks compute is not
                # part of the pass.
                self._called.register_forward_pre_hook(_Hook(self.before_forward), with_kwargs=True),
                self._called.register_forward_hook(
                    _Hook(self._after_forward), always_call=True, prepend=True
                ),
                register_optimizer_step_pre_hook(_Hook(self._before_update)),
                register_optimizer_step_post_hook(_Hook(self._after_update)),
            ]
        return self

    def stop(self) -> None:
        """Remove all hooks. The measurements are kept; `start` resumes."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._abandon_trace()
        self._finish()

    def __enter__(self) -> Watch:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def report(self) -> WatchReport:
        """The measurements so far."""
        self._end_step()
        return WatchReport(type(self._model).__name__, tuple(self._measurements), self._explain())

    def count_step(self) -> None:
        """End a step after an update that no optimizer of `torch.optim` made. Its size is not measured."""
        if self._snapshot is not None:
            self._snapshot.after_update()
        self._updated = self._ever_updated = True

    def state_dict(self) -> dict[str, Any]:
        """Steps and measurements as plain data, to save with a checkpoint of the training."""
        self._end_step()
        return {
            "format": _FORMAT,
            "step": self.step,
            "every": self.every,
            "measurements": [measurement.to_dict() for measurement in self._measurements],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`. It replaces the measurements and `every`."""
        if not isinstance(state, Mapping) or "format" not in state:
            raise ConfigError(f"a {type(state).__name__} without a format is no state_dict of a watch")
        if state["format"] != _FORMAT:
            raise ConfigError(f"the state of a watch has format {state['format']}; {_FORMAT} is readable")
        try:
            step, every = int(state["step"]), int(state["every"])
            measurements = [Measurement.from_dict(content) for content in state["measurements"]]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"not a whole state_dict of a watch ({error!r}); give one unchanged") from error
        check_settings(every, self.limit)
        self._abandon_trace()
        self._snapshot, self._updated, self._ever_updated = None, False, True
        self.step, self.every, self._measurements = step, every, measurements
        self._due = self._next_due(measurements[-1].step) if measurements else 0

    # Hooks, in the order in which they fire during a step.

    def before_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The hook before the forward; call it yourself if the forward had begun before `start`."""
        self._abandon_trace()
        # No steps: passes of a copy that shares the hooks, passes that checkpointing repeats in the backward,
        # and those of a probe.
        in_backward = torch._C._current_graph_task_id() != -1
        training = self._model.training and torch.is_grad_enabled() and not in_backward
        if module is not self._called or not training or state_is_preserved():
            return
        self._end_step()
        self._forwards += 1
        if self.step < self._due:
            return
        snapshot = Snapshot(self.step, self._model)
        if _is_compiled(self._called):
            snapshot.pass_eagerly(args, kwargs)
            self._keep_trace(snapshot)
        else:
            self._snapshot, self._tracing = snapshot, True
            self._outer_exception = sys.exception()
            snapshot.open((args, kwargs))
        self._due = self._next_due(self.step)

    def _after_forward(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not self._tracing or self._snapshot is None or module is not self._called:
            return
        if sys.exception() is not self._outer_exception:  # The forward raised.
            self._abandon_trace()
            return
        self._tracing = False
        self._snapshot.close()
        self._keep_trace(self._snapshot)

    def _keep_trace(self, snapshot: Snapshot) -> None:
        if not snapshot.has_blocks:
            self._remark, self._snapshot = snapshot.explain_nothing(), None
            return
        self._snapshot = snapshot
        if self._updating:  # The forward runs in the closure of `optimizer.step`.
            snapshot.before_update()

    def _before_update(self, optimizer: Optimizer, *_: Any) -> None:
        if self._holds_parameters(optimizer):
            if optimizer in self._stepped:
                self._end_step()
            self._updating = True
            if self._snapshot is not None:
                self._snapshot.before_update(_parameters(optimizer))

    def _after_update(self, optimizer: Optimizer, *_: Any) -> None:
        if self._holds_parameters(optimizer):
            if self._snapshot is not None:
                self._snapshot.after_update(_parameters(optimizer))
            self._stepped.add(optimizer)
            self._updating, self._updated, self._ever_updated = False, True, True

    def _end_step(self) -> None:
        """Count the step and keep its measurement, if the parameters were updated since the last forward."""
        if self._updated:
            self._finish()
            self.step += 1
            self._updated = False
            self._stepped.clear()

    def _finish(self) -> None:
        if self._snapshot is None:
            return
        measurement, self._snapshot = self._snapshot.fetch(), None
        self._measurements.append(measurement)
        if len(self._measurements) > self.limit:
            self.every *= 2
            self._due = self._next_due(measurement.step)
            del self._measurements[1::2]
        for write in self._writers:
            write(measurement)

    def _abandon_trace(self) -> None:
        """Close the trace of a pass that was interrupted, for example by Ctrl-C."""
        if self._tracing and self._snapshot is not None:
            self._snapshot.close()
            self._due = self._snapshot.step
            self._snapshot, self._tracing = None, False

    def _next_due(self, step: int) -> int:
        return (step // self.every + 1) * self.every

    def _holds_parameters(self, optimizer: Optimizer) -> bool:
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        known, holds = self._optimizers.get(optimizer, (None, False))
        if known != count:  # A new optimizer, or one that got another parameter group.
            own = {id(parameter) for parameter in self._model.parameters()}
            holds = any(id(tensor) in own for tensor in _parameters(optimizer))
            self._optimizers[optimizer] = count, holds
        return holds

    def _explain(self) -> str:
        if self._remark and not self._measurements:
            return self._remark
        if not self._forwards and not self._measurements:
            return (
                f"{type(self._model).__name__} made no forward pass in training mode with gradients. "
                "Watch the module that your loop calls, before the loop."
            )
        if self._ever_updated:
            return ""
        return (
            "No step is complete: no torch.optim optimizer updated parameters of the model. "
            "After an update without torch.optim, call watch.count_step()."
        )


def check_writers(writers: Iterable[Writer]) -> tuple[Writer, ...]:
    """The writers as a tuple; raises if one is not a function."""
    functions = tuple(writers) if isinstance(writers, Iterable) else (None,)
    if not all(map(callable, functions)):
        raise ConfigError(f"writers={writers!r} is not allowed; give functions that take a Measurement")
    return functions


class _Hook:
    """Calls a method of a watch. In copies and pickles of the model it does nothing.

    `torch.compile` does not compile it.
    """

    def __init__(self, method: Callable[..., None] | None) -> None:
        self._method = method

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, *args: Any) -> None:
        if self._method is not None:
            self._method(*args)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Hook:
        return _Hook(None)

    def __reduce__(self) -> tuple[type[_Hook], tuple[None]]:
        return _Hook, (None,)


def _unwrap(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The module to hook, and the module that gives names to the blocks.

    A compiled module is hooked on its wrapper, so that the hooks do not break its graph.
    """
    called = model
    while isinstance(called, _PARALLEL):
        called = called.module
    named: Any = called
    while isinstance(named, _PARALLEL) or _is_optimized(named):
        named = named._orig_mod if _is_optimized(named) else named.module
    return called, named


def _is_optimized(module: nn.Module) -> bool:
    return type(module).__name__ == "OptimizedModule"


def _is_compiled(model: nn.Module) -> bool:
    """Whether this call of the model runs compiled code, which hides single additions."""
    from torch._dynamo import eval_frame

    inside = getattr(eval_frame, "_in_optimized_module", False) or _in_compiled_function()
    return bool(inside) or any(
        _is_optimized(module) or module._compiled_call_impl is not None for module in model.modules()
    )


def _in_compiled_function() -> bool:
    """Whether the caller was wrapped by `torch.compile`, for example a whole training step."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "compile_wrapper" and "torch" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [tensor for group in optimizer.param_groups for tensor in group["params"]]
