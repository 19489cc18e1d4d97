"""Figures 2a, 2b, 2c and 5 of the paper: its four theory networks (appendices B and C) against the theory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from matplotlib.figure import Figure
from torch import Tensor

from ..data.augment import standardize
from ..data.cifar import CIFAR10
from ..data.fetch import find
from ..data.images import load
from ..nets.create import create_model
from .measure import probe
from .plot import BRANCH, MOVING_MEAN, MOVING_VARIANCE, SKIP, Series, draw, save
from .report import ProbeReport, ProbeRow
from .theory import (
    normalized_variance,
    relu_moving_variance,
    relu_squared_moving_mean,
    unnormalized_variance,
)

FigureName = Literal["figure2a", "figure2b", "figure2c", "figure5"]
Law = Callable[[float], float]


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
    """One figure: a network, how many blocks of it, how many examples, which curves."""

    title: str
    network: str
    blocks: int
    batch: int
    scale: Literal["linear", "log"]
    quantities: tuple[Quantity, ...]


def _one(depth: float) -> float:
    return 1.0


_SKIP = Quantity("skip_variance", "skip path", SKIP, normalized_variance, "ℓ")
_BRANCH = Quantity("branch_variance", "end of residual branch", BRANCH, _one, "1")
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
    ),
    "figure5": TheoryFigure(
        "Fully connected, ReLU, batch norm", "fc_relu_bn", 100, 1000, "linear",
        (
            _SKIP,
            _BRANCH,
            Quantity(_MOVING.field, _MOVING.label, MOVING_VARIANCE, relu_moving_variance, "ℓ(1 − 1/π)"),
            Quantity(_MEAN.field, _MEAN.label, MOVING_MEAN, relu_squared_moving_mean, "ℓ/π"),
        ),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class MeasuredFigure:
    """A figure's report, and what it was measured on."""

    name: FigureName
    report: ProbeReport
    inputs: str

    def save(self, path: Path) -> list[Path]:
        """Write the picture as PNG and as SVG, whatever suffix `path` has; returns both paths."""
        paths = [path.with_suffix(suffix) for suffix in (".png", ".svg")]
        for path in paths:
            save(self.draw(), path)
        return paths

    def draw(self) -> Figure:
        """Measured points over the paper's laws."""
        figure, plan = Figure(figsize=(5.6, 4.2), layout="constrained"), FIGURES[self.name]
        axes = figure.subplots()
        rows = self.report.rows
        draw(axes, [row.depth for row in rows], [_series(q, rows) for q in plan.quantities], plan.scale)
        axes.legend(frameon=False, fontsize="small")
        axes.set_ylabel("variance")
        axes.set_title(f"{plan.title}\n{plan.batch} {self.inputs}", fontsize="medium")
        return figure


def _series(quantity: Quantity, rows: tuple[ProbeRow, ...]) -> Series:
    measured = [getattr(row, quantity.field) for row in rows]
    predicted = None if quantity.law is None else [quantity.law(row.depth) for row in rows]
    return Series(quantity.label, quantity.color, measured, predicted, quantity.formula)


def measure_figure(name: FigureName, seed: int = 0, device: str = "cpu") -> MeasuredFigure:
    """Build the figure's network, feed it the paper's input, probe it."""
    plan = FIGURES[name]
    with torch.random.fork_rng(devices=[]):
        # One stream for both: an input drawn from the same seed as the weights would equal them.
        torch.default_generator.manual_seed(seed)
        model = create_model(plan.network, blocks=plan.blocks)
        if name == "figure2c":
            batch, inputs = _images(plan.batch)
        else:
            batch, inputs = torch.randn(plan.batch, 100), "Gaussian vectors"
    return MeasuredFigure(name, probe(model.to(device), batch.to(device)), inputs)


def _images(count: int) -> tuple[Tensor, str]:
    """Training images of CIFAR-10 where it is there; else Gaussian ones, and their name says so."""
    if find(*(name for form in CIFAR10.forms for name in (form.folder, form.archive))) is None:
        return torch.randn(count, 3, 32, 32), "Gaussian images (CIFAR-10 not found)"
    images = load("cifar10").train_images
    return standardize(images[torch.randperm(len(images))[:count]]), "CIFAR-10 images"
