"""Make tables and figures: train the trials they lack, measure networks at initialization."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from ..config import Precision
from ..errors import ConfigError, system_errors_explained, unknown_name
from ..files import check_folder
from ..notation import check_value
from ..sweeping.engine import Outcome, run_sweep
from ..sweeping.workers import start_interpreter, workers_at_once
from ..training.records import Emit, Event
from ..training.world import find_device
from .cells import ExhibitCell, grid_of, plan_cells
from .exhibits import METHODS, Exhibit, find_exhibits
from .presets import PRESETS, Preset, find_preset
from .theory_figures import measure_probes


@system_errors_explained()
def reproduce(
    names: str | Sequence[str],
    out: str | Path = "results",
    *,
    preset: str = "quick",
    methods: str | Sequence[str] = (),
    at: int | Sequence[int] = (),
    seeds: int | None = None,
    first_seed: int = 0,
    around_best: bool = False,
    precision: Precision | None = None,
    device: str = "auto",
    time_limit: float | None = None,
    progress: bool = True,
    observer: Emit | None = None,
) -> Outcome:
    """Measure and train what tables and figures of the paper need; call it again to resume.

        >>> skipinit.reproduce(["table1", "figure2"], "results", preset="quick").failures
        0

    Args:
        names: `table1` to `table7`, `figure2` to `figure8`, or `all`.
        out: folder for what is measured; several presets may share it.
        preset: how much to run: `smoke`, `demo`, `quick`, `brief`, `reduced` or `paper`.
        methods: only these columns; all if none is given.
        at: only these depths or batch sizes; all if none is given.
        seeds: at most this many runs at each rate.
        first_seed: seed of the first run, and of networks measured at initialization.
        around_best: instead of the whole grid of rates, only the paper's best and its two neighbours.
        precision: in place of the preset's.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        time_limit: seconds after which to write checkpoints and stop.
        progress: show a bar where standard error is a terminal, elsewhere a line each minute.
        observer: called with every event of the training (`skipinit.training.records`) after it is recorded.
    """
    chosen = find_preset(preset)
    names = [names] if isinstance(names, str) else names
    methods = [methods] if isinstance(methods, str) else methods
    at = [at] if isinstance(at, int) else at
    seeds = check_value("seeds", seeds, int | None, ", 1 or more")
    first_seed = check_value("first_seed", first_seed, int, "")
    if seeds is not None and seeds < 1:
        raise ConfigError(f"seeds {seeds} is not allowed; it must be 1 or more")
    exhibits = find_exhibits(names)
    planned = _planned_cells(exhibits, names, chosen, precision)
    _check_part(planned, preset, methods, at)
    cells = [
        cell.narrow(seeds, around_best, first_seed)
        for cell in planned
        if (not methods or cell.method.name in methods) and (not at or cell.at in at)
    ]
    if planned and not cells:
        raise ConfigError(f"no cell of preset {preset} has one of these methods at {', '.join(map(str, at))}")
    check_folder(Path(out))
    probes = tuple(dict.fromkeys(name for exhibit in exhibits for name in exhibit.probes))
    asked = (probes, Path(out), first_seed, str(find_device(device)), chosen.networks)
    with _Beside(observer, *asked) as beside:
        outcome = run_sweep(
            grid_of(cells),
            Path(out),
            device=device,
            time_limit=time_limit,
            progress=progress,
            observer=beside.take,
        )
        if not outcome.left:
            beside.wait()
    if not outcome.left:
        measure_probes(*asked, progress)
    return outcome


def _planned_cells(
    exhibits: Sequence[Exhibit], names: Sequence[str], preset: Preset, precision: Precision | None
) -> list[ExhibitCell]:
    """The cells of tables and figures; refuses one that was named and of which the preset has nothing."""
    for exhibit in exhibits:
        if exhibit.name in names and not exhibit.probes and not plan_cells(exhibit, preset):
            able = [each.name for each in PRESETS.values() if plan_cells(exhibit, each)]
            raise ConfigError(f"preset {preset.name} has nothing of {exhibit.name}; {', '.join(able)} have")
    return [cell for exhibit in exhibits for cell in plan_cells(exhibit, preset, precision)]


def _check_part(
    planned: Sequence[ExhibitCell], preset: str, methods: Sequence[str], at: Sequence[int]
) -> None:
    """Refuse a method, depth or batch size that none of the cells has."""
    for method in methods:
        if method not in METHODS:
            raise unknown_name("method", method, METHODS)
    if not planned and (methods or at):
        raise ConfigError("nothing is trained for these figures; leave out methods and at")
    known = list(dict.fromkeys(cell.method.name for cell in planned))
    places = [str(place) for place in sorted({cell.at for cell in planned})]
    for what, given, there in (
        ("method", [*methods], known),
        ("depth or batch size", [*map(str, at)], places),
    ):
        for each in given:
            if each not in there:
                listed = ", ".join(there)
                raise ConfigError(f"{what} {each} is not among the cells of preset {preset}: {listed}")


class _Beside:
    """A process that measures networks at initialization on a core that training leaves idle.

    Trainings end one by one, and the longest leaves the other cores idle. The process starts with the first
    event of a training: by then the data were found and the folder can be written.
    """

    def __init__(
        self,
        observer: Emit | None,
        names: Sequence[str],
        folder: Path,
        seed: int,
        device: str,
        most_networks: int | None,
    ) -> None:
        self.observer = observer
        self.useful = bool(names) and device == "cpu" and workers_at_once() > 1
        asked = f"{names!r}, Path({str(folder)!r}), {seed!r}, {device!r}, {most_networks!r}, False"
        self.code = (
            f"import os; os.nice(19); from pathlib import Path; from {__package__} import theory_figures; "
            f"theory_figures.measure_probes({asked})"
        )
        self.process: subprocess.Popen[bytes] | None = None

    def take(self, event: Event) -> None:
        """Start the process if it is useful and has not started; then call the observer."""
        if self.useful and self.process is None:
            # What fails there fails here, too, with its message.
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            self.process = start_interpreter(self.code, **quiet)
        if self.observer:
            self.observer(event)

    def wait(self) -> None:
        """Until it has measured everything, or failed."""
        if self.process:
            self.process.wait()

    def __enter__(self) -> _Beside:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
