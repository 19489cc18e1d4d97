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
from ..probing.figures import FIGURES, measure_figure
from ..provenance import Provenance
from .collect import INITIALIZATION, Probed

_L2 = 5e-4
_DEEP = (100, 1000)
_IMAGES = 4


def measure_probes(names: list[str], folder: Path, seed: int, device: str) -> None:
    """Measure what is not in the folder yet; each file appears whole."""
    for name in names:
        path = folder / INITIALIZATION / f"{name}.json"
        if not path.exists():
            _write(path, _measure(name, seed, device))


def _write(path: Path, probed: Probed) -> None:
    text = json.dumps(asdict(probed), indent=1, allow_nan=False)
    write_whole(path, lambda file: file.write(text.encode()))


def _measure(name: str, seed: int, device: str) -> Probed:
    provenance = asdict(Provenance.here(device))
    figure = next((known for known in FIGURES if known == name), None)
    if figure is None:
        rows = [_initial_loss(depth, seed) for depth in _DEEP]
        return Probed(name, f"{_IMAGES} Gaussian images", seed, rows, provenance)
    measured = measure_figure(figure, seed, device)
    rows = [row.to_dict() for row in measured.report.rows]
    return Probed(name, measured.conditions, seed, rows, provenance)


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
