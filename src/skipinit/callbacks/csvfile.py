"""Writes measurements to a CSV file during training."""

from __future__ import annotations

import csv
from pathlib import Path

from ..errors import DataError
from ..files import append_whole, read_whole, write_whole
from ..probing.history import CSV_COLUMNS, Measurement
from ..probing.rendering import csv_text


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
        kept = []
        if self.path.exists():
            reader = csv.DictReader(read_whole(self.path).decode(errors="replace").splitlines())
            if tuple(reader.fieldnames or ()) not in ((), CSV_COLUMNS):
                raise DataError(f"{self.path} has other columns than a watch; give another path")
            try:
                kept = [row for row in reader if int(row["step"]) < step]
            except ValueError as error:
                raise DataError(f"{self.path} is damaged ({error}); give another path") from error
        write_whole(self.path, lambda file: file.write(csv_text(CSV_COLUMNS, kept).encode()))
