"""Estimates what a sweep will take: its packs, their time and, on a GPU, their memory.

The time of an epoch is that of finished trials of the same kind on this machine. If there are none, a few
training steps of cheaper networks are timed: the time of a step of a Wide-ResNet is linear in its depth, so
networks of 10 and 28 layers are enough for one of 1000. On the CPU it is linear in the batch size, too.
"""

from __future__ import annotations

import heapq
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median

import torch

from ..config import TrainConfig
from ..data.catalog import DataSet, describe
from ..data.images import ImageSet
from ..errors import ConfigError
from ..nets.architectures import find_architecture
from ..nets.own import is_own
from ..provenance import Provenance
from ..training.checkpoint import Checkpoints
from ..training.loop import make_executor
from ..training.protocol import identity, settle, steps_per_epoch
from ..training.records import Trial
from ..training.run import Run
from ..training.sources import DeviceImages
from ..training.world import World, find_device, open_device
from .grid import PackKey, group, split
from .store import FILE, open_store
from .trainer import MEMORY_SHARE
from .workers import workers_at_once

_PASSES = 3
"""Passes of a training step: forward, backward to inputs, backward to weights. Scoring takes one."""
_LIKELY_PACK = 8
"""Trials that step together on a GPU if they fit; the sweep itself measures how many are best."""
_FEW_BLOCKS = (1, 4)
"""Blocks in each group of the two Wide-ResNets that are timed."""
_SMALLEST_BATCH = 2
"""On the CPU. Batch norm cannot train on one example where feature maps are single pixels."""
_MOST_STEPS, _MOST_SECONDS = 10, 0.03
"""The timing of a step ends when either is reached."""
_LONG_STEP = 0.01
"""Seconds; on a busy machine shorter steps are mostly noise."""


@dataclass(frozen=True)
class Step:
    """Time and memory of one training step of one run."""

    seconds: float
    memory: float | None = None
    """Bytes, without the data set's images; measured on a GPU only."""


Measure = Callable[[TrainConfig], Step]


@dataclass(frozen=True)
class Pack:
    """Trials that will step together."""

    key: PackKey
    trials: int
    seconds: float
    """The sum over its trials; on a GPU, where they step together, an upper bound."""
    memory: float | None
    """Bytes, without the data set's images; None on the CPU."""


@dataclass(frozen=True)
class Forecast:
    """The rest of a sweep, and how long it takes."""

    device: str
    results: int
    """Trials that have a result already."""
    resumed: int
    """Trials that resume from a checkpoint."""
    measured: int
    """Trials timed by finished ones; the others are timed by a few training steps."""
    at_once: int
    """Packs that are trained at the same time."""
    packs: tuple[Pack, ...]

    @property
    def trials(self) -> int:
        """Trials left to train."""
        return sum(pack.trials for pack in self.packs)

    @property
    def seconds(self) -> float:
        """Until the last pack has ended, if each starts as soon as there is room."""
        ends = [0.0] * self.at_once
        for pack in self.packs:
            heapq.heapreplace(ends, ends[0] + pack.seconds)
        return max(ends)


def forecast(
    trials: Sequence[TrainConfig],
    out: Path,
    device: str = "auto",
    pack_size: int | None = None,
    measure: Measure | None = None,
) -> Forecast:
    """The plan of `run_sweep` for these trials and this folder; `measure` replaces `measure_run`."""
    if pack_size is not None and pack_size < 1:
        raise ConfigError(f"pack_size {pack_size} is not allowed; it must be 1 or more")
    stored = _stored_trials(out)
    pace = Pace(find_device(device), stored.values(), measure)
    checkpoints = Checkpoints(out)
    ids = {config: identity(config) for config in trials}
    done = {config for config, id in ids.items() if id in stored and stored[id].has_result}
    waiting = [(config, checkpoints.position(ids[config])) for config in trials if config not in done]
    packs = []
    for key, members in group(waiting).items():
        epochs = key.epochs - key.position / steps_per_epoch(describe(key.data).train_size, members[0])
        for pack in split(members, pack_size or pace.likely_size(members)):
            seconds = epochs * sum(pace.epoch(config) for config in pack)
            packs.append(Pack(key, len(pack), seconds, pace.memory(pack)))
    return Forecast(
        device=pace.origin.device,
        results=len(trials) - len(waiting),
        resumed=sum(position > 0 for _, position in waiting),
        measured=sum(pace.knows(config) for config, _ in waiting),
        at_once=1 if pace.on_gpu else min(workers_at_once(), max(1, len(packs))),
        packs=tuple(packs),
    )


def _stored_trials(out: Path) -> dict[str, Trial]:
    if not (out / FILE).exists():
        return {}
    with open_store(out) as store:
        return {trial.id: trial for trial in store.trials()}


class Pace:
    """Time and memory of trials on one device, from the trials that have finished there."""

    def __init__(
        self, device: torch.device, trials: Iterable[Trial] = (), measure: Measure | None = None
    ) -> None:
        self.device, self.on_gpu = device, device.type == "cuda"
        self.origin = Provenance.here(World(device).device_name)
        timed = cache(measure or (lambda config: measure_run(config, device)))
        self._step = cache(lambda kind: estimate_step(kind, timed, scale_batch=not self.on_gpu))
        self._epoch = cache(lambda kind: epoch_seconds(kind, self._step(kind)))
        self._finished: defaultdict[TrainConfig, list[float]] = defaultdict(list)
        for trial in trials:
            if trial.state == "finished" and self._ran_here(trial):
                self._finished[_kind(trial.config)].append(trial.seconds / trial.config.epochs)

    def knows(self, config: TrainConfig) -> bool:
        """Whether trials of this kind have finished here."""
        return _kind(config) in self._finished

    def epoch(self, config: TrainConfig) -> float:
        """Seconds of an epoch of one trial."""
        kind = _kind(config)
        return median(self._finished[kind]) if kind in self._finished else self._epoch(kind)

    def memory(self, pack: Sequence[TrainConfig]) -> float | None:
        """Bytes of all runs of a pack; None on the CPU."""
        return sum(self._step(_kind(config)).memory or 0 for config in pack) if self.on_gpu else None

    def likely_size(self, configs: Sequence[TrainConfig]) -> int:
        """How many of these trials may step together."""
        if not self.on_gpu:
            return 1
        limit = MEMORY_SHARE * torch.cuda.get_device_properties(self.device).total_memory
        largest = max(self._step(_kind(config)).memory or 1 for config in configs)
        return max(1, min(_LIKELY_PACK, int(limit / largest)))

    def _ran_here(self, trial: Trial) -> bool:
        origin, here = trial.provenance, self.origin
        return origin is not None and (origin.machine, origin.device) == (here.machine, here.device)


def _kind(config: TrainConfig) -> TrainConfig:
    """The config with only those options that decide how fast a trial is."""
    return TrainConfig(
        model=settle(config).model,
        data=config.data,
        lr=1.0,
        batch_size=config.batch_size,
        epochs=1,
        precision=config.precision,
        clean_train_loss=config.clean_train_loss,
        convert=config.convert,
    )


def epoch_seconds(config: TrainConfig, step: Step) -> float:
    """Seconds of an epoch's training steps and of the evaluation after it."""
    data = describe(config.data)
    scored = data.test_size + (data.train_size if config.clean_train_loss else 0)
    steps = steps_per_epoch(data.train_size, config) + scored / (_PASSES * config.batch_size)
    return steps * step.seconds


def estimate_step(config: TrainConfig, measure: Measure, scale_batch: bool) -> Step:
    """A step, estimated from steps of shallower networks and, with `scale_batch`, of smaller batches."""
    at_its_batch = (lambda config: _from_small_batches(config, measure)) if scale_batch else measure
    if is_own(config.model.name):
        return at_its_batch(config)
    architecture = find_architecture(config.model.name)
    if architecture.family != "wide-resnet":
        return at_its_batch(config)
    names = [f"wrn{6 * few + 4}_{architecture.widen}" for few in _FEW_BLOCKS]
    steps = [at_its_batch(replace(config, model=replace(config.model, name=name))) for name in names]
    return _line(_FEW_BLOCKS, steps, architecture.groups[0])


def _from_small_batches(config: TrainConfig, measure: Measure) -> Step:
    """A step takes a fixed time and a time per example; neither depends on ghost batches."""
    small = replace(config, model=replace(config.model, ghost_batch=None), batch_size=_SMALLEST_BATCH)
    batches, steps = [_SMALLEST_BATCH], [measure(small)]
    enough = max(2 * steps[0].seconds, _LONG_STEP)
    while len(steps) < 2 or (batches[-1] < config.batch_size and steps[-1].seconds < enough):
        batches.append(4 * batches[-1])
        steps.append(measure(replace(small, batch_size=batches[-1])))
    return _line(batches, steps, config.batch_size)


def _line(places: Sequence[int], steps: Sequence[Step], place: int) -> Step:
    """The step at `place` on the line through the first and the last; constant if noise makes it fall."""
    first, last = steps[0], steps[-1]
    beyond = (place - places[-1]) / (places[-1] - places[0])
    seconds = last.seconds + beyond * max(last.seconds - first.seconds, 0)
    if first.memory is None or last.memory is None:
        return Step(seconds)
    return Step(seconds, last.memory + beyond * max(last.memory - first.memory, 0))


def measure_run(config: TrainConfig, device: torch.device) -> Step:
    """Measure a step of a run on random images: the data set is not needed."""
    entry, on_gpu = describe(config.data), device.type == "cuda"
    # More epochs, of one batch each, than are timed; a low rate, so that the run does not diverge.
    config = settle(replace(config, epochs=100, lr=1e-3))
    with open_device(device) as world:
        images = _draw_images(entry, config.batch_size, device)
        if on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() if on_gpu else 0
        source = DeviceImages(entry, images).source(config, world)
        source.begin(0, 0)
        executor = make_executor([Run(config, source, world, entry.micro_batch)], images_on_device=True)
        seconds = fastest(executor.step, device)
        return Step(seconds, torch.cuda.max_memory_allocated() - before if on_gpu else None)


def _draw_images(entry: DataSet, count: int, device: torch.device) -> ImageSet:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, *entry.shape), dtype=torch.uint8, generator=generator).to(device)
    labels = torch.zeros(count, dtype=torch.int64, device=device)
    return ImageSet(entry.name, entry.num_classes, images, labels, images, labels)


def fastest(step: Callable[[], object], device: torch.device) -> float:
    """Seconds of the fastest of a few steps; slow steps are timed fewer times."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        step()  # compiles and captures
        torch.cuda.synchronize(device)
    taken: list[float] = []
    while len(taken) < _MOST_STEPS and sum(taken) < _MOST_SECONDS:
        started = time.perf_counter()
        step()
        if on_gpu:
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - started)
    return min(taken)
