"""Trains trials on one device, pack by pack, and emits events.

The receiver of the events records them, in this process or on another machine. The best size of a pack is
measured: it is doubled while it fits into memory and that makes all runs together clearly faster.
"""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO

import torch

from ..config import TrainConfig
from ..provenance import Provenance
from ..training.checkpoint import RunState, curve_in, pack_state, restore_run, restoring, unpack_if_whole
from ..training.control import Stop
from ..training.loop import make_executor, train_together
from ..training.protocol import identity
from ..training.records import (
    Diverged,
    Emit,
    EpochRecord,
    Event,
    Failed,
    Finished,
    Kept,
    Measured,
    Recorded,
    Started,
)
from ..training.run import Run
from ..training.sources import Data, open_data
from ..training.world import World, find_device, open_device
from .grid import group, split

MEMORY_SHARE = 0.8
"""The part of the device's memory that a pack may use."""
_LARGEST = 64
_WORTH_IT = 1.05
"""A larger pack must be faster by this factor; otherwise its trials only finish later."""
_STEPS = 20

Load = Callable[[str], tuple[RunState | None, float]]
"""A trial's newest state and its seconds, by its identity; None if it must start anew."""


@dataclass(frozen=True)
class Options:
    """Options of training that do not change results."""

    pack_size: int | None
    """Trials that step together; measured if not given."""
    checkpoint_seconds: float
    """Least time between two checkpoints of a pack."""


@dataclass(frozen=True)
class Share:
    """Trials for one worker, with options and checkpoints."""

    configs: Sequence[TrainConfig]
    """They share data, batch size, epochs and position."""
    options: Options
    device: str
    """`cpu`, or `cuda` for the GPU that the worker has."""
    contents: dict[str, bytes]
    """Checkpoints by the trials' identities, empty if there is none. Workers cannot always read our disk."""


def train_share(share: Share, emit: Emit, stop: Stop) -> None:
    """Train a share in the process of a worker."""
    contents = dict(share.contents)

    def load(id: str) -> tuple[RunState | None, float]:
        return unpack_if_whole(BytesIO(contents[id])) if contents[id] else (None, 0.0)

    def remember(event: Event) -> None:
        if isinstance(event, Kept):  # if the pack raises, its trials resume from here
            contents[event.id] = event.content
        elif isinstance(event, Finished | Diverged | Failed):
            del contents[event.id]  # the share of a GPU may have hundreds of trials
        emit(event)

    with open_device(find_device(share.device)) as world:
        Trainer(_workplace(world), share.options, load, remember, stop).train(share.configs)


class Workplace:
    """A device, and the data set that was last used there."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.provenance = Provenance.here(world.device_name)
        self._data: tuple[str, Data] | None = None

    def data(self, name: str) -> Data:
        """A data set; it stays loaded until another one is asked for."""
        if self._data is None or self._data[0] != name:
            self._data = None  # two may not fit
            self._data = name, open_data(name, self.world.device)
        return self._data[1]

    def make_run(self, config: TrainConfig, micro_batch: int | None = None) -> Run:
        """A run at its start."""
        data = self.data(config.data)
        return Run(config, data.source(config, self.world), self.world, micro_batch or data.micro_batch)


@lru_cache(maxsize=1)
def _workplace(world: World) -> Workplace:
    """Cached: the next share of a worker often has the same data."""
    return Workplace(world)


class Trainer:
    """Trains packs one after the other until all have results or `stop` is requested."""

    def __init__(
        self,
        place: Workplace,
        options: Options,
        load: Load,
        emit: Emit,
        stop: Stop,
        tick: Callable[[], object] = lambda: None,
    ) -> None:
        self.place, self.options, self.load, self.emit, self.stop = place, options, load, emit, stop
        self.tick = tick

    def train(self, configs: Sequence[TrainConfig]) -> None:
        """Train trials that share data, batch size, epochs and position."""
        if self.stop.requested:
            return
        self.place.data(configs[0].data)  # data that cannot be read is no failure of a trial
        for pack in split(configs, self.options.pack_size or best_size(configs, self.place)):
            if self.stop.requested:
                return
            self._train_pack(pack)

    def _train_pack(self, configs: Sequence[TrainConfig]) -> None:
        """Train some trials together. If that raises, train each alone: one that raises again has failed.

        A pack that does not fit into the device's memory is halved.
        """
        _free_memory(self.place.world)
        data, size = self.place.data(configs[0].data), 0
        reporter = Reporter(self.emit, self.options.checkpoint_seconds, tick=self.tick)
        try:
            train_together([self._open(config, reporter) for config in configs], data, reporter, self.stop)
        except Exception as error:
            if reporter.emitting:  # not an error of a trial: events cannot be recorded
                raise
            if len(configs) == 1:
                id = identity(configs[0])
                reason = str(error).partition("\n")[0] or type(error).__name__
                reporter.charge()
                self.emit(Failed(id, reason, traceback.format_exc(), reporter.seconds.get(id, 0.0)))
            else:
                size = len(configs) // 2 if isinstance(error, torch.OutOfMemoryError) else 1
        if size:  # not in the handler: there, the error keeps the runs and their memory alive
            left = [config for config in configs if identity(config) not in reporter.ended]
            for members in group([(config, self._position(config)) for config in left]).values():
                for pack in split(members, size):
                    self._train_pack(pack)

    def _position(self, config: TrainConfig) -> int:
        state, _ = self.load(identity(config))
        return 0 if state is None else int(state["step"])

    def _open(self, config: TrainConfig, reporter: Reporter) -> Run:
        """The run of a trial at its checkpoint. Errors in here are the trial's, so it has started before."""
        state, seconds = self.load(identity(config))
        reporter.start(config, self.place, state, seconds)
        run = self.place.make_run(config)
        if state is not None:
            with restoring("its file in checkpoints"):
                restore_run(run, state)
        return run


def choose_size(
    configs: Sequence[TrainConfig], speed: Callable[[Sequence[TrainConfig]], float | None]
) -> int:
    """How many of these trials to step together, by trying 1, 2, 4, ... of them.

    The search ends after two doublings in a row without a gain. One is not enough: two runs of 100 layers
    with batch norm were measured to be no faster together than in turn, four were 1.7 times as fast.

    Args:
        configs: the trials.
        speed: how fast some of them are together, in any unit; None if they do not fit.
    """
    most = min(len(configs), _LARGEST)
    size, best, tried, in_vain = 1, 0.0, 1, 0
    while in_vain < 2 and (found := speed(configs[:tried])) is not None:
        if found >= _WORTH_IT * best:
            size, best, in_vain = tried, found, 0
        else:
            in_vain += 1
        if tried == most:
            break
        tried = min(2 * tried, most)
    return size


def best_size(configs: Sequence[TrainConfig], place: Workplace) -> int:
    """How many of these trials to step together on this device, measured; one on the CPU."""
    if place.world.device.type == "cpu":
        return 1
    return choose_size(configs, lambda some: _steps_per_second(some, place))


def _steps_per_second(configs: Sequence[TrainConfig], place: Workplace) -> float | None:
    """Steps per second of all runs together; None if they do not fit, or one of them raises."""
    device = place.world.device
    _free_memory(place.world)
    torch.cuda.reset_peak_memory_stats(device)
    try:
        runs = [place.make_run(config) for config in configs]
        for run in runs:
            run.source.begin(0, 0)
        pack = make_executor(runs, place.data(configs[0].data).on_device)
        pack.step()
        torch.cuda.synchronize(device)
        started = time.perf_counter()
        for _ in range(_STEPS):
            pack.step()
        torch.cuda.synchronize(device)
        elapsed = time.perf_counter() - started
    except Exception:  # a trial that raises will do so again when it is trained, and that is its failure
        return None
    memory = torch.cuda.get_device_properties(device).total_memory
    # Reserved, not allocated: a graph is captured run by run, but each run keeps its stream's memory.
    if torch.cuda.max_memory_reserved(device) > MEMORY_SHARE * memory:
        return None
    return _STEPS * len(configs) / elapsed


def _free_memory(world: World) -> None:
    """Free what earlier runs had on a GPU.

    A compiled module refers to itself, so it stays until Python's collector comes, which counts objects, not
    their memory. What stays would count as memory of the next pack.
    """
    if world.device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


class Reporter:
    """Callbacks of the training loop that emit epochs, ends and checkpoints."""

    def __init__(
        self,
        emit: Emit,
        checkpoint_seconds: float,
        keep_last: bool = False,
        tick: Callable[[], object] = lambda: None,
    ) -> None:
        self._emit, self.checkpoint_seconds, self.keep_last = emit, checkpoint_seconds, keep_last
        self.tick = tick
        self.fresh: list[tuple[str, EpochRecord]] = []
        self.ended: set[str] = set()
        self.diverged_at: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        """Of the device that each trial has had."""
        self.emitting = False
        self.charged_at = self.kept_at = time.monotonic()

    def emit(self, event: Event) -> None:
        """Emit an event; if that raises, it is not an error of a trial."""
        self.emitting = True
        self._emit(event)
        self.emitting = False

    def start(self, config: TrainConfig, place: Workplace, state: RunState | None, seconds: float) -> None:
        """A trial starts, or resumes from a state."""
        # The run's last epoch is recorded with its result.
        curve = () if state is None else tuple(curve_in(state)[: config.epochs - 1])
        classes = place.data(config.data).num_classes
        self.seconds[identity(config)] = seconds
        self.emit(Started(identity(config), place.provenance, classes, curve))

    def advanced(self, runs: Sequence[Run], position: int) -> None:
        """Only epochs are recorded: it is said that training goes on."""
        self.tick()

    def recorded(self, run: Run, record: EpochRecord) -> None:
        """Collect the epoch until all runs of the pack have finished it."""
        self.fresh.append((identity(run.config), record))

    def diverged(self, run: Run, step: int) -> None:
        """Emit the result; the last epoch is the one before."""
        self.charge()
        self._measured(run)
        id = identity(run.config)
        last = run.records[-1] if run.records else None
        self.emit(Diverged(id, last, step, self.seconds[id]))
        self.ended.add(id)
        self.diverged_at[id] = step

    def paused(self, runs: Sequence[Run], last: bool) -> None:
        """Emit the epochs of all runs at once, then results, then checkpoints of the other runs."""
        self.charge()
        for run in runs:
            self._measured(run)
        done = {identity(run.config): run for run in runs if run.position == run.total_steps}
        trained = {id for id, _ in self.fresh}
        going_on = tuple((id, epoch) for id, epoch in self.fresh if id not in done)
        if going_on:
            self.emit(Recorded(going_on))
        for id, run in done.items():
            if self.keep_last and id in trained:  # else it was restored from its last checkpoint
                self._keep(run)
            self.emit(Finished(id, run.records[-1], run.position, self.seconds[id]))
        if last or time.monotonic() - self.kept_at >= self.checkpoint_seconds:
            for run in runs:
                if identity(run.config) not in done:
                    self._keep(run)
            self.kept_at = time.monotonic()
        self.fresh = []
        self.ended |= done.keys()

    def _measured(self, run: Run) -> None:
        """Emit measurements, before a checkpoint that is beyond their steps."""
        if run.measurements:
            self.emit(Measured(identity(run.config), tuple(run.measurements)))
            run.measurements.clear()

    def _keep(self, run: Run) -> None:
        id = identity(run.config)
        self.emit(Kept(id, pack_state(run, self.seconds[id])))

    def charge(self) -> None:
        """Divide the time since the last charge among the trials that have used the device."""
        now = time.monotonic()
        sharing = self.seconds.keys() - self.ended
        for id in sharing:
            self.seconds[id] += (now - self.charged_at) / len(sharing)
        self.charged_at = now
