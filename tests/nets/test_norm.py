"""Ghost batch norm against an explicit loop over ghosts, written here from appendix A."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from skipinit import ConfigError, GhostBatchNorm2d, create_model

EPS = 1e-5


class Loop:
    """One ghost after the other: normalize by its own biased statistics, then move the averages."""

    def __init__(self, channels: int, ghost: int, momentum: float) -> None:
        self.ghost, self.momentum = ghost, momentum
        self.mean = torch.zeros(channels, dtype=torch.float64)
        self.variance = torch.ones(channels, dtype=torch.float64)

    def __call__(self, x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        outputs = []
        for start in range(0, len(x), self.ghost):
            part = x[start : start + self.ghost]
            mean = part.mean(dim=(0, 2, 3))
            variance = (part**2).mean(dim=(0, 2, 3)) - mean**2
            scaled = (part - mean[:, None, None]) / torch.sqrt(variance[:, None, None] + EPS)
            outputs.append(gamma[:, None, None] * scaled + beta[:, None, None])
            self.mean = (1 - self.momentum) * self.mean + self.momentum * mean.detach()
            self.variance = (1 - self.momentum) * self.variance + self.momentum * variance.detach()
        return torch.cat(outputs)


def random_layer(channels: int, **options: object) -> GhostBatchNorm2d:
    layer = GhostBatchNorm2d(channels, **options)
    with torch.no_grad():
        layer.weight.copy_(torch.linspace(0.5, 1.5, channels))
        layer.bias.copy_(torch.linspace(-1, 1, channels))
    return layer


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Values whose mean and variance differ from one channel and one example to the next."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    shift = torch.randn(shape[:2], generator=generator)[:, :, None, None]
    return x * (1 + shift**2) + shift


def compare(layer: GhostBatchNorm2d, x: Tensor, ghost: int, tolerance: float, batches: int = 2) -> None:
    """Outputs, all three gradients and running statistics, over several batches in a row."""
    loop = Loop(x.shape[1], ghost, layer.momentum)
    for index in range(batches):
        ours = (x + index).detach().requires_grad_()
        theirs = (x + index).detach().double().requires_grad_()
        gamma, beta = (p.detach().double().requires_grad_() for p in (layer.weight, layer.bias))
        layer.zero_grad()
        out, expected = layer(ours), loop(theirs, gamma, beta)
        upstream = draw(*x.shape, seed=index + 5)
        out.backward(upstream.to(out.dtype))
        expected.backward(upstream.double())
        for actual, wanted in (
            (out, expected),
            (ours.grad, theirs.grad),
            (layer.weight.grad, gamma.grad),
            (layer.bias.grad, beta.grad),
            (layer.running_mean, loop.mean),
            (layer.running_var, loop.variance),
        ):
            error = (actual.double() - wanted).abs().max() / wanted.abs().max()
            assert error <= tolerance


GHOSTS = [(8, None, 8), (8, 8, 8), (8, 4, 4), (8, 1, 1), (1, 1, 1), (1, None, 1), (12, 3, 3)]


@pytest.mark.parametrize(("batch", "ghost", "loop_ghost"), GHOSTS)
@pytest.mark.parametrize("momentum", [0.1, 1.0])
def test_equals_the_loop(batch: int, ghost: int | None, loop_ghost: int, momentum: float) -> None:
    layer = random_layer(6, ghost_batch=ghost, momentum=momentum)
    compare(layer, draw(batch, 6, 5, 4), loop_ghost, tolerance=1e-6)


@pytest.mark.parametrize(("batch", "ghost", "loop_ghost"), GHOSTS)
def test_equals_the_loop_in_float64(batch: int, ghost: int | None, loop_ghost: int) -> None:
    layer = random_layer(6, ghost_batch=ghost).double()
    compare(layer, draw(batch, 6, 5, 4).double(), loop_ghost, tolerance=1e-13)


@pytest.mark.parametrize("ghost", [None, 4])
def test_channels_last_images(ghost: int | None) -> None:
    x = draw(8, 6, 5, 4).contiguous(memory_format=torch.channels_last)
    compare(random_layer(6, ghost_batch=ghost), x, ghost or 8, tolerance=1e-6)


@pytest.mark.parametrize("ghost", [None, 4])
def test_bfloat16_images_with_float32_parameters(ghost: int | None) -> None:
    """As under autocast: statistics stay float32, only the images are rounded (8 bits, so 2^-8 = 4e-3)."""
    layer = random_layer(6, ghost_batch=ghost)
    x = draw(8, 6, 5, 4).bfloat16()
    out = layer(x)
    loop = Loop(6, ghost or 8, layer.momentum)
    expected = loop(x.double(), layer.weight.detach().double(), layer.bias.detach().double())
    assert out.dtype == torch.bfloat16
    assert (out.double() - expected).abs().max() <= 2**-8 * expected.abs().max()
    assert layer.running_var.dtype == torch.float32
    torch.testing.assert_close(layer.running_mean.double(), loop.mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(layer.running_var.double(), loop.variance, rtol=1e-5, atol=1e-6)


def test_ghosts_of_one_example_are_instance_norm() -> None:
    x = draw(4, 6, 5, 5)
    expected = torch.nn.functional.instance_norm(x, eps=EPS)
    torch.testing.assert_close(GhostBatchNorm2d(6, ghost_batch=1)(x), expected)


def test_one_big_batch_equals_its_ghosts_one_after_the_other() -> None:
    whole, parts = (random_layer(6, ghost_batch=4).double() for _ in range(2))
    x = draw(12, 6, 5, 5).double()
    out = whole(x)
    one_by_one = torch.cat([parts(part) for part in x.split(4)])
    torch.testing.assert_close(out, one_by_one, rtol=1e-13, atol=1e-13)
    for name, buffer in whole.named_buffers():
        torch.testing.assert_close(buffer, parts.get_buffer(name), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("ghost", [None, 2, 64])
def test_test_time_uses_the_running_averages(ghost: int | None) -> None:
    """Per example, whatever else is in the batch and whether or not the ghost size divides it."""
    layer = random_layer(6, ghost_batch=ghost).eval()
    with torch.no_grad():
        layer.running_mean.copy_(torch.linspace(-2, 2, 6))
        layer.running_var.copy_(torch.linspace(0.5, 3, 6))
    x = draw(3, 6, 5, 4)
    averages = {name: buffer.clone() for name, buffer in layer.named_buffers()}

    def column(values: Tensor) -> Tensor:
        return values.detach()[:, None, None]

    scale = column(layer.weight) / torch.sqrt(column(layer.running_var) + EPS)
    expected = scale * (x - column(layer.running_mean)) + column(layer.bias)
    torch.testing.assert_close(layer(x), expected)
    assert all(torch.equal(buffer, averages[name]) for name, buffer in layer.named_buffers())


def test_batch_statistics_at_test_time_are_of_the_whole_batch_and_leave_the_averages_alone() -> None:
    layer = random_layer(6, ghost_batch=4, batch_statistics_at_test=True)
    x = draw(7, 6, 5, 4)  # a last test batch need not be a multiple of the ghost
    averages = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    expected = torch.nn.functional.batch_norm(x, None, None, layer.weight, layer.bias, training=True)
    torch.testing.assert_close(layer.eval()(x), expected)
    assert all(torch.equal(buffer, averages[name]) for name, buffer in layer.named_buffers())


def test_eps_is_the_one_given_in_training_and_at_test_time() -> None:
    layer, x = random_layer(6, eps=0.5), draw(4, 6, 5, 4)
    expected = torch.nn.functional.batch_norm(x, None, None, layer.weight, layer.bias, training=True, eps=0.5)
    torch.testing.assert_close(layer(x), expected)
    averages = layer.running_mean, layer.running_var
    expected = torch.nn.functional.batch_norm(x, *averages, layer.weight, layer.bias, eps=0.5)
    torch.testing.assert_close(layer.eval()(x), expected)


def test_two_values_of_one_channel_are_enough() -> None:
    """0 and 4: mean 2, biased variance 4."""
    layer = GhostBatchNorm2d(1).double()
    out = layer(torch.tensor([0.0, 4.0], dtype=torch.float64).view(2, 1, 1, 1))
    assert out.flatten().tolist() == pytest.approx([-2 / (4 + EPS) ** 0.5, 2 / (4 + EPS) ** 0.5])
    assert (layer.running_mean.item(), layer.running_var.item()) == pytest.approx((0.2, 0.9 + 0.4))


def test_the_averages_can_be_reset() -> None:
    layer = random_layer(2)
    layer(draw(4, 2, 3, 3))
    layer.reset_running_stats()
    assert (layer.running_mean.tolist(), layer.running_var.tolist()) == ([0, 0], [1, 1])


def test_the_options_of_a_network_reach_its_norms() -> None:
    model = create_model("wrn10_1", ghost_batch=2, batch_statistics_at_test=True, seed=0)
    norms = [module for module in model.modules() if isinstance(module, GhostBatchNorm2d)]
    assert len(norms) == 7
    assert {(norm.ghost_batch, norm.batch_statistics_at_test) for norm in norms} == {(2, True)}


def test_a_network_with_ghosts_treats_each_ghost_alone() -> None:
    model = create_model("wrn16_2", ghost_batch=2, seed=0).double()
    x = draw(6, 3, 8, 8).double()
    together = model(x)
    apart = torch.cat([model(part) for part in x.split(2)])
    torch.testing.assert_close(together, apart, rtol=1e-10, atol=1e-10)


def test_new_layers_start_at_gamma_one_beta_zero_mean_zero_variance_one() -> None:
    layer = GhostBatchNorm2d(3)
    starts = {name: tensor.tolist() for name, tensor in layer.state_dict().items()}
    assert starts == {
        "weight": [1, 1, 1],
        "bias": [0, 0, 0],
        "running_mean": [0, 0, 0],
        "running_var": [1, 1, 1],
    }
    assert layer.eps == EPS


def test_a_state_dict_loads_without_its_hidden_metadata() -> None:
    """Files of bare tensors (safetensors) carry none."""
    layer, other = random_layer(3), GhostBatchNorm2d(3)
    layer(draw(2, 3, 4, 4))
    other.load_state_dict(dict(layer.state_dict()))
    assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in layer.state_dict().items())


def test_a_ghost_that_does_not_divide_the_batch_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^ghost_batch 4 does not divide the batch of 6 examples"):
        GhostBatchNorm2d(2, ghost_batch=4)(draw(6, 2, 3, 3))


@pytest.mark.parametrize("ghost_batch", [0, -1, 2.5, "4", True])
def test_a_ghost_batch_is_a_whole_number_from_one(ghost_batch: object) -> None:
    with pytest.raises(ConfigError, match="must be a whole number, 1 or more"):
        GhostBatchNorm2d(2, ghost_batch=ghost_batch)  # type: ignore[arg-type]


def test_cumulative_averages_are_refused() -> None:
    """Torch's meaning of momentum=None."""
    with pytest.raises(ConfigError, match="momentum None is not allowed"):
        GhostBatchNorm2d(2, momentum=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("ghost_batch", [None, 2])
def test_an_empty_batch_is_refused(ghost_batch: int | None) -> None:
    with pytest.raises(ConfigError, match="got 0"):
        GhostBatchNorm2d(2, ghost_batch=ghost_batch)(torch.zeros(0, 2, 3, 3))


def test_one_value_per_channel_is_refused() -> None:
    with pytest.raises(ConfigError, match="2 values or more per channel and got 1"):
        GhostBatchNorm2d(2, ghost_batch=1)(draw(4, 2, 1, 1))


@pytest.mark.parametrize("name", ["fc_linear_bn", "fc_relu_bn", "conv_relu_bn"])
def test_theory_networks_keep_the_statistics_of_the_last_batch_biased_as_the_paper_does(name: str) -> None:
    model = create_model(name, blocks=1, width=7, in_channels=3, seed=0).double()
    x = draw(5, 3, 8, 8).double() if name == "conv_relu_bn" else draw(5, 3, 1, 1).double().flatten(1)
    seen: list[Tensor] = []
    norm = model.blocks[0].preactivation[0]
    norm.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(torch.zeros_like(x))
    model(x)
    values = seen[1].transpose(0, 1).flatten(1)
    torch.testing.assert_close(norm.running_mean, values.mean(dim=1))
    torch.testing.assert_close(norm.running_var, values.var(dim=1, correction=0))
