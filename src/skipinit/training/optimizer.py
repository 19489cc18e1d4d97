"""SGD with momentum, optional dampening and coupled L2, and learning-rate schedules.

A schedule is a function of two whole numbers, the step and the number of all steps. Its thresholds are
fractions of the training: it fits any number of epochs, and is exact for the paper's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..config import TrainConfig
from ..nets.layers import l2_parameters


def constant(step: int, total: int) -> float:
    """Always 1."""
    return 1.0


def cifar(step: int, total: int) -> float:
    """1 for the first half, then halved at once and after every twentieth (200 epochs: at 100, 110, ...)."""
    return 0.5 ** _halvings(step, total, parts=20)


def imagenet(step: int, total: int) -> float:
    """From 0 to 1 over an eighteenth, 1 to the half, then halved every eighteenth (90 epochs: every 5)."""
    if 18 * step < total:
        return 18 * step / total
    return 0.5 ** _halvings(step, total, parts=18)


def _halvings(step: int, total: int, parts: int) -> int:
    """How many `parts`-ths of the training have begun since its middle, the one at the middle included."""
    if 2 * step < total:
        return 0
    return 1 + (2 * parts * step - parts * total) // (2 * total)


SCHEDULES: dict[str, Callable[[int, int], float]] = {
    "cifar": cifar,
    "imagenet": imagenet,
    "constant": constant,
}


def learning_rates(config: TrainConfig, steps_per_epoch: int) -> list[float]:
    """The learning rate of every step of a run."""
    total = config.epochs * steps_per_epoch
    factor = SCHEDULES[config.schedule]
    return [config.lr * factor(step, total) for step in range(total)]


def make_optimizer(model: nn.Module, config: TrainConfig, lr: Tensor) -> torch.optim.SGD:
    """g <- g + l2 w;  v <- momentum v + (1 - dampening) g;  w <- w - lr v;  v = 0 at the start.

    `lr` is a tensor on the model's device, so that a captured graph can change it. torch sets v to the first
    gradient without dampening, ten times too large at dampening 0.9; momentum buffers that are zero make the
    first step like all others. Without momentum torch ignores dampening, so the learning rate is multiplied.
    """
    decayed = l2_parameters(model)
    rest = [parameter for name, parameter in model.named_parameters() if name not in decayed]
    groups: list[dict[str, Any]] = [
        {"params": list(decayed.values()), "weight_decay": config.l2},
        {"params": rest},
    ]
    optimizer = torch.optim.SGD(
        groups,
        lr=lr,
        momentum=config.momentum,
        dampening=config.dampening,
        fused=True,
    )
    if config.momentum:
        for parameter in model.parameters():
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    elif config.dampening:

        def damp(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            for group in optimizer.param_groups:
                group["lr"] = lr * (1 - config.dampening)

        optimizer.register_step_pre_hook(damp)
    return optimizer


def momentum_buffers(model: nn.Module, optimizer: torch.optim.SGD) -> dict[str, Tensor]:
    """The velocities by the names of their parameters; none without momentum."""
    return {
        name: optimizer.state[parameter]["momentum_buffer"]
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state
    }
