"""How much memory a pack takes, counted: weights, gradients, momentum, and what forward passes keep."""

from __future__ import annotations

from collections.abc import Sequence

from ..config import TrainConfig
from ..data.catalog import describe
from ..nets.architectures import find_architecture
from ..nets.schemes import resolve
from .workload import count_work


def pack_memory(configs: Sequence[TrainConfig], on_gpu: bool) -> int:
    """Bytes of all runs of a pack; on the CPU, where they step in turn, only one keeps activations."""
    activations = [kept_bytes(config) for config in configs]
    weights = sum(_weight_bytes(config, on_gpu) for config in configs)
    return weights + (sum(activations) if on_gpu else max(activations))


def kept_bytes(config: TrainConfig) -> int:
    """What a run's forward pass keeps of a micro-batch until the backward pass."""
    work = count_work(config.model, describe(config.data).shape[1])
    return (2 if config.precision == "bfloat16" else 4) * work.kept * examples_at_once(config)


def examples_at_once(config: TrainConfig) -> int:
    """The micro-batch: whole ghosts, or everything where statistics are of the whole batch."""
    design = resolve(config.model, find_architecture(config.model.name))
    limit = describe(config.data).micro_batch
    normalized = design.branch_norm or design.final_norm
    unit = (design.ghost_batch or config.batch_size) if normalized else 1
    return min(max(limit // unit, 1) * unit, config.batch_size)


def _weight_bytes(config: TrainConfig, on_gpu: bool) -> int:
    """Weight, gradient and momentum in float32; on a GPU, for bfloat16, a rounded weight besides."""
    work = count_work(config.model, describe(config.data).shape[1])
    return (3 * 4 + (2 if on_gpu and config.precision == "bfloat16" else 0)) * work.parameters
