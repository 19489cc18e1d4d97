"""One recipe per table and figure: which exhibits it fills, the methods they compare, and the trials that
fill them.

A cell's trials share everything but rate and seed. Tables 1 and 3 are two readings of the same runs, as are
the two halves of Figures 3 and 4; a trial asked for twice is run once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..config import Alpha, FixupComponent, ModelConfig, Precision, TrainConfig
from ..data.catalog import describe
from ..errors import ConfigError, unknown_name
from ..nets.schemes import SCHEMES
from ..sweeping.grid import Grid, join
from ..training.protocol import make_train_config
from .presets import Effort, Preset
from .published import RATE_GRID, Address, Exhibit, FailedCell, TunedCell, find_exhibit


@dataclass(frozen=True)
class Method:
    """One column of a table or one curve of a figure."""

    name: str
    label: str
    """As the paper writes it."""
    scheme: str
    alpha: Alpha | None = None
    l2: bool = True
    """Whether it is trained with L2 regularization."""
    biases: bool | None = None
    scalar_bias: bool | None = None
    fixup_components: tuple[FixupComponent, ...] | None = None

    def model(self, network: str) -> ModelConfig:
        """The network of that name, built this way."""
        return ModelConfig(
            network,
            scheme=self.scheme,
            alpha=self.alpha,
            biases=self.biases,
            scalar_bias=self.scalar_bias,
            fixup_components=self.fixup_components,
        )


_METHODS = (
    Method("batchnorm", "Batch normalization", "batchnorm"),
    Method("none", "No normalization", "none"),
    Method("skipinit", "SkipInit (α = 0)", "skipinit"),
    Method("skipinit alpha=1/sqrt(d)", "SkipInit (α = 1/√d)", "skipinit", alpha="1/sqrt(d)"),
    Method("skipinit alpha=1", "SkipInit (α = 1)", "skipinit", alpha=1.0),
    Method("skipinit without L2", "SkipInit without L2 (α = 0)", "skipinit", l2=False),
    Method("skipinit without biases", "SkipInit without biases", "skipinit", biases=False),
    Method("regularized-skipinit", "Regularized SkipInit", "regularized-skipinit"),
    Method(
        "regularized-skipinit scalar bias", "Regularized SkipInit + Scalar Bias", "regularized-skipinit",
        scalar_bias=True,
    ),
    Method("divide-sqrt2", "Divide residual block by √2", "divide-sqrt2"),
    Method(
        "batchnorm-divide-sqrt2", "Divide batch-normalized residual block by √2", "batchnorm-divide-sqrt2"
    ),
    Method("batchnorm-block-end", "Adding BatchNorm at end of residual block", "batchnorm-block-end"),
    Method("batchnorm-final-only", "Including only the final BatchNorm layer", "batchnorm-final-only"),
    Method("fixup", "Fixup", "fixup"),
    Method("fixup-dropout", "Fixup + Dropout", "fixup-dropout"),
    Method("fixup component 1", "Fixup, component 1 alone", "fixup", fixup_components=(1,)),
    Method("fixup component 2", "Fixup, component 2 alone", "fixup", fixup_components=(2,)),
)  # fmt: skip


METHODS = {method.name: method for method in _METHODS}


DAMPENING = 0.9
"""The paper's rates are those of damped momentum."""


@dataclass(frozen=True)
class Recipe:
    """How one table or figure of the paper is made."""

    name: str
    title: str
    exhibits: tuple[str, ...] = ()
    """The sweeps to train."""
    probes: tuple[str, ...] = ()
    """The networks to measure at initialization."""


_RECIPES = (
    Recipe("table1", "Test accuracy against depth, CIFAR-10", ("table1",), ("initial-loss",)),
    Recipe("table2", "ResNet50-V2 on ImageNet against batch size", ("table2",)),
    Recipe("table3", "Training loss against depth, CIFAR-10", ("table3",)),
    Recipe("table4", "Batch-norm variants against depth, CIFAR-10", ("table4",)),
    Recipe("table5", "Test accuracy against depth, CIFAR-100", ("table5",)),
    Recipe("table6", "Training loss against depth, CIFAR-100", ("table6",)),
    Recipe("table7", "ResNet50-V1 on ImageNet against batch size", ("table7",)),
    Recipe("figure2", "Variances at initialization", probes=("figure2a", "figure2b", "figure2c")),
    Recipe("figure3", "Batch size with a fixed ghost batch, CIFAR-10", ("figure3-accuracy", "figure3-loss")),
    Recipe("figure4", "Batch size with full-batch statistics", ("figure4-accuracy", "figure4-loss")),
    Recipe("figure5", "Batch statistics of a ReLU network", probes=("figure5",)),
    Recipe("figure6", "Best rates of Figure 4", ("figure4-accuracy", "figure4-loss")),
    Recipe("figure7", "Batch size with a fixed ghost batch, CIFAR-100", ("figure7",)),
    Recipe("figure8", "Batch size with full-batch statistics, CIFAR-100", ("figure8",)),
)


RECIPES: Mapping[str, Recipe] = {recipe.name: recipe for recipe in _RECIPES}


# The figures print no axis; these span what captions and text speak of.
_BATCH_SIZES = {
    "figure3": tuple(2**n for n in range(4, 14)),
    "figure4": tuple(2**n for n in range(11)),
    "figure7": tuple(2**n for n in range(3, 13)),
    "figure8": tuple(2**n for n in range(10)),
}


# What the text reports without a column: Fixup's components (section 6), SkipInit without biases (section 5).
_TEXT_ONLY = {"table2": ("skipinit without biases", "fixup component 1", "fixup component 2")}


_TEXT_ONLY_BATCH = 256


def find_recipes(names: Iterable[str]) -> list[Recipe]:
    """The recipes of these names, each once; `all` is every one."""
    wanted = [each for name in names for each in (RECIPES if name == "all" else [name])]
    if not wanted:
        raise ConfigError("nothing to reproduce; name tables and figures, or all: see --list")
    for name in wanted:
        if name not in RECIPES:
            raise unknown_name("table or figure", name, [*RECIPES, "all"])
    return [RECIPES[name] for name in dict.fromkeys(wanted)]


@dataclass(frozen=True)
class Order:
    """A preset, or a part of it that fits into the time at hand. None: all, or as the preset says."""

    preset: Preset
    precision: Precision | None = None
    methods: tuple[str, ...] | None = None
    at: tuple[int, ...] | None = None
    """Depths or batch sizes."""
    seeds: int | None = None
    """Runs at each rate."""
    around_best: bool = False
    """Only the paper's best rate and its two neighbours."""
    first_seed: int = 0

    def wants(self, method: str, at: int) -> bool:
        """Whether a cell is in that part."""
        return (self.methods is None or method in self.methods) and (self.at is None or at in self.at)


@dataclass(frozen=True)
class CellPlan:
    """One cell of an exhibit: its config at one rate and seed, and which others to train."""

    address: Address
    config: TrainConfig
    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    brief: bool
    """Whether its epochs can only tell who trains and who fails."""

    def grid(self) -> Grid:
        """The cell's trials."""
        places = ((lr, seed) for seed in self.seeds for lr in self.rates)
        return Grid(tuple(replace(self.config, lr=lr, seed=seed) for lr, seed in places))


def plan_exhibit(name: str, order: Order) -> list[CellPlan]:
    """Every cell of a table or sweep that the order asks for."""
    exhibit = find_exhibit(name)
    if order.preset.exhibits is not None and name not in order.preset.exhibits:
        return []
    efforts = _efforts(exhibit, order.preset)
    return [
        _plan(exhibit, METHODS[method], at, order.preset.effort(method, at, efforts), order)
        for method, at in _places(exhibit, order.preset, efforts)
        if order.wants(method, at)
    ]


def make_grid(plans: Sequence[CellPlan]) -> Grid:
    """The trials of all cells, each once; every cell has one run before any has two."""
    grid = join(plan.grid() for plan in plans)
    return replace(grid, trials=tuple(sorted(grid.trials, key=lambda trial: trial.seed)))


def _efforts(exhibit: Exhibit, preset: Preset) -> Mapping[int, Effort]:
    if exhibit.axis == "depth":
        return preset.depths
    if exhibit.cells:
        return preset.imagenet
    sizes = _BATCH_SIZES[exhibit.name.partition("-")[0]]
    given = preset.batch_sizes
    return dict.fromkeys(sizes, Effort()) if given is None else {b: given[b] for b in sizes if b in given}


def _places(exhibit: Exhibit, preset: Preset, efforts: Mapping[int, Effort]) -> Iterator[tuple[str, int]]:
    for method in exhibit.methods:
        if preset.methods is not None and method not in preset.methods:
            continue
        for at in efforts:
            # Batch statistics of a ghost batch need a batch of that size.
            too_small = exhibit.axis == "batch_size" and at < (_ghost_batch(exhibit, METHODS[method]) or 0)
            if not too_small:
                yield method, at
    if preset.methods is None and _TEXT_ONLY_BATCH in efforts:
        yield from ((method, _TEXT_ONLY_BATCH) for method in _TEXT_ONLY.get(exhibit.name, ()))


def _ghost_batch(exhibit: Exhibit, method: Method) -> int | None:
    return exhibit.ghost_batch if SCHEMES[method.scheme].has_norm else None


def _plan(exhibit: Exhibit, method: Method, at: int, effort: Effort, order: Order) -> CellPlan:
    preset = order.preset
    data = effort.data or preset.data or exhibit.data
    published_batch = exhibit.batch_size or at
    batch_size = effort.batch_size or published_batch
    # In the small-batch limit the best rate is proportional to the batch size (section 3).
    best = _expected_rate(exhibit, method.name, at) + round(math.log2(batch_size / published_batch))
    model = replace(
        method.model(_network(exhibit, at, preset.width)),
        in_channels=describe(data).shape[0],
        ghost_batch=_ghost_batch(exhibit, method),
    )
    config = make_train_config(
        model,
        data,
        lr=2.0**best,
        batch_size=batch_size,
        epochs=effort.epochs or exhibit.epochs,
        l2=None if method.l2 else 0.0,
        dampening=DAMPENING,
        augment=preset.augment,
        precision=order.precision or preset.precision,
    )
    runs = min(preset.seeds or exhibit.of, order.seeds or exhibit.of)
    seeds = tuple(range(order.first_seed, order.first_seed + runs))
    failed = isinstance(exhibit.cells.get((method.name, at)), FailedCell)
    offsets = (effort.rates_of_failures if failed else None) or effort.rates
    rates = _rates(offsets, best, order.around_best)
    return CellPlan(Address(exhibit.name, method.name, at), config, rates, seeds, effort.brief)


def _network(exhibit: Exhibit, at: int, width: int | None) -> str:
    name = exhibit.network.format(depth=at)
    return name if width is None else re.sub(r"^(wrn\d+)_\d+$", rf"\1_{width}", name)


def _rates(offsets: tuple[int, ...] | None, best: int, around_best: bool) -> tuple[float, ...]:
    if offsets is not None:
        return tuple(2.0 ** (best + offset) for offset in offsets)
    near = tuple(lr for lr in RATE_GRID if 2.0 ** (best - 1) <= lr <= 2.0 ** (best + 1))
    return near if around_best else RATE_GRID


def _expected_rate(exhibit: Exhibit, method: str, at: int) -> int:
    """Where to look for the best rate, as an exponent of 2: the paper's, or one that fits the batch size."""
    cell = exhibit.cells.get((method, at))
    if isinstance(cell, TunedCell):
        return cell.rate
    if exhibit.axis == "depth":
        return -2  # SkipInit's at every depth, for cells that failed at every rate
    anchor, rate = (256, 0) if exhibit.cells else (64, -2)
    return min(rate + round(math.log2(at / anchor)), 2)
