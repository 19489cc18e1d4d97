"""The paper's tables and figures: the methods they compare, what is trained for them, what a cell holds, and
the numbers of Tables 1 to 7, read from `exhibits.toml`.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Literal, NamedTuple

from ..config import ModelConfig
from ..errors import ConfigError, unknown_name
from ..notation import rate_text, rates_text
from ..sweeping.summary import Cell, Metric

RATE_GRID = tuple(2.0**exponent for exponent in range(-10, 3))
"""The rates that a failed cell failed at (caption of Table 1)."""


@dataclass(frozen=True)
class Method:
    """One column of a table or one curve of a figure."""

    name: str
    label: str
    """As the paper writes it."""
    scheme: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Options of its network, besides the scheme."""
    l2: bool = True
    """Whether it is trained with L2 regularization."""

    def model(self, network: str) -> ModelConfig:
        """The network of that name, built this way."""
        return ModelConfig(network, scheme=self.scheme, **self.options)


_METHODS = (
    Method("batchnorm", "Batch normalization", "batchnorm"),
    Method("none", "No normalization", "none"),
    Method("skipinit", "SkipInit (α = 0)", "skipinit"),
    Method("skipinit alpha=1/sqrt(d)", "SkipInit (α = 1/√d)", "skipinit", {"alpha": "1/sqrt(d)"}),
    Method("skipinit alpha=1", "SkipInit (α = 1)", "skipinit", {"alpha": 1.0}),
    Method("skipinit without L2", "SkipInit without L2 (α = 0)", "skipinit", l2=False),
    Method("skipinit without biases", "SkipInit without biases", "skipinit", {"biases": False}),
    Method("regularized-skipinit", "Regularized SkipInit", "regularized-skipinit"),
    Method(
        "regularized-skipinit scalar bias", "Regularized SkipInit + Scalar Bias", "regularized-skipinit",
        {"scalar_bias": True},
    ),
    Method("divide-sqrt2", "Divide residual block by √2", "divide-sqrt2"),
    Method(
        "batchnorm-divide-sqrt2", "Divide batch-normalized residual block by √2", "batchnorm-divide-sqrt2"
    ),
    Method("batchnorm-block-end", "Adding BatchNorm at end of residual block", "batchnorm-block-end"),
    Method("batchnorm-final-only", "Including only the final BatchNorm layer", "batchnorm-final-only"),
    Method("fixup", "Fixup", "fixup"),
    Method("fixup-dropout", "Fixup + Dropout", "fixup-dropout"),
    Method("fixup component 1", "Fixup, component 1 alone", "fixup", {"fixup_components": (1,)}),
    Method("fixup component 2", "Fixup, component 2 alone", "fixup", {"fixup_components": (2,)}),
)  # fmt: skip

METHODS = {method.name: method for method in _METHODS}


class Place(NamedTuple):
    """Where a result stands: in which table or figure, under which method, at which depth or batch size."""

    exhibit: str
    method: str
    at: int
    metric: Metric = "test_accuracy"


@dataclass(frozen=True)
class BestRate:
    """The rate that served a cell best, and its error bar."""

    lr: float
    low: float
    high: float
    at_edge: bool = False
    """Whether it is an end of its grid: the optimum may lie outside."""

    def __str__(self) -> str:
        return rate_text(self.lr)


@dataclass(frozen=True)
class Result:
    """One cell at its best rate."""

    metric: Metric
    value: float | None
    """None: failed, at chance at every rate tried."""
    spread: float | None = None
    rate: BestRate | None = None
    """None where the cell failed or the paper does not say."""
    tried: tuple[float, ...] = ()
    trained: tuple[float, ...] = ()
    """Of the rates tried, those that left chance behind."""
    too_short: tuple[float, ...] = ()
    """Of the rates tried, those whose short training ended at chance, but finite: it may learn later."""
    reservation: str = ""
    """Why it only says who trains and who fails, not how well or at which rate best; empty where it does."""
    top5: float | None = None
    """Top-5 accuracy, which the paper prints beside the top-1 accuracy of ImageNet."""

    @property
    def failed(self) -> bool:
        """The paper's dash."""
        return self.value is None

    @property
    def failing(self) -> tuple[float, ...]:
        """Of the rates tried, where it failed, those whose training was not too short to say so."""
        return tuple(lr for lr in self.tried if lr not in self.too_short) if self.failed else ()

    @property
    def score(self) -> float:
        """Larger is better: the accuracy, or minus the loss; nothing is worse than a failure."""
        if self.value is None:
            return -math.inf
        return self.value if self.metric == "test_accuracy" else -self.value

    def __str__(self) -> str:
        return self.text(decimals(self.metric))

    def text(self, digits: int) -> str:
        """The value with so many decimals, and its spread; or the rates it failed at."""
        if self.value is None:
            return f"failed at {rates_text(self.tried)}"
        spread = "" if self.spread is None else f" ± {self.spread:.{digits}f}"
        return f"{self.value:.{digits}f}{spread}"

    @classmethod
    def of_cell(cls, cell: Cell, unfinished: int = 0, reservation: str = "") -> Result | None:
        """The result of a sweep's cell; None where it has none yet, `unfinished` trials being still to come.

        While trials are unfinished, a cell that is at chance so far has not failed.
        """
        tried = tuple(rate.lr for rate in cell.rates)
        if cell.best is None:
            failed = cell.failed and not unfinished
            return cls(cell.metric, None, tried=tried, reservation=reservation) if failed else None
        assert cell.lr_low is not None, "a best rate has an error bar"
        assert cell.lr_high is not None, "a best rate has an error bar"
        rate = BestRate(cell.best.lr, cell.lr_low, cell.lr_high, cell.edge is not None)
        trained = tuple(rate.lr for rate in cell.rates if not rate.at_chance)
        return cls(cell.metric, cell.best.mean, cell.best.std, rate, tried, trained, reservation=reservation)


def told_apart(results: Iterable[Result]) -> list[str]:
    """Results of one metric in words, with as many decimals as different values need to read differently."""
    found = list(results)
    values = {each.value for each in found if each.value is not None}
    first = decimals(found[0].metric)
    enough = (
        n for n in range(first, first + 3) if len({f"{value:.{n}f}" for value in values}) == len(values)
    )
    digits = next(enough, first + 3)
    return [each.text(digits) for each in found]


def decimals(metric: Metric) -> int:
    """Decimals that the paper prints; a spread of zero means less than half of the last one."""
    return 1 if metric == "test_accuracy" else 3


Curve = Literal["value", "rate"]
"""What a figure draws against batch size: the metric at its best rate, or that rate."""


@dataclass(frozen=True)
class Exhibit:
    """One table or figure: what is trained or probed for it, and the printed numbers, if any."""

    name: str
    title: str
    section: str
    """Where the text discusses it."""
    network: str = ""
    """`{depth}` stands for the depth where that is the axis."""
    data: str = ""
    epochs: int = 0
    axis: Literal["depth", "batch_size"] = "depth"
    metrics: tuple[Metric, ...] = ()
    """Read from the same trials; none where nothing is trained."""
    curves: tuple[Curve, ...] = ()
    best: int = 1
    """Runs that count, of `of` at each rate."""
    of: int = 1
    methods: tuple[str, ...] = ()
    batch_size: int | None = None
    """None: it is the axis."""
    batch_sizes: tuple[int, ...] = ()
    """The axis of a figure."""
    ghost_batch: int | None = None
    """None: batch statistics are those of the whole batch."""
    probes: tuple[str, ...] = ()
    """The networks to measure at initialization."""
    unprinted: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Methods that only the text reports, and at which batch size."""
    cells: Mapping[tuple[str, int], Result] = field(default_factory=dict, hash=False)
    """The published results by method and depth or batch size; none in a figure."""

    @property
    def label(self) -> str:
        """`Table 1`."""
        kind = "Table" if self.name.startswith("table") else "Figure"
        return f"{kind} {self.name.removeprefix(kind.lower())}"

    def panel(self, metric: Metric) -> str:
        """The label, with the metric where there are two: `Figure 3 (loss)`."""
        word = "accuracy" if metric == "test_accuracy" else "loss"
        return f"{self.label} ({word})" if len(self.metrics) > 1 else self.label

    @property
    def axis_name(self) -> str:
        """The axis in words."""
        return self.axis.replace("_", " ")


def _read_exhibit(name: str, tables: Mapping[str, Mapping[str, Any]]) -> Exhibit:
    facts, columns = _facts(name, tables), tables[name].get("cells", {})
    facts = {key: tuple(value) if isinstance(value, list) else value for key, value in facts.items()}
    cells = {
        (method, int(at)): _read_cell(numbers, facts["metrics"][0])
        for method, column in columns.items()
        for at, numbers in column.items()
    }
    return Exhibit(name, cells=cells, **({"methods": tuple(columns)} | facts))


def _facts(name: str, tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The entries of a table of the file without its numbers, with those of the table that it is like."""
    own = {key: value for key, value in tables[name].items() if key != "cells"}
    like = _facts(own.pop("like"), tables) if "like" in own else {}
    return {key: value for key, value in like.items() if key not in ("probes", "unprinted")} | own


def _read_cell(numbers: list[float] | str, metric: Metric) -> Result:
    """The three forms that the head of `exhibits.toml` describes."""
    if isinstance(numbers, str):
        return Result(metric, None, tried=RATE_GRID)
    if len(numbers) == 2:
        return Result(metric, numbers[0], top5=numbers[1])
    value, spread, *exponents = numbers
    lr, low, high = (2.0**exponent for exponent in exponents)
    return Result(metric, value, spread, BestRate(lr, low, high))


_TABLES = tomllib.loads(files(__package__).joinpath("exhibits.toml").read_text(encoding="utf-8"))
EXHIBITS = {name: _read_exhibit(name, _TABLES) for name in _TABLES}
"""Every table and figure by name."""


def find_exhibits(names: Iterable[str]) -> list[Exhibit]:
    """The tables and figures of these names, each once; `all` is every one."""
    wanted = [each for name in names for each in (EXHIBITS if name == "all" else [name])]
    if not wanted:
        raise ConfigError("nothing to reproduce; name tables and figures, or all: see --list")
    for name in wanted:
        if name not in EXHIBITS:
            raise unknown_name("table or figure", name, [*EXHIBITS, "all"])
    return [EXHIBITS[name] for name in dict.fromkeys(wanted)]
