"""A callback for the Trainer of Lightning; needs the extra `lightning`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from ..probing.history import Measurement, WatchReport, check_settings
from ..probing.watch import Watch, Writer, check_writers

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError("Lightning is not installed; pip install 'skipinit[lightning]'") from error


class WatchCallback(Callback):
    """Watches the network that `training_step` calls first: the LightningModule or one of its children.

    Measurements go to the trainer's loggers and are saved with its checkpoints. A step is an update, as in
    `trainer.global_step`.

    >>> trainer = Trainer(callbacks=[WatchCallback(every=100)])

    Args:
        every: as for `skipinit.watch`.
        limit: as for `skipinit.watch`.
        writers: further functions that are called with each measurement, on the first process.
    """

    def __init__(self, every: int = 100, limit: int = 1000, writers: Iterable[Writer] = ()) -> None:
        check_settings(every, limit)
        self.watch: Watch | None = None
        self._settings = every, limit
        self._writers = check_writers(writers)
        self._handles: list[Any] = []
        self._state: dict[str, Any] | None = None
        self._trainer: Trainer | None = None

    def report(self) -> WatchReport:
        """The measurements so far."""
        remark = "training_step called neither the LightningModule nor one of its children."
        return WatchReport("", (), remark) if self.watch is None else self.watch.report()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Wait for the first call of the network."""
        self._trainer = trainer
        if self.watch is not None:  # A second `fit` continues, even with another module.
            self._state, self.watch = self.watch.state_dict(), None
        for module in (pl_module, *pl_module.children()):
            if next(module.parameters(), None) is not None:
                self._handles.append(module.register_forward_pre_hook(self._begin, with_kwargs=True))

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._stop_waiting()
        every, limit = self._settings
        leads = self._trainer is None or self._trainer.is_global_zero
        self.watch = Watch(module, every, limit, (self._log, *self._writers) if leads else ())
        if self._state is not None:
            self.watch.load_state_dict(self._state)
        self.watch.start(within_update=True)  # Lightning trains in the closure of the optimizer's step.
        self.watch.before_forward(module, args, kwargs)

    def _stop_waiting(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _log(self, measurement: Measurement) -> None:
        for logger in self._trainer.loggers if self._trainer is not None else ():
            logger.log_metrics(dict(measurement.scalars()), step=measurement.step)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove all hooks."""
        self._stop_waiting()
        if self.watch is not None:
            self.watch.stop()
        self._trainer = None

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Remove all hooks."""
        self.on_train_end(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """The state of the watch, for the checkpoint."""
        return (self._state or {}) if self.watch is None else self.watch.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the checkpoint."""
        self._state, self.watch = state_dict or None, None
