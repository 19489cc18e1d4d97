"""Writers for `skipinit.watch`: a CSV file, TensorBoard, Weights & Biases.

A writer is a function of one measurement. Those of other tools import the tool when they are made, so that
this module needs no extra.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, DataError, need
from ..files import append_whole, read_whole, write_whole
from ..probing.history import CSV_COLUMNS, Measurement
from ..probing.rendering import csv_text

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class CsvWriter:
    """Appends one line per block to a CSV file, at each measured step.

    If a resumed training measures a step again, its lines replace those of that step and of all later ones.

    >>> skipinit.watch(model, every=100, writers=[CsvWriter("balance.csv")])
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._last: int | None = None

    def __call__(self, measurement: Measurement) -> None:
        """Write the lines of one step."""
        if self._last is None or measurement.step <= self._last:
            self._drop_from(measurement.step)
        rows = ({"step": measurement.step, **row.to_dict()} for row in measurement.rows)
        append_whole(self.path, csv_text(CSV_COLUMNS, rows).partition("\n")[2].encode())
        self._last = measurement.step

    def _drop_from(self, step: int) -> None:
        """Drop this step and later ones from an existing file; create the file if there is none."""
        kept = [row for row in self._rows() if int(row[0]) < step]
        rows = [dict(zip(CSV_COLUMNS, row, strict=True)) for row in kept]
        write_whole(self.path, lambda file: file.write(csv_text(CSV_COLUMNS, rows).encode()))

    def _rows(self) -> list[list[str]]:
        """The rows of an existing file, without its header."""
        if not self.path.exists():
            return []
        header, *rows = [*csv.reader(read_whole(self.path).decode(errors="replace").splitlines())] or [[]]
        if tuple(header) not in ((), CSV_COLUMNS):
            raise DataError(f"{self.path} has other columns than a watch; give another path")
        for number, row in enumerate(rows, 2):
            if len(row) != len(CSV_COLUMNS) or not row[0].isdecimal():
                raise DataError(f"{self.path} is damaged in line {number}; mend it or give another path")
        return rows


class TensorBoardWriter:
    """Writes each quantity of each block, such as `branch_share/blocks.0`.

    >>> skipinit.watch(model, every=100, writers=[TensorBoardWriter("runs/balance")])

    Args:
        log: a folder, which needs the extra `tensorboard`, or an existing `SummaryWriter`.
    """

    def __init__(self, log: str | Path | SummaryWriter) -> None:
        self.log = _summary_writer(log) if isinstance(log, (str, Path)) else log

    def __call__(self, measurement: Measurement) -> None:
        """Write the numbers of one step."""
        for tag, value in measurement.scalars():
            self.log.add_scalar(tag, value, measurement.step)
        self.log.flush()


def _summary_writer(folder: str | Path) -> SummaryWriter:
    need("tensorboard", "TensorBoardWriter")
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder))


_STEP = "balance/step"


class WandbWriter:
    """Logs each quantity of each block, such as `balance/branch_share/blocks.0`, over its own step axis.

    A measurement is complete one step after it was taken, so it does not use the run's own step counter.

    >>> skipinit.watch(model, every=100, writers=[WandbWriter()])

    Args:
        run: the run that `wandb.init` returned; the current run by default.
    """

    def __init__(self, run: Any = None) -> None:
        self.run: Any = _current_run() if run is None else run
        self.run.define_metric("balance/*", step_metric=_STEP)

    def __call__(self, measurement: Measurement) -> None:
        """Log the numbers of one step."""
        values = {f"balance/{tag}": value for tag, value in measurement.scalars()}
        self.run.log({_STEP: measurement.step, **values})


def _current_run() -> Any:
    need("wandb", "WandbWriter")
    import wandb

    if wandb.run is None:
        raise ConfigError("there is no current run of Weights & Biases; call wandb.init() first")
    return wandb.run
