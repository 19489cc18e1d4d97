"""The optimizer, step for step, against the protocol's equations in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from skipinit.config import ModelConfig, TrainConfig
from skipinit.nets.create import build
from skipinit.training.run import SGD, momentum_buffers

_L2 = 0.05  # large, so that a weight taking it wrongly cannot hide


def _config(scheme: str, momentum: float, dampening: float) -> TrainConfig:
    model = ModelConfig("wrn10_1", scheme, num_classes=10, in_channels=1)
    return TrainConfig(
        model, "digits", lr=1.0, batch_size=8, epochs=1, momentum=momentum, dampening=dampening, l2=_L2
    )


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().numpy().astype(np.float64)


def _takes_l2(parameter: nn.Parameter) -> bool:
    """A convolution's weight has four axes and a dense one two; biases, norms and scalars have fewer."""
    return parameter.ndim in (2, 4)


@pytest.mark.parametrize("scheme", ["batchnorm", "regularized-skipinit", "fixup"])
@pytest.mark.parametrize(
    ("momentum", "dampening"), [(0.9, 0.0), (0.9, 0.9), (0.5, 0.25), (0.0, 0.0), (0.0, 0.9)]
)
def test_twelve_steps_equal_the_equations_in_float64(scheme: str, momentum: float, dampening: float) -> None:
    config = _config(scheme, momentum, dampening)
    model = build(config.model, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)  # zeros would not show whether they take L2
    lr = torch.zeros(())
    optimizer = SGD(model, config, lr)
    weights = {name: _array(parameter) for name, parameter in model.named_parameters()}
    velocities = {name: np.zeros_like(weight) for name, weight in weights.items()}
    draw = np.random.default_rng(2)
    for step in range(12):
        rate = np.float32(0.1 * 0.7**step)
        lr.fill_(float(rate))
        for name, parameter in model.named_parameters():
            gradient = draw.standard_normal(parameter.shape).astype(np.float32)
            parameter.grad = torch.tensor(gradient)
            total = gradient + (_L2 * weights[name] if _takes_l2(parameter) else 0.0)
            velocities[name] = momentum * velocities[name] + (1 - dampening) * total
            weights[name] = weights[name] - float(rate) * velocities[name]
        optimizer.step()
        for name, parameter in model.named_parameters():
            np.testing.assert_allclose(_array(parameter), weights[name], rtol=0, atol=2e-6, err_msg=name)


def test_the_first_step_is_damped_like_all_others() -> None:
    config = _config("skipinit", momentum=0.9, dampening=0.9)
    model = build(config.model, seed=1)
    optimizer = SGD(model, config, torch.ones(()))
    bias = model.get_parameter("head.dense.bias")
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    np.testing.assert_allclose(_array(bias), -0.1, rtol=1e-6)  # torch alone would go to -1


def test_every_kind_of_parameter_is_moved_and_has_its_velocity() -> None:
    config = _config("fixup", momentum=0.9, dampening=0.0)
    model = build(config.model, seed=1)
    optimizer = SGD(model, config, torch.ones(()))
    shapes = [velocity.shape for velocity in momentum_buffers(model, optimizer).values()]
    assert shapes == [parameter.shape for parameter in model.parameters()]
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(shapes)


def test_without_momentum_there_are_no_velocities() -> None:
    config = _config("skipinit", momentum=0.0, dampening=0.0)
    model = build(config.model, seed=1)
    assert momentum_buffers(model, SGD(model, config, torch.ones(()))) == {}
