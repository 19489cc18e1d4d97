"""Trains the trials of a sweep that have no result yet, on this machine or on a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from ..config import TrainConfig
from ..data.catalog import describe
from ..errors import ConfigError, need, system_errors_explained, unknown_name
from ..nets.own import is_own
from ..notation import check_value, count_text
from ..training.checkpoint import Checkpoints
from ..training.control import Stop, check_seconds, steps_bar, stopped_by_signals
from ..training.own_models import make_own
from ..training.protocol import identity, settle
from ..training.records import RESULTS, Emit
from ..training.sources import open_data
from ..training.world import find_device, open_device
from .dispatch import Dispatcher, Keeper
from .exchange import refuse_other_trials
from .grid import Grid, expand, read_grid, split
from .store import FILE, Store, open_store, open_writer
from .trainer import Options, Trainer, Workplace
from .workers import Workers, workers_at_once


def train_here(
    device: torch.device,
    groups: Sequence[Sequence[TrainConfig]],
    options: Options,
    keeper: Keeper,
    stop: Stop,
) -> None:
    """Train on a GPU, or on the CPU in a process per core; a single share is trained in this process."""
    shares = [share for members in groups for share in split(members, options.pack_size or 1)]
    count = min(len(shares), workers_at_once()) if device.type == "cpu" else 1
    if count > 1:
        with closing(Workers(count)) as workers:
            Dispatcher(workers, options, keeper).train(shares, stop)
        return
    with open_device(device) as world:
        load, tick = keeper.checkpoints.load_if_whole, keeper.bar.tick
        trainer = Trainer(Workplace(world), options, load, keeper.take, stop, tick)
        for members in groups:
            trainer.train(members)


ENGINES = ("local", "ray")
Engine = Callable[[Sequence[Sequence[TrainConfig]], Options, Keeper, Stop], None]
"""Trains groups of trials until each has a result or a failure, recorded by the keeper, or until a stop."""


@dataclass(frozen=True)
class Outcome:
    """The result of `sweep`: how many trials are in which state."""

    results: int
    """Trials with a result: finished or diverged."""
    failures: int
    """Trials that raised."""
    left: int
    """Trials without a result."""
    interrupted: bool = False
    """Whether a signal, not the time limit, is why some are left."""

    @property
    def trials(self) -> int:
        """All of them."""
        return self.results + self.failures + self.left

    def __str__(self) -> str:
        results, failures = count_text(self.results, "result"), count_text(self.failures, "failure")
        return f"{results}, {failures}, {self.left:,} left"


@system_errors_explained()
def sweep(
    axes: Mapping[str, object] | str | Path,
    out: str | Path,
    *,
    device: str = "auto",
    engine: str = "local",
    time_limit: float | None = None,
    pack_size: int | None = None,
    progress: bool = True,
    observer: Emit | None = None,
) -> Outcome:
    """Train every combination of the given values, many on a GPU or one per core; call it again to resume.

        >>> axes = {"model": "wrn10_1", "data": "digits", "epochs": 1, "lr": "2^-3,2^-2"}
        >>> skipinit.sweep(axes, "runs/a").results
        2

    Args:
        axes: values by the name of their axis, each a list, one value, or text such as `2^-6..2^0`; or the
            path of a TOML file. `model`, `data` and `lr` are needed; the other defaults are the protocol's.
        out: folder of the sweep.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        engine: `local`, or `ray` for the cluster that RAY_ADDRESS names (extra `cluster`).
        time_limit: seconds after which to write checkpoints and stop.
        pack_size: trials that step together on a GPU; measured if not given.
        progress: show a bar where standard error is a terminal, elsewhere a line each minute.
        observer: called with every event (`skipinit.training.records`) after it is recorded.
    """
    grid = expand(axes) if isinstance(axes, Mapping) else read_grid(Path(axes))
    return run_sweep(
        grid,
        Path(out),
        device=device,
        engine=engine,
        time_limit=time_limit,
        pack_size=pack_size,
        progress=progress,
        observer=observer,
    )


def run_sweep(
    grid: Grid,
    out: Path,
    *,
    device: str = "auto",
    engine: str = "local",
    time_limit: float | None = None,
    pack_size: int | None = None,
    checkpoint_seconds: float = 60.0,
    progress: bool = True,
    stop: Stop | None = None,
    observer: Emit | None = None,
) -> Outcome:
    """Train every trial of the grid that has no result yet; the same call resumes.

    Args: those of `sweep`, and:
        grid: the trials.
        checkpoint_seconds: least time between two checkpoints of a pack.
        stop: a request to stop besides signals, in place of the time limit.
    """
    pack_size = check_value("pack_size", pack_size, int | None, ", 1 or more")
    if pack_size is not None and pack_size < 1:
        raise ConfigError(f"pack_size {pack_size} is not allowed; it must be 1 or more")
    checkpoint_seconds = check_seconds("checkpoint_seconds", checkpoint_seconds)
    stop = stop or Stop(time_limit)
    wanted = {identity(config): settle(config) for config in grid.trials}
    with ExitStack() as stack:
        if (out / FILE).is_file():
            with open_store(out) as store:
                refuse_other_trials(store, wanted)
        train = stack.enter_context(_open_engine(engine, device))
        if engine == "local":
            _require(wanted, out)
        writer = stack.enter_context(open_writer(out))
        stack.enter_context(stopped_by_signals(stop))
        owing = _owing(wanted, writer)
        writer.add(owing)
        with steps_bar(sum(config.epochs for config in owing), progress) as bar:
            bar.update(0, "epochs of all trials")
            keeper = Keeper(writer, Checkpoints(out), bar, owing, observer=observer)
            train(keeper.groups(owing), Options(pack_size, checkpoint_seconds), keeper, stop)
    with open_store(out) as store:  # closed: a failure that was not tried again is one as before
        states = Counter(state for id, state in store.states().items() if id in wanted)
    results = sum(states[state] for state in RESULTS)
    left = len(wanted) - results - states["failed"]
    return Outcome(results, states["failed"], left, interrupted=left > 0 and stop.signal is not None)


def _owing(wanted: Mapping[str, TrainConfig], store: Store) -> list[TrainConfig]:
    """The trials without a result. Failed ones are tried again: the cause may be fixed by now."""
    states = store.states()
    return [config for id, config in wanted.items() if states.get(id) not in RESULTS]


def _require(wanted: Mapping[str, TrainConfig], out: Path) -> None:
    """Fetch missing data and build users' own models once, before anything is written."""
    owing = list(wanted.values())
    if (out / FILE).is_file():
        with open_store(out) as store:
            owing = _owing(wanted, store)
    for name in dict.fromkeys(config.data for config in owing):
        open_data(name, torch.device("cpu"))
    own = {(c.model.name, c.data, c.convert): c for c in owing if is_own(c.model.name)}
    for config in own.values():
        make_own(config, describe(config.data).shape)


def _open_engine(name: str, device: str) -> AbstractContextManager[Engine]:
    """The engine; refuses a device that it does not have before anything is written."""
    if name not in ENGINES:
        raise unknown_name("engine", name, ENGINES)
    if name == "local":
        return nullcontext(partial(train_here, find_device(device)))
    need("cluster", "engine ray")
    from .cluster import open_cluster

    return open_cluster(device)
