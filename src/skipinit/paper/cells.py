"""The cells of a table or figure: the trials that fill each under a preset, and their results.

The trials of a cell share everything but rate and seed. Tables 1 and 3 are two readings of the same trials,
as are the two metrics of Figures 3 and 4; a trial asked for twice is run once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from ..config import Precision, TrainConfig
from ..data.catalog import describe
from ..nets.schemes import SCHEMES
from ..notation import count_text
from ..sweeping.grid import Grid
from ..sweeping.results import CellResult, cells
from ..sweeping.summary import Metric, Trim
from ..training.protocol import make_train_config
from ..training.records import Trial
from .exhibits import METHODS, RATE_GRID, Exhibit, Method, Place, Result
from .presets import FEWEST_EPOCHS, Effort, Preset

DAMPENING = 0.9
"""The paper's rates are those of damped momentum."""


@dataclass(frozen=True)
class ExhibitCell:
    """One place of a table or figure under a preset: the trials it takes, and those that were recorded."""

    exhibit: Exhibit
    method: Method
    at: int
    """The depth or batch size."""
    preset: Preset
    config: TrainConfig
    """The config of its trials, at the rate expected to be best and seed 0."""
    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    recorded: tuple[Trial, ...] = ()
    """Trials of this config that were read, at any rate and seed."""
    earlier: str = ""
    """How the protocol of the recorded trials differs from today's, in words; empty where it does not."""

    @property
    def trials(self) -> Iterator[TrainConfig]:
        """The trials to train, every rate once before any rate twice."""
        return (replace(self.config, lr=lr, seed=seed) for seed in self.seeds for lr in self.rates)

    def narrow(self, seeds: int | None, around_best: bool, first_seed: int) -> ExhibitCell:
        """The same cell with at most `seeds` seeds; `around_best` keeps three rates of a whole grid."""
        runs = min(len(self.seeds), seeds or len(self.seeds))
        rates = self.rates
        if around_best and rates == RATE_GRID:
            rates = tuple(lr for lr in rates if self.config.lr / 2 <= lr <= self.config.lr * 2)
        return replace(self, rates=rates, seeds=tuple(range(first_seed, first_seed + runs)))

    @property
    def label(self) -> str:
        """The name of its set of measurements: the preset, data other than the paper's, another precision."""
        words = [self.preset.data, None if self.own_precision else self.config.precision]
        given = ", ".join(word for word in words if word)
        return f"{self.preset.name} ({given})" if given else self.preset.name

    @property
    def own_precision(self) -> bool:
        """Whether it was trained at the precision of its preset."""
        return self.config.precision == self.preset.precision

    def place(self, metric: Metric) -> Place:
        """The place of its result in the table or figure."""
        return Place(self.exhibit.name, self.method.name, self.at, metric)

    @property
    def has_result(self) -> bool:
        """Whether a recorded trial has ended."""
        return any(trial.has_result for trial in self.recorded)

    @cached_property
    def summaries(self) -> Mapping[Metric, CellResult]:
        """The statistics of the recorded trials."""
        found = cells(self.recorded, Trim(self.exhibit.best, self.exhibit.of))
        return {each.summary.metric: each for each in found}

    @cached_property
    def results(self) -> Mapping[Metric, Result]:
        """Its result in each metric; a metric without a result yet is left out."""
        brief = self.config.epochs < FEWEST_EPOCHS
        after = f"after {count_text(self.config.epochs, 'epoch')} only" if brief else ""
        reservation = ", ".join(filter(None, (after, self.earlier)))
        finite = {trial.config.lr for trial in self.recorded if trial.state == "finished"}
        return {
            metric: replace(result, too_short=tuple(sorted(finite))) if brief and result.failed else result
            for metric in self.exhibit.metrics
            if (cell := self.summaries.get(metric))
            and (result := Result.of_cell(cell.summary, cell.unfinished, reservation))
        }

    @property
    def ending(self) -> Literal["trains", "at chance", "explodes"] | None:
        """How its training ended; None if not known yet. A failed cell explodes if every run did."""
        if not self.results:
            return None
        if not next(iter(self.results.values())).failed:
            return "trains"
        finite = any(trial.state == "finished" for trial in self.recorded)
        return "at chance" if finite else "explodes"

    @property
    def shown_trial(self) -> Trial | None:
        """The trial whose curve is shown: at the best rate or, if it failed, at the one expected best."""
        found = [result.rate for result in self.results.values() if result.rate]
        lr = found[0].lr if found else self.config.lr
        ended = [trial for trial in self.recorded if trial.has_result]
        return min(ended, key=lambda one: (abs(math.log2(one.config.lr / lr)), one.config.seed), default=None)

    def runs(self, metric: Metric) -> str:
        """How many runs the number comes from."""
        summary = self.summaries[metric].summary
        ended = [trial.config for trial in self.recorded if trial.has_result]
        if not ended:
            return ""
        rates = count_text(len(summary.rates), "rate")
        best = summary.best
        if best is None:
            seeds = _seeds_text({config.seed for config in ended})
            return f"{count_text(len(ended), 'run')} ({seeds}) at {rates}"
        counted = sorted(config.seed for config in ended if config.lr == best.lr)[: self.exhibit.of]
        kept = f"best {best.kept} of " if best.kept < len(counted) else ""
        return f"{kept}{count_text(len(counted), 'run')} ({_seeds_text(set(counted))}); {rates} tried"

    @property
    def departures(self) -> list[str]:
        """How it differs from the paper's protocol, in words, the most important first."""
        exhibit, config = self.exhibit, self.config
        network = exhibit.network.format(depth=self.at)
        differs = {
            f"{config.data} in place of {exhibit.data}": config.data != exhibit.data,
            f"{config.model.name} in place of {network}": config.model.name != network,
            f"{config.epochs} of {exhibit.epochs} epochs": config.epochs != exhibit.epochs,
            f"batch size {config.batch_size}": config.batch_size != (exhibit.batch_size or self.at),
            "no augmentation": not config.augment,
            self.earlier: bool(self.earlier),
        }
        return [words for words, holds in differs.items() if holds]


def _seeds_text(seeds: set[int]) -> str:
    first, last = min(seeds), max(seeds)
    if first == last:
        return f"seed {first}"
    unbroken = len(seeds) == last - first + 1
    return f"seeds {first} to {last}" if unbroken else f"seeds {', '.join(map(str, sorted(seeds)))}"


def shared_config(config: TrainConfig) -> TrainConfig:
    """What the trials of a cell share: everything but rate and seed."""
    return replace(config, lr=1.0, seed=0)


def plan_cells(exhibit: Exhibit, preset: Preset, precision: Precision | None = None) -> list[ExhibitCell]:
    """Every cell of a table or figure that the preset has, at its own precision unless one is given."""
    if preset.exhibits is not None and exhibit.name not in preset.exhibits:
        return []
    efforts = _efforts(exhibit, preset)
    return [
        _plan(exhibit, METHODS[method], at, preset, preset.special.get((method, at), efforts[at]), precision)
        for method, at in _places(exhibit, preset, efforts)
    ]


def grid_of(planned: Iterable[ExhibitCell]) -> Grid:
    """The trials of all cells, each once: the smallest first, and every cell once before any twice."""
    rising = sorted(planned, key=lambda cell: cell.at)
    trials = dict.fromkeys(config for cell in rising for config in cell.trials)
    return Grid(tuple(sorted(trials, key=lambda config: config.seed)))


def _efforts(exhibit: Exhibit, preset: Preset) -> Mapping[int, Effort]:
    if exhibit.axis == "depth":
        return preset.depths
    if exhibit.name in preset.own_batch_sizes:
        return preset.own_batch_sizes[exhibit.name]
    if exhibit.data == "imagenet":
        return preset.imagenet
    sizes, given = exhibit.batch_sizes, preset.batch_sizes
    return dict.fromkeys(sizes, Effort()) if given is None else {b: given[b] for b in sizes if b in given}


def _places(exhibit: Exhibit, preset: Preset, efforts: Mapping[int, Effort]) -> Iterator[tuple[str, int]]:
    for method in exhibit.methods:
        if preset.methods is not None and method not in preset.methods:
            continue
        for at in efforts:
            # Batch statistics of a ghost batch need a batch of that size.
            too_small = exhibit.axis == "batch_size" and at < (_ghost_batch(exhibit, METHODS[method]) or 0)
            if not too_small and (method, at) not in preset.omitted:
                yield method, at
    if preset.methods is None:
        yield from ((method, at) for method, at in exhibit.unprinted.items() if at in efforts)


def _ghost_batch(exhibit: Exhibit, method: Method) -> int | None:
    return exhibit.ghost_batch if SCHEMES[method.scheme].has_norm else None


def _plan(
    exhibit: Exhibit, method: Method, at: int, preset: Preset, effort: Effort, precision: Precision | None
) -> ExhibitCell:
    data = preset.data or exhibit.data
    published_batch = exhibit.batch_size or at
    batch_size = effort.batch_size or published_batch
    published = exhibit.cells.get((method.name, at))
    # In the small-batch limit the best rate is proportional to the batch size (section 3).
    best = _expected_rate(exhibit, method, published, at) * batch_size / published_batch
    model = replace(
        method.model(effort.network or _network(exhibit, at, preset.width)),
        in_channels=describe(data).shape[0],
        ghost_batch=_ghost_batch(exhibit, method),
    )
    config = make_train_config(
        model,
        data,
        lr=best,
        batch_size=batch_size,
        epochs=effort.epochs or exhibit.epochs,
        l2=None if method.l2 else 0.0,
        dampening=DAMPENING,
        augment=preset.augment,
        precision=precision or preset.precision,
    )
    failed = published is not None and published.failed
    offsets = (effort.rates_of_failures if failed else None) or effort.rates
    rates = RATE_GRID if offsets is None else tuple(best * 2.0**offset for offset in offsets)
    return ExhibitCell(exhibit, method, at, preset, config, rates, tuple(range(preset.seeds or exhibit.of)))


def _network(exhibit: Exhibit, at: int, width: int | None) -> str:
    name = exhibit.network.format(depth=at)
    return name if width is None else re.sub(r"^(wrn\d+)_\d+$", rf"\1_{width}", name)


def _expected_rate(exhibit: Exhibit, method: Method, published: Result | None, at: int) -> float:
    """Where to look for the best rate: the paper's, or one that fits batch size and method."""
    if published is not None and published.rate is not None:
        return published.rate.lr
    if exhibit.axis == "depth":
        return 2.0**-2  # SkipInit's at every depth, for cells that failed at every rate
    if exhibit.data == "imagenet":
        return 2.0 ** min(round(math.log2(at / 256)), 2)
    # In proportion to the batch size, up to what the method endures (section 3; measured: results/README.md).
    scheme = SCHEMES[method.scheme]
    largest = 2 if scheme.has_norm else 0 if scheme.alpha is not None else -2
    return 2.0 ** min(round(math.log2(at / 64)) - 2, largest)
