"""Networks at initialization: the variances of Figures 2 and 5, and what the first loss is made of."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from ..files import write_whole
from ..nets.create import create_model
from ..nets.l2 import l2_parameters
from ..probing.figures import FIGURES, FigureName, measure_figure
from ..provenance import Provenance
from ..training.progress import steps_bar
from .collect import INITIALIZATION, Probed, read_probed

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
