"""How much of the paper to run: each preset is data, from seconds on a laptop to everything.

A preset never changes what a cell means without saying so: data, epochs, width and precision are part of a
trial's identity, so numbers of one preset are never averaged with another's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..config import Precision
from ..errors import unknown_name

PRECISIONS: tuple[Precision, ...] = ("bfloat16", "tf32", "float32")
"""The highest, which is the most faithful, last."""

AT_BEST = (0,)
TWICE_BEST = (1,)
AROUND_BEST = (-1, 0, 1)
AROUND_AND_ABOVE = (-1, 0, 1, 2)
SPREAD = (-6, -3, 0)
FEWEST_EPOCHS = 10
"""The fewest epochs whose numbers decide claims: before, networks differ in how fast they start, and one that
is still at chance may learn later."""


@dataclass(frozen=True)
class Effort:
    """How much one cell is trained."""

    epochs: int | None = None
    """None: the paper's."""
    rates: tuple[float, ...] | None = None
    """Factors of two from where the paper has its best rate; None: the paper's whole grid."""
    rates_of_failures: tuple[float, ...] | None = None
    """The rates where the paper's network failed at every rate: failing at one rate proves nothing."""
    batch_size: int | None = None
    """In place of the paper's, the rates in proportion to it; None: the paper's."""
    network: str | None = None
    """In place of the paper's."""


@dataclass(frozen=True)
class Preset:
    """How much of each table and figure to run."""

    name: str
    about: str
    depths: Mapping[int, Effort]
    """Of the tables over depth."""
    batch_sizes: Mapping[int, Effort] | None
    """Of the figures over batch size; None: all that the paper has, in full."""
    imagenet: Mapping[int, Effort]
    """Of the tables over batch size."""
    seeds: int | None
    """Runs at each rate; None: the paper's."""
    data: str | None = None
    """In place of every data set of the paper."""
    width: int | None = None
    """In place of every Wide-ResNet's width."""
    augment: bool = True
    precision: Precision = "float32"
    methods: tuple[str, ...] | None = None
    """Which of a table's columns; None: all."""
    exhibits: tuple[str, ...] | None = None
    """Which tables and figures; None: all."""
    networks: int | None = None
    """The most networks at initialization that a figure averages; None: as many as show the law."""
    decides: bool = True
    """Whether its numbers decide claims of the paper."""
    own_batch_sizes: Mapping[str, Mapping[int, Effort]] = field(default_factory=dict)
    """By name, tables and figures with batch sizes other than those above; with none they are left out."""
    special: Mapping[tuple[str, int], Effort] = field(default_factory=dict)
    """By method and depth, where one cell needs another effort than its depth."""
    omitted: frozenset[tuple[str, int]] = frozenset()
    """By method and depth, cells that are left out for what they cost."""


_WHOLE = Effort()
_SMALLER = Effort(10, AROUND_AND_ABOVE, network="wrn16_4")

_ALL = (
    Preset(
        "smoke",
        "seconds: digits, one epoch, one rate, one run of the smallest networks; only shows that it runs",
        depths={16: Effort(1, AT_BEST)},
        batch_sizes={64: Effort(1, AT_BEST)},
        imagenet={1024: Effort(1, AT_BEST)},
        seeds=1,
        data="digits",
        width=1,
        augment=False,
        networks=1,
        decides=False,
    ),
    Preset(
        "demo",
        "one to two minutes on 2 CPU cores: digits, narrow networks, four methods, one run each",
        depths={16: Effort(7, AT_BEST), 100: Effort(3, AT_BEST), 1000: Effort(1, AT_BEST)},
        batch_sizes={},
        imagenet={},
        seeds=1,
        data="digits",
        width=1,
        augment=False,
        networks=1,
        methods=("batchnorm", "skipinit", "skipinit alpha=1", "divide-sqrt2"),
        exhibits=("table1",),
        special={
            # Its running averages need some 45 steps: half the batch is cheaper than two epochs.
            ("batchnorm", 1000): Effort(1, TWICE_BEST, batch_size=32),
        },
        # It starts with a signal of 1 %, on 8 x 8 pixels with less: it stays at chance for hundreds of steps,
        # and then one seed in seven collapses.
        omitted=frozenset({("divide-sqrt2", 100)}),
    ),
    Preset(
        "quick",
        "minutes on 2 CPU cores: digits, narrow networks, few epochs, rates around the paper's best",
        depths={16: Effort(10, AROUND_BEST), 100: Effort(8, AROUND_BEST), 1000: Effort(4, AT_BEST, SPREAD)},
        batch_sizes={batch: Effort(6, AROUND_BEST) for batch in (4, 16, 64, 256)},
        imagenet={256: Effort(2, AT_BEST)},
        seeds=1,
        data="digits",
        width=1,
        augment=False,
    ),
    Preset(
        "brief",
        "half an hour on one H200: tables over depth, 5 epochs at 100 layers, 1 at 1000; shows who trains",
        depths={16: Effort(20, AT_BEST), 100: Effort(5, AROUND_BEST), 1000: Effort(1, AT_BEST, SPREAD)},
        batch_sizes={},
        imagenet={},
        seeds=1,
        precision="bfloat16",
    ),
    Preset(
        "reduced",
        "three hours on one H200 for everything: the paper's data, most of its networks, few epochs, one run",
        depths={
            16: Effort(40, AROUND_BEST),
            100: Effort(10, AT_BEST, AROUND_BEST),
            1000: Effort(10, AT_BEST, SPREAD),
        },
        batch_sizes={
            **dict.fromkeys((4, 8), Effort(20, AROUND_BEST)),
            **dict.fromkeys(
                (16, 32, 64, 128, 256, 1024, 2048, 4096, 8192), Effort(20, AROUND_AND_ABOVE)
            ),
        },
        imagenet={256: Effort(1, AT_BEST)},
        seeds=1,
        precision="bfloat16",
        own_batch_sizes={
            "figure7": dict.fromkeys((32, 128, 512), _SMALLER),
            "figure8": dict.fromkeys((4, 16, 32, 128), _SMALLER),
            "table7": {},  # One epoch decides who trains, and all of its networks do.
        },
        omitted=frozenset({("skipinit without L2", 1000)}),  # that it trains, `brief` shows
    ),
    Preset(
        "paper",
        "everything: the paper's networks, data and epochs, up to 13 rates with 7 or 15 runs at each",
        depths=dict.fromkeys((16, 100, 1000), _WHOLE),
        batch_sizes=None,
        imagenet=dict.fromkeys((256, 1024, 4096), _WHOLE),
        seeds=None,
        precision="tf32",
    ),
)  # fmt: skip

PRESETS: Mapping[str, Preset] = {preset.name: preset for preset in _ALL}


def find_preset(name: str) -> Preset:
    """The preset of that name."""
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    return PRESETS[name]
