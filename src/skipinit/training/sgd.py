"""Heavy-ball momentum with optional damping, and coupled L2 on the weights that take it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..config import TrainConfig
from ..nets.l2 import l2_parameters


def make_optimizer(model: nn.Module, config: TrainConfig, lr: Tensor) -> torch.optim.SGD:
    """g <- g + l2 w;  v <- momentum v + (1 - dampening) g;  w <- w - lr v;  v = 0 at the start.

    `lr` is a tensor on the model's device: it changes between steps without a new captured graph. torch
    would start v at the first gradient undamped, ten times too large at dampening 0.9; momentum
    buffers that exist and are zero make its first step like all others.
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
    return optimizer


def momentum_buffers(optimizer: torch.optim.SGD) -> list[Tensor]:
    """The velocities, in the order of the parameters."""
    return [state["momentum_buffer"] for state in optimizer.state.values()]
