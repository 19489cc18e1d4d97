"""What every table and figure would take on this machine, estimated in a second.

A convolution takes time in proportion to its examples, its pixels and the square of its width. So one small
network is timed, at two depths, and stands for all others: a wider one, or one on larger images, counts as a
larger batch of it. That some schemes are slower than others is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from itertools import product

import torch
from torch.nn import functional as F

from ..config import ModelConfig, TrainConfig
from ..data.catalog import describe
from ..nets.architectures import find_architecture
from ..nets.create import build
from ..sweeping.forecast import Measure, Step, epoch_seconds, estimate_step, fastest
from .cells import ExhibitCell, plan_cells
from .exhibits import EXHIBITS
from .presets import PRESETS

_NETWORK_SECONDS = 3.0
"""To measure one network at initialization."""
_NETWORKS = 5
"""Networks of a figure at initialization, on average, where the preset sets no limit."""
_SMALLEST_SIDE = 16
"""Pixels from which down a bottleneck ResNet gets no faster: half its feature maps are single pixels."""


def estimate_costs(device: torch.device, measure: Measure | None = None) -> dict[str, dict[str, float]]:
    """Seconds of each table and figure alone, by preset; without presets that have nothing of it.

    Args:
        device: where to train.
        measure: times a training step; `measure_network` unless given.
    """
    on_gpu = device.type == "cuda"
    timed = cache(measure or (lambda config: measure_network(config, device)))

    @cache
    def epoch(config: TrainConfig) -> float:
        return epoch_seconds(config, estimate_step(stand_in(config, on_gpu), timed, scale_batch=True))

    costs: dict[str, dict[str, float]] = {}
    for exhibit in EXHIBITS.values():
        costs[exhibit.name] = {}
        for preset in PRESETS.values():
            trials = count_trials(plan_cells(exhibit, preset))
            if trials or exhibit.probes:
                networks = len(exhibit.probes) * (preset.networks or _NETWORKS)
                training = sum(count * config.epochs * epoch(config) for config, count in trials.items())
                costs[exhibit.name][preset.name] = _NETWORK_SECONDS * networks + training
    return costs


def count_trials(planned: Iterable[ExhibitCell]) -> dict[TrainConfig, int]:
    """Trials of each config, rate and seed aside; one that two cells share counts once."""
    trials: defaultdict[TrainConfig, set[tuple[float, int]]] = defaultdict(set)
    for cell in planned:
        trials[replace(cell.config, lr=1.0, seed=0)].update(product(cell.rates, cell.seeds))
    return {config: len(places) for config, places in trials.items()}


def stand_in(config: TrainConfig, on_gpu: bool) -> TrainConfig:
    """A small network whose batch is as much work as the config's."""
    # Images as small as digits would leave a GPU idle.
    data, widen = ("cifar10", 2) if on_gpu else ("digits", 1)
    channels, side, _ = describe(data).shape
    architecture = find_architecture(config.model.name)
    its_side = describe(config.data).shape[1]
    if architecture.family != "wide-resnet":
        its_side = max(its_side, _SMALLEST_SIDE)
    work = (architecture.widen / widen * its_side / side) ** 2
    # For each pixel, a bottleneck block is about the work of a block of a Wide-ResNet of width 1.
    depth = 6 * (architecture.num_blocks // 3) + 4
    return TrainConfig(
        ModelConfig(f"wrn{depth}_{widen}", "skipinit", in_channels=channels),
        data,
        lr=1.0,
        batch_size=max(1, round(work * config.batch_size)),
        epochs=1,
        precision=config.precision if on_gpu else "float32",
    )


def measure_network(config: TrainConfig, device: torch.device) -> Step:
    """Forward and backward pass alone: an optimizer imports torch's compiler, which takes a second."""
    on_gpu, rounded = device.type == "cuda", config.precision == "bfloat16"
    layout = torch.channels_last if on_gpu else torch.contiguous_format
    model = build(config.model, seed=0).to(device)
    model.to(memory_format=layout)  # type: ignore[call-overload]
    shape = (config.batch_size, *describe(config.data).shape)
    images = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device, memory_format=layout)
    labels = torch.zeros(config.batch_size, dtype=torch.int64, device=device)
    weights = list(model.parameters())

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=rounded, cache_enabled=False):
            loss = F.cross_entropy(model(images).float(), labels)
        torch.autograd.grad(loss, weights)

    with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=config.precision != "float32"):
        return Step(fastest(_capture(step, device) if on_gpu else step, device))


def _capture(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The step as one CUDA graph, as in training."""
    with torch.cuda.device(device):
        warm_up = torch.cuda.Stream()
        warm_up.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm_up):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(warm_up)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
    return graph.replay
