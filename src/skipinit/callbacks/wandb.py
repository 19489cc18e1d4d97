"""Logs measurements as metrics of a run of Weights & Biases; needs the extra `wandb`."""

from __future__ import annotations

from typing import Any

from ..errors import ConfigError
from ..probing.history import Measurement

try:
    import wandb
except ImportError as error:
    raise ImportError("Weights & Biases is not installed; pip install 'skipinit[wandb]'") from error

_STEP = "balance/step"


class WandbWriter:
    """Logs each quantity of each block, such as `balance/branch_share/blocks.0`, over its own step axis.

    A measurement is complete one step after it was taken, so it does not use the run's own step counter.

    >>> skipinit.watch(model, every=100, writers=[WandbWriter()])

    Args:
        run: the run that `wandb.init` returned; the current run by default.
    """

    def __init__(self, run: Any = None) -> None:
        self.run: Any = run if run is not None else wandb.run
        if self.run is None:
            raise ConfigError("there is no current run of Weights & Biases; call wandb.init() first")
        self.run.define_metric("balance/*", step_metric=_STEP)

    def __call__(self, measurement: Measurement) -> None:
        """Log the numbers of one step."""
        values = {f"balance/{tag}": value for tag, value in measurement.scalars()}
        self.run.log({_STEP: measurement.step, **values})
