"""SGD with momentum, optional dampening and coupled L2, and learning-rate schedules.

A schedule is a function of two whole numbers, the step and the number of all steps. Its thresholds are
fractions of the training: it fits any number of epochs, and is exact for the paper's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.sgd import sgd

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


class SGD(Optimizer):
    """g <- g + l2 w;  v <- momentum v + (1 - dampening) g;  w <- w - lr v;  v = 0 at the start

    torch's own SGD sets v to the first gradient without dampening, ten times too large at dampening 0.9, and
    ignores dampening without momentum. Its methods import torch's compiler, which takes more than a second;
    the function that they call does not.

    `lr` is a tensor on the model's device, so that a captured graph can change it.
    """

    def __init__(self, model: nn.Module, config: TrainConfig, lr: Tensor) -> None:
        decayed = l2_parameters(model)
        rest = [parameter for name, parameter in model.named_parameters() if name not in decayed]
        groups = [{"params": [*decayed.values()], "l2": config.l2}, {"params": rest, "l2": 0.0}]
        super().__init__(groups, {})
        self.config, self.lr = config, lr
        if config.momentum:
            for parameter in model.parameters():
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Called by torch with each group of parameters."""
        self.param_groups.append(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the parameters that have a gradient."""
        momentum, dampening = self.config.momentum, self.config.dampening
        for group in self.param_groups:
            moved = [parameter for parameter in group["params"] if parameter.grad is not None]
            sgd(
                moved,
                [parameter.grad for parameter in moved],
                [self.state[parameter]["momentum_buffer"] for parameter in moved] if momentum else [],
                weight_decay=group["l2"],
                momentum=momentum,
                lr=self.lr if momentum else self.lr * (1 - dampening),  # type: ignore[arg-type]
                dampening=dampening,
                nesterov=False,
                maximize=False,
                fused=True,
            )


def momentum_buffers(model: nn.Module, optimizer: SGD) -> dict[str, Tensor]:
    """The velocities by the names of their parameters; none without momentum."""
    return {
        name: optimizer.state[parameter]["momentum_buffer"]
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state
    }
