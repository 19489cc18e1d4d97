"""Both schedules against tables written out by epoch, and against exact fractions elsewhere."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from skipinit.config import ModelConfig, TrainConfig
from skipinit.training.protocol import learning_rates

_CONFIG = TrainConfig(ModelConfig("wrn10_1"), "digits", lr=0.5, batch_size=64, epochs=200)


def _by_epoch(config: TrainConfig, steps: int) -> list[list[float]]:
    rates = learning_rates(config, steps)
    assert len(rates) == config.epochs * steps
    return [rates[first : first + steps] for first in range(0, len(rates), steps)]


def test_cifar_halves_at_100_110_and_on_to_190() -> None:
    table = {range(100): 0, range(100, 110): 1, range(110, 120): 2, range(120, 130): 3, range(130, 140): 4}
    table |= {range(140, 150): 5, range(150, 160): 6, range(160, 170): 7, range(170, 180): 8}
    table |= {range(180, 190): 9, range(190, 200): 10}
    epochs = _by_epoch(_CONFIG, 781)
    for numbers, halvings in table.items():
        for epoch in numbers:
            assert set(epochs[epoch]) == {0.5 / 2**halvings}, epoch


def test_imagenet_warms_up_over_5_of_90_holds_to_45_and_halves_every_5() -> None:
    steps = 40
    rates = learning_rates(replace(_CONFIG, schedule="imagenet", epochs=90), steps)
    assert rates[: 5 * steps] == pytest.approx([0.5 * step / (5 * steps) for step in range(5 * steps)])
    assert set(rates[5 * steps : 45 * steps]) == {0.5}
    for halving, epoch in enumerate(range(45, 90, 5), 1):
        assert set(rates[epoch * steps : (epoch + 5) * steps]) == {0.5 / 2**halving}


@pytest.mark.parametrize("epochs", [1, 3, 7, 10, 19, 33])
@pytest.mark.parametrize("steps", [1, 22, 31])
@pytest.mark.parametrize(("schedule", "parts"), [("cifar", 20), ("imagenet", 18)])
def test_any_length_keeps_the_same_fractions(epochs: int, steps: int, schedule: str, parts: int) -> None:
    rates = learning_rates(replace(_CONFIG, schedule=schedule, epochs=epochs), steps)
    total = epochs * steps
    milestones = [Fraction(1, 2) + Fraction(k, parts) for k in range(parts // 2)]
    for step, rate in enumerate(rates):
        done = Fraction(step, total)
        warm = done * parts if schedule == "imagenet" and done < Fraction(1, parts) else 1
        expected = Fraction(1, 2) * warm / 2 ** sum(done >= milestone for milestone in milestones)
        assert rate == pytest.approx(float(expected), rel=1e-15), step


def test_constant_stays() -> None:
    assert set(learning_rates(replace(_CONFIG, schedule="constant", epochs=3), 7)) == {0.5}
