"""Estimates how long every table and figure would take on this machine.

A convolution takes a fixed time, and one in proportion to its examples, its pixels and the square of its
width. So a step of one small network is timed, and all others are scaled from it: a deeper network has more
such blocks; a wider one, or one on larger images, counts as a larger batch. Differences between schemes are
ignored. Photographs must also be decoded, which takes longer than training on them on a fast device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cache
from itertools import product
from typing import NamedTuple

import torch
from torch.nn import functional as F

from ..config import ModelConfig, Precision, TrainConfig
from ..data.catalog import describe
from ..nets.architectures import find_architecture
from ..nets.create import build
from ..provenance import usable_cores
from ..sweeping.forecast import Step, epoch_seconds, fastest
from ..sweeping.workers import workers_at_once
from ..training.world import open_device
from .cells import ExhibitCell, plan_cells, shared_config
from .exhibits import EXHIBITS, Exhibit
from .presets import PRESETS, Preset

_NETWORK_SECONDS = 3.0
"""To measure one network at initialization."""
_NETWORKS = 5
"""Networks of a figure at initialization, on average, where the preset sets no limit."""
_SMALLEST_SIDE = 16
"""Pixels from which down a bottleneck ResNet gets no faster: half its feature maps are single pixels."""
_ROUNDS = 5
"""Rounds of timing the step; the fastest counts, because other work on the machine slows single ones down."""


_DECODED = 228
"""Photographs that a core decodes in a second (results/imagenet-pipeline.json)."""


class Timed(NamedTuple):
    """The network, data and batch that are timed."""

    network: str
    data: str
    batch: int
    fixed: int
    """The fixed time of a step, as a number of examples."""
    trained: float
    """Time of the same step within a trial, relative to the timed step."""


# Images as small as digits would leave a GPU idle. `fixed` was measured on an AVX2 core at batches of 2, 32
# and 128, which it fits within 5 %, and on an H200 in bfloat16 (results/train-speed.json). There trials are
# compiled and step in packs, which the timed one is not and does not: four networks with SkipInit and with
# batch norm take 0.24 to 0.51 of its time (results/sweep-speed.json), 0.36 by the geometric mean.
_TIMED = {"cpu": Timed("wrn28_1", "digits", 32, 26, 1.0), "cuda": Timed("wrn28_2", "cifar10", 512, 128, 0.36)}

Measure = Callable[[Precision], float]
"""Seconds of a training step of the timed network."""


def estimate_costs(device: torch.device, measure: Measure | None = None) -> dict[str, dict[str, float]]:
    """Seconds of each table and figure alone, and of `all`, by preset; presets without it are left out.

    A trial that several of them have is trained once.

    Args:
        device: where to train.
        measure: times a training step; `measure_step` unless given.
    """
    timed = cache(measure or (lambda precision: measure_step(precision, device)))
    at_once = workers_at_once() if device.type == "cpu" else 1

    @cache
    def epoch(config: TrainConfig) -> float:
        step = Step(estimate_step(config, timed(config.precision), device.type))
        return max(epoch_seconds(config, step), decoding_seconds(config.data))

    def cost(exhibits: Iterable[Exhibit], preset: Preset) -> float:
        planned = [cell for exhibit in exhibits for cell in plan_cells(exhibit, preset)]
        trials = count_trials(cell for cell in planned if not ends_at_once(cell))
        training = sum(count * config.epochs * epoch(config) for config, count in trials.items())
        networks = sum(len(exhibit.probes) for exhibit in exhibits) * (preset.networks or _NETWORKS)
        return _NETWORK_SECONDS * networks + training / at_once

    parts = {name: [exhibit] for name, exhibit in EXHIBITS.items()} | {"all": [*EXHIBITS.values()]}
    return {
        name: {preset.name: seconds for preset in PRESETS.values() if (seconds := cost(exhibits, preset))}
        for name, exhibits in parts.items()
    }


def ends_at_once(cell: ExhibitCell) -> bool:
    """Whether its runs take no time: where the paper's network failed, ours explode within a few steps.

    Divided by the square root of 2 a network keeps its variance. It fails, too, but trains on at chance.
    """
    published = cell.exhibit.cells.get((cell.method.name, cell.at))
    return published is not None and published.failed and cell.method.scheme != "divide-sqrt2"


def count_trials(planned: Iterable[ExhibitCell]) -> dict[TrainConfig, int]:
    """Trials of each config, rate and seed aside; one that two cells share counts once."""
    trials: defaultdict[TrainConfig, set[tuple[float, int]]] = defaultdict(set)
    for cell in planned:
        trials[shared_config(cell.config)].update(product(cell.rates, cell.seeds))
    return {config: len(places) for config, places in trials.items()}


def count_work(config: TrainConfig, kind: str) -> tuple[float, float]:
    """The blocks relative to the timed network, and the batch of that network that is as much work."""
    name, data, *_ = _TIMED[kind]
    timed, own = find_architecture(name), find_architecture(config.model.name)
    side = describe(config.data).shape[1]
    if own.family != "wide-resnet":
        side = max(side, _SMALLEST_SIDE)
    # For each pixel, a bottleneck block is about the work of a block of a Wide-ResNet of width 1.
    work = (own.widen / timed.widen * side / describe(data).shape[1]) ** 2
    return own.num_blocks / timed.num_blocks, work * config.batch_size


def estimate_step(config: TrainConfig, timed: float, kind: str) -> float:
    """Seconds of a trial's training step, if the timed step takes `timed` seconds."""
    _, _, timed_batch, fixed, trained = _TIMED[kind]
    blocks, batch = count_work(config, kind)
    return trained * timed * blocks * (fixed + batch) / (fixed + timed_batch)


def decoding_seconds(data: str) -> float:
    """Seconds that all cores need to decode the images of an epoch."""
    found = describe(data)
    return 0.0 if found.in_memory else (found.train_size + found.test_size) / (_DECODED * usable_cores())


def measure_step(precision: Precision, device: torch.device) -> float:
    """Forward and backward pass alone: an optimizer imports torch's compiler, which takes a second."""
    name, data, batch, *_ = _TIMED[device.type]
    on_gpu, shape = device.type == "cuda", describe(data).shape
    layout = torch.channels_last if on_gpu else torch.contiguous_format
    model = build(ModelConfig(name, "skipinit", in_channels=shape[0], num_classes=10), seed=0).to(device)
    model.to(memory_format=layout)  # type: ignore[call-overload]
    generator = torch.Generator().manual_seed(0)
    images = torch.randn((batch, *shape), generator=generator).to(device, memory_format=layout)
    labels = torch.zeros(batch, dtype=torch.int64, device=device)
    weights = list(model.parameters())

    def step() -> None:
        rounded = precision == "bfloat16"
        with torch.autocast(device.type, torch.bfloat16, enabled=rounded, cache_enabled=False):
            loss = F.cross_entropy(model(images).float(), labels)
        torch.autograd.grad(loss, weights)

    cudnn = torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=precision != "float32")
    with open_device(device), cudnn:
        taken = _capture(step) if on_gpu else step
        return min(fastest(taken, device) for _ in range(_ROUNDS))


def _capture(step: Callable[[], None]) -> Callable[[], None]:
    """The step as one CUDA graph, as in training."""
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
