"""How long an epoch takes: as it did for trials of the kind that have finished here, else an estimate."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from ..config import TrainConfig
from ..data.catalog import describe
from ..provenance import Provenance
from ..training.records import Trial
from .speed import PASSES, Speed, measure_speed
from .workload import count_work


@dataclass(frozen=True)
class EpochCost:
    """Seconds of one epoch of one trial."""

    own: float
    """That it has the device for."""
    idle: float = 0.0
    """That the device mostly waits; on a GPU, where runs fill each other's gaps, a pack waits but once."""


def estimate_epoch(config: TrainConfig, speed: Speed) -> EpochCost:
    """Counted work: the arithmetic of training and test set, and a fixed time for each layer of each step."""
    data = describe(config.data)
    work = count_work(config.model, data.shape[1])
    macs = (PASSES * data.train_size + data.test_size) * work.macs
    layers = data.train_size / config.batch_size * work.layers
    return EpochCost(macs / speed.macs_per_second, layers * speed.seconds_per_layer)


class Pace:
    """Of trials on one device, given those that ran before."""

    def __init__(self, device: torch.device, trials: Iterable[Trial] = ()) -> None:
        self.device, self.on_gpu = device, device.type == "cuda"
        self.origin = Provenance.here(torch.cuda.get_device_name(device) if self.on_gpu else "cpu")
        self._measured: defaultdict[object, list[float]] = defaultdict(list)
        for trial in trials:
            if trial.state == "finished" and self._ran_here(trial):
                self._measured[_kind(trial.config)].append(trial.seconds / trial.config.epochs)

    def knows(self, config: TrainConfig) -> bool:
        """Whether trials of this kind have finished here."""
        return _kind(config) in self._measured

    def epoch(self, configs: Sequence[TrainConfig]) -> float:
        """Seconds in which every trial of a pack does an epoch."""
        return self._together([self._measure(config) or self._estimate(config) for config in configs])

    def estimated_epoch(self, configs: Sequence[TrainConfig]) -> float:
        """The same from counted work alone: what was measured says nothing of packs of other sizes."""
        return self._together([self._estimate(config) for config in configs])

    def _together(self, costs: Sequence[EpochCost]) -> float:
        idle = [cost.idle for cost in costs]
        return sum(cost.own for cost in costs) + (max(idle) if self.on_gpu else sum(idle))

    def _measure(self, config: TrainConfig) -> EpochCost | None:
        """A trial's seconds are its share of its pack's: nothing is left to share."""
        return EpochCost(median(self._measured[_kind(config)])) if self.knows(config) else None

    def _estimate(self, config: TrainConfig) -> EpochCost:
        return estimate_epoch(config, measure_speed(self.device, config.precision))

    def _ran_here(self, trial: Trial) -> bool:
        origin, here = trial.provenance, self.origin
        return origin is not None and (origin.machine, origin.device) == (here.machine, here.device)


def _kind(config: TrainConfig) -> object:
    """What decides a trial's pace."""
    return config.model, config.data, config.batch_size, config.precision
