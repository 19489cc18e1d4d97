"""Networks at initialization: Figures 2a, 2b, 2c and 5 beside the theory, and the parts of the first loss."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import stdev
from typing import Any, Literal

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..data.catalog import find
from ..data.cifar import CIFAR10
from ..data.images import load, standardize
from ..files import write_whole
from ..nets.create import create_model
from ..nets.layers import l2_parameters
from ..probing.balance import ProbeReport, mean_report
from ..probing.laws import (
    normalized_variance,
    relu_moving_variance,
    relu_squared_moving_mean,
    unnormalized_variance,
)
from ..probing.measure import probe
from ..probing.plot import BRANCH, MOVING_MEAN, MOVING_VARIANCE, SKIP, Series, draw, save
from ..probing.rendering import csv_text
from ..provenance import Provenance
from ..training.control import steps_bar
from ..training.world import open_device
from .claims.claim import Law
from .collect import INITIALIZATION, Probed, read_probed


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
    """One figure: its network, number of blocks and examples, and curves."""

    title: str
    network: str
    blocks: int
    batch: int
    scale: Literal["linear", "log"]
    quantities: tuple[Quantity, ...]
    networks: int = 1
    """Networks to average, where a single one scatters too much to show the law."""


_SKIP = Quantity("skip_variance", "skip path", SKIP, normalized_variance, "ℓ")
_BRANCH = Quantity("branch_variance", "end of residual branch", BRANCH, lambda _: 1.0, "1")
_MOVING = Quantity("moving_variance", "BatchNorm moving variance", MOVING_VARIANCE, None, "")
_MEAN = Quantity("squared_moving_mean", "squared BatchNorm moving mean", MOVING_MEAN, None, "")

FIGURES: dict[str, TheoryFigure] = {
    "figure2a": TheoryFigure(
        "Fully connected, linear, unnormalized", "fc_linear", 30, 1000, "log",
        (
            replace(_SKIP, law=unnormalized_variance, formula="2^(ℓ−1)"),
            replace(_BRANCH, law=None, formula=""),
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
            replace(_MOVING, law=relu_moving_variance, formula="ℓ(1 − 1/π)"),
            replace(_MEAN, law=relu_squared_moving_mean, formula="ℓ/π"),
        ),
        # The squared moving mean of one network, a mean of 1000 squares, scatters by √(2/1000) = 4.5 %; that
        # of 16 by 1.1 %, so that every block is within 5 % of theory.
        networks=16,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class MeasuredFigure:
    """The reports of a figure's networks, and the inputs of each."""

    name: str
    reports: tuple[ProbeReport, ...]
    inputs: str

    @property
    def report(self) -> ProbeReport:
        """The first report, with every measurement replaced by its mean over the networks."""
        return mean_report(self.reports)

    @property
    def conditions(self) -> str:
        """The number of networks and their inputs."""
        count, inputs = len(self.reports), f"{FIGURES[self.name].batch} {self.inputs}"
        return f"one network, {inputs}" if count == 1 else f"mean of {count} networks, {inputs} each"

    def rows(self) -> list[dict[str, Any]]:
        """The mean of each block, and the standard deviation between networks of what the figure shows."""
        rows = [{**row.to_dict(), "networks": len(self.reports)} for row in self.report.rows]
        for row, *block in zip(rows, *(report.rows for report in self.reports), strict=True):
            for field in (quantity.field for quantity in FIGURES[self.name].quantities):
                several = len(block) > 1
                row[f"{field}_deviation"] = stdev(getattr(one, field) for one in block) if several else None
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
        report, words = self.report, []
        for quantity in FIGURES[self.name].quantities:
            if quantity.law is not None:
                ratios = [getattr(row, quantity.field) / quantity.law(row.depth) for row in report.rows]
                words.append(f"{quantity.label} {min(ratios):.3f} to {max(ratios):.3f}")
        agreement = f"Measured over theory, lowest to highest block: {'; '.join(words)}."
        return f"{report.table()}\n\nMeasured: {self.conditions}.\n{agreement}\n{report.verdict}"

    def save(self, path: Path) -> list[Path]:
        """Write the picture as PNG and as SVG, whatever suffix `path` has; returns both paths."""
        paths = [path.with_suffix(suffix) for suffix in (".png", ".svg")]
        for path in paths:
            save(self.draw(), path)
        return paths

    def draw(self) -> Figure:
        """Measured points over the paper's laws."""
        figure = Figure(figsize=(5.6, 4.2), layout="constrained")
        axes = figure.subplots()
        draw_figure(axes, self.name, self.rows())
        axes.legend(frameon=False, fontsize="small")
        band = "\nband: ± one standard deviation between networks" if len(self.reports) > 1 else ""
        axes.set_title(f"{FIGURES[self.name].title}\n{self.conditions}{band}", fontsize="medium")
        return figure


def draw_figure(axes: Axes, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """The curves of a figure: measured, by the paper's laws, and the scatter between networks, if several."""
    depths, series = [row["depth"] for row in rows], []
    for quantity in FIGURES[name].quantities:
        measured = [row[quantity.field] for row in rows]
        spread = [row.get(f"{quantity.field}_deviation") for row in rows]
        band = None
        if None not in spread:
            pairs = list(zip(measured, spread, strict=True))
            band = [mean - off for mean, off in pairs], [mean + off for mean, off in pairs]
        predicted = None if quantity.law is None else [quantity.law(depth) for depth in depths]
        series.append(Series(quantity.label, quantity.color, measured, predicted, quantity.formula, band))
    draw(axes, depths, series, FIGURES[name].scale)
    axes.set_ylabel("variance")


def measure_figure(
    name: str,
    seed: int = 0,
    device: str = "cpu",
    networks: int = 1,
    after_each: Callable[[], object] = lambda: None,
) -> MeasuredFigure:
    """Build the figure's network and probe it with the paper's input, `networks` times."""
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


def _inputs(name: str, count: int) -> tuple[Callable[[], Tensor], str]:
    """A function that draws a batch, and its name: CIFAR-10 if it is found, otherwise Gaussian images."""
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
    names: Iterable[str], folder: Path, seed: int, device: str, most_networks: int | None, progress: bool
) -> None:
    """Measure what the folder lacks or has of fewer networks; each file is written whole."""
    for name in names:
        path = folder / INITIALIZATION / f"{name}.json"
        # As many as it takes to show the law, or `most_networks`.
        wanted = FIGURES[name].networks if name in FIGURES else 1
        networks = min(wanted, most_networks or wanted)
        if not path.exists() or read_probed(path).networks < networks:
            with open_device(torch.device(device)):
                _write(path, _measure(name, seed, device, networks, progress))


def _write(path: Path, probed: Probed) -> None:
    text = json.dumps(asdict(probed), indent=1, allow_nan=False)
    write_whole(path, lambda file: file.write(text.encode()))


def _measure(name: str, seed: int, device: str, networks: int, progress: bool) -> Probed:
    if name not in FIGURES:
        rows = [_initial_loss(depth, seed) for depth in _DEEP]
        return Probed(name, f"{_IMAGES} Gaussian images", seed, rows, asdict(Provenance.here("cpu")))
    with steps_bar(networks, shown=progress and networks > 1) as bar:
        bar.update(0, f"networks of {name}")
        measured = measure_figure(name, seed, device, networks, after_each=lambda: bar.advance(1))
    return Probed(name, measured.conditions, seed, measured.rows(), asdict(Provenance.here(device)), networks)


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
