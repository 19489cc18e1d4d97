"""A run's epochs as TensorBoard events (extra `tensorboard`)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from ..errors import ConfigError
from .records import EpochRecord


class Events:
    """Writes each record's numbers under their own names."""

    def __init__(self, folder: Path, epochs_done: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError("TensorBoard is not installed; pip install 'skipinit[tensorboard]'") from None
        self.writer = SummaryWriter(str(folder), purge_step=epochs_done + 1)

    def add(self, record: EpochRecord) -> None:
        """One point on each curve."""
        for name, value in asdict(record).items():
            if name != "epoch" and value is not None:
                self.writer.add_scalar(name, value, record.epoch)
        self.writer.flush()
