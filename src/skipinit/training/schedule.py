"""Learning-rate schedules as functions of progress: the step out of all steps, in whole numbers.

Thresholds are fractions of the training, so each schedule fits any number of epochs and is exact at
the paper's.
"""

from __future__ import annotations

from collections.abc import Callable

from ..config import TrainConfig


def constant(step: int, total: int) -> float:
    """1"""
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
