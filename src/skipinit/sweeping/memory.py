"""How much memory a pack takes, counted: weights, gradients, momentum, what is kept of a step, the images."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..config import TrainConfig
from ..data.catalog import describe
from ..nets.architectures import find_architecture
from ..nets.schemes import resolve
from .workload import Workload, count_work

WORKSPACE = 128 * 2**20
"""What each run of a pack of WRN-16-2 with SkipInit took on an H200 besides what is counted here, rounded."""


def pack_memory(configs: Sequence[TrainConfig], on_gpu: bool) -> int:
    """Bytes of a pack's runs and images; on the CPU runs step in turn, and only one keeps activations."""
    weights = sum(_weight_bytes(config, on_gpu) for config in configs)
    if not on_gpu:
        return weights + max(kept_bytes(config) for config in configs)
    own = sum(kept_bytes(config) + _chain_bytes(config) + WORKSPACE for config in configs)
    return weights + own + _image_bytes(configs[0].data)


def kept_bytes(config: TrainConfig) -> int:
    """What a run's forward pass keeps of a micro-batch until the backward pass."""
    return _value_bytes(config) * _work(config).kept * examples_at_once(config)


def _chain_bytes(config: TrainConfig) -> int:
    """Blocks run as chains in bfloat16 alone."""
    chained = _work(config).kept_by_chains if config.precision == "bfloat16" else 0
    return _value_bytes(config) * chained * examples_at_once(config)


def _value_bytes(config: TrainConfig) -> int:
    return 2 if config.precision == "bfloat16" else 4


def _work(config: TrainConfig) -> Workload:
    return count_work(config.model, describe(config.data).shape[1])


def _image_bytes(data: str) -> int:
    """Small images live on the device, a byte a value."""
    entry = describe(data)
    return (entry.train_size + entry.test_size) * math.prod(entry.shape) if entry.in_memory else 0


def examples_at_once(config: TrainConfig) -> int:
    """The micro-batch: whole ghosts, or everything where statistics are of the whole batch."""
    design = resolve(config.model, find_architecture(config.model.name))
    limit = describe(config.data).micro_batch
    normalized = design.branch_norm or design.final_norm
    unit = (design.ghost_batch or config.batch_size) if normalized else 1
    return min(max(limit // unit, 1) * unit, config.batch_size)


def _weight_bytes(config: TrainConfig, on_gpu: bool) -> int:
    """Weight, gradient and momentum in float32; on a GPU, for bfloat16, a rounded weight besides."""
    return (3 * 4 + (2 if on_gpu and config.precision == "bfloat16" else 0)) * _work(config).parameters
