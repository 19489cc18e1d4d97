"""Writes measurements as scalars of TensorBoard; needs the extra `tensorboard`."""

from __future__ import annotations

from pathlib import Path

from ..probing.history import Measurement

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError as error:
    raise ImportError("TensorBoard is not installed; pip install 'skipinit[tensorboard]'") from error


class TensorBoardWriter:
    """Writes each quantity of each block, such as `branch_share/blocks.0`.

    >>> skipinit.watch(model, every=100, writers=[TensorBoardWriter("runs/balance")])

    Args:
        log: a folder, or an existing `SummaryWriter`.
    """

    def __init__(self, log: str | Path | SummaryWriter) -> None:
        self.log = SummaryWriter(str(log)) if isinstance(log, (str, Path)) else log

    def __call__(self, measurement: Measurement) -> None:
        """Write the numbers of one step."""
        for tag, value in measurement.scalars():
            self.log.add_scalar(tag, value, measurement.step)
        self.log.flush()
