"""Networks at initialization: Figures 2a, 2b, 2c and 5 against the theory, and what the first loss is made
of.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..data.augment import standardize
from ..data.cifar import CIFAR10
from ..data.fetch import find
from ..data.images import load
from ..files import write_whole
from ..nets.create import create_model
from ..nets.layers import l2_parameters
from ..probing.balance import ProbeReport, csv_text, deviations, mean_report
from ..probing.laws import (
    normalized_variance,
    relu_moving_variance,
    relu_squared_moving_mean,
    unnormalized_variance,
)
from ..probing.measure import probe
from ..probing.plot import BRANCH, MOVING_MEAN, MOVING_VARIANCE, SKIP, Series, draw, save
from ..provenance import Provenance
from ..training.control import steps_bar
from .claims.claim import Law
from .collect import INITIALIZATION, Probed, read_probed

FigureName = Literal["figure2a", "figure2b", "figure2c", "figure5"]


@dataclass(frozen=True)
class Quantity:
    """One curve: a field of the rows, and the law it should follow."""

    field: str
    label: str
    color: str
    law: Law | None
    formula: str


@dataclass(frozen=True)
class TheoryFigure:
    """One figure: a network, how many blocks and examples, which curves."""

    title: str
    network: str
    blocks: int
    batch: int
    scale: Literal["linear", "log"]
    quantities: tuple[Quantity, ...]
    networks: int = 1
    """How many to average, where one scatters too much to show the law."""


_SKIP = Quantity("skip_variance", "skip path", SKIP, normalized_variance, "ℓ")
_BRANCH = Quantity("branch_variance", "end of residual branch", BRANCH, lambda _: 1.0, "1")
_MOVING = Quantity("moving_variance", "BatchNorm moving variance", MOVING_VARIANCE, None, "")
_MEAN = Quantity("squared_moving_mean", "squared BatchNorm moving mean", MOVING_MEAN, None, "")

FIGURES: dict[FigureName, TheoryFigure] = {
    "figure2a": TheoryFigure(
        "Fully connected, linear, unnormalized", "fc_linear", 30, 1000, "log",
        (
            Quantity("skip_variance", "skip path", SKIP, unnormalized_variance, "$2^{ℓ-1}$"),
            Quantity("branch_variance", "end of residual branch", BRANCH, None, ""),
        ),
    ),
    "figure2b": TheoryFigure(
        "Fully connected, linear, batch norm", "fc_linear_bn", 100, 1000, "linear", (_SKIP, _BRANCH, _MOVING)
    ),
    "figure2c": TheoryFigure(
        "Convolutional, ReLU, batch norm", "conv_relu_bn", 100, 100, "linear",
        (_SKIP, _BRANCH, _MOVING, _MEAN),
        networks=4,
    ),
    "figure5": TheoryFigure(
        "Fully connected, ReLU, batch norm", "fc_relu_bn", 100, 1000, "linear",
        (
            _SKIP,
            _BRANCH,
            Quantity(_MOVING.field, _MOVING.label, MOVING_VARIANCE, relu_moving_variance, "ℓ(1 − 1/π)"),
            Quantity(_MEAN.field, _MEAN.label, MOVING_MEAN, relu_squared_moving_mean, "ℓ/π"),
        ),
        # The squared moving mean of one network, a mean of 1000 squares, scatters by √(2/1000) = 4.5 %; that
        # of 16 by 1.1 %, so that every block is within 5 % of theory.
        networks=16,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class MeasuredFigure:
    """The reports of a figure's networks, and what each was fed."""

    name: FigureName
    reports: tuple[ProbeReport, ...]
    inputs: str

    @property
    def report(self) -> ProbeReport:
        """The mean over the networks."""
        return mean_report(self.reports)

    @property
    def conditions(self) -> str:
        """How many networks, fed what."""
        count, inputs = len(self.reports), f"{FIGURES[self.name].batch} {self.inputs}"
        return f"one network, {inputs}" if count == 1 else f"mean of {count} networks, {inputs} each"

    def rows(self) -> list[dict[str, Any]]:
        """The mean of each block, and the standard deviation between networks of what the figure shows."""
        rows = [{**row.to_dict(), "networks": len(self.reports)} for row in self.report.rows]
        for quantity in FIGURES[self.name].quantities:
            spread = deviations(self.reports, quantity.field)
            for number, row in enumerate(rows):
                row[f"{quantity.field}_deviation"] = spread[number] if spread else None
        return rows

    def to_csv(self) -> str:
        """One line per block, with a header."""
        rows = self.rows()
        return csv_text(list(rows[0]), rows)

    def to_json(self) -> str:
        """The report of the mean as one JSON object, with the number of networks and their scatter."""
        content = json.loads(self.report.to_json())
        about = {"figure": self.name, "networks": len(self.reports), "inputs": self.inputs}
        return json.dumps({**content, **about, "rows": self.rows()}, indent=2, allow_nan=False)

    def __str__(self) -> str:
        report = self.report
        return f"{report.table()}\n\nMeasured: {self.conditions}.\n{self._agreement()}\n{report.verdict}"

    def _agreement(self) -> str:
        words = []
        for quantity in FIGURES[self.name].quantities:
            if quantity.law is not None:
                rows = self.report.rows
                ratios = [getattr(row, quantity.field) / quantity.law(row.depth) for row in rows]
                words.append(f"{quantity.label} {min(ratios):.3f} to {max(ratios):.3f}")
        return f"Measured over theory, lowest to highest block: {'; '.join(words)}."

    def save(self, path: Path) -> list[Path]:
        """Write the picture as PNG and as SVG, whatever suffix `path` has; returns both paths."""
        paths = [path.with_suffix(suffix) for suffix in (".png", ".svg")]
        for path in paths:
            save(self.draw(), path)
        return paths

    def draw(self) -> Figure:
        """Measured points over the paper's laws."""
        figure, plan = Figure(figsize=(5.6, 4.2), layout="constrained"), FIGURES[self.name]
        axes, depths = figure.subplots(), [row.depth for row in self.report.rows]
        draw(axes, depths, [self._series(quantity) for quantity in plan.quantities], plan.scale)
        axes.legend(frameon=False, fontsize="small")
        axes.set_ylabel("variance")
        band = "\nband: ± one standard deviation between networks" if len(self.reports) > 1 else ""
        axes.set_title(f"{plan.title}\n{self.conditions}{band}", fontsize="medium")
        return figure

    def _series(self, quantity: Quantity) -> Series:
        rows = self.report.rows
        measured = [getattr(row, quantity.field) for row in rows]
        predicted = None if quantity.law is None else [quantity.law(row.depth) for row in rows]
        band = None
        if spread := deviations(self.reports, quantity.field):
            pairs = list(zip(measured, spread, strict=True))
            band = [mean - off for mean, off in pairs], [mean + off for mean, off in pairs]
        return Series(quantity.label, quantity.color, measured, predicted, quantity.formula, band)


def measure_figure(
    name: FigureName,
    seed: int = 0,
    device: str = "cpu",
    networks: int = 1,
    after_each: Callable[[], object] = lambda: None,
) -> MeasuredFigure:
    """Build the figure's network, feed it the paper's input, probe it; again for every further network."""
    plan, reports = FIGURES[name], []
    draw_batch, inputs = _inputs(name, plan.batch)
    with torch.random.fork_rng(devices=[]):
        # One stream for all: an input drawn from the same seed as the weights would equal them.
        torch.default_generator.manual_seed(seed)
        for _ in range(networks):
            model = create_model(plan.network, blocks=plan.blocks)
            reports.append(probe(model.to(device), draw_batch().to(device)))
            after_each()
    return MeasuredFigure(name, tuple(reports), inputs)


def _inputs(name: FigureName, count: int) -> tuple[Callable[[], Tensor], str]:
    """What draws a batch, and its name: CIFAR-10 where it is there, else Gaussian images."""
    if name != "figure2c":
        return lambda: torch.randn(count, 100), "Gaussian vectors"
    if find(*(name for form in CIFAR10.forms for name in (form.folder, form.archive))) is None:
        return lambda: torch.randn(count, 3, 32, 32), "Gaussian images (CIFAR-10 not found)"
    images = load("cifar10").train_images
    return lambda: standardize(images[torch.randperm(len(images))[:count]]), "CIFAR-10 images"


_L2 = 5e-4
_DEEP = (100, 1000)
_IMAGES = 4


def measure_probes(
    names: list[str], folder: Path, seed: int, device: str, most_networks: int | None, progress: bool
) -> None:
    """Measure what is not in the folder yet, or only of fewer networks; each file appears whole."""
    for name in names:
        path = folder / INITIALIZATION / f"{name}.json"
        networks = count_networks(name, most_networks)
        if path.exists() and read_probed(path).networks >= networks:
            continue
        if figure := _figure(name):
            _write(path, _measure(figure, seed, device, networks, progress))
        else:
            _write(path, _measure_loss(name, seed))


def count_networks(name: str, most: int | None) -> int:
    """A figure is the mean of as many networks as it takes to show the law, or of `most`."""
    figure = _figure(name)
    wanted = FIGURES[figure].networks if figure else 1
    return min(wanted, most or wanted)


def _figure(name: str) -> FigureName | None:
    return next((known for known in FIGURES if known == name), None)


def _write(path: Path, probed: Probed) -> None:
    text = json.dumps(asdict(probed), indent=1, allow_nan=False)
    write_whole(path, lambda file: file.write(text.encode()))


def _measure(figure: FigureName, seed: int, device: str, networks: int, progress: bool) -> Probed:
    with steps_bar(networks, shown=progress and networks > 1) as bar:
        bar.update(0, f"networks of {figure}")
        measured = measure_figure(figure, seed, device, networks, after_each=lambda: bar.advance(1))
    rows = [row.to_dict() for row in measured.report.rows]
    return Probed(figure, measured.conditions, seed, rows, asdict(Provenance.here(device)), networks)


def _measure_loss(name: str, seed: int) -> Probed:
    rows = [_initial_loss(depth, seed) for depth in _DEEP]
    return Probed(name, f"{_IMAGES} Gaussian images", seed, rows, asdict(Provenance.here("cpu")))


def _initial_loss(depth: int, seed: int) -> dict[str, Any]:
    """Cross entropy and L2 term of a network that has not been trained (section 2.3)."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(seed)
        model = create_model(f"wrn{depth}_2", scheme="skipinit")
        logits = model(torch.randn(_IMAGES, 3, 32, 32))
        labels = torch.randint(10, (_IMAGES,))
        squares = sum(float(weight.square().sum()) for weight in l2_parameters(model).values())
        loss = float(cross_entropy(logits, labels))
    assert math.isfinite(loss), "SkipInit starts as the identity"
    return {"depth": depth, "cross_entropy": loss, "l2_term": _L2 / 2 * squares}
