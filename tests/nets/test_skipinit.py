"""SkipInit: blocks that are the identity at alpha = 0, gradients as its equation says, and great depth."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from skipinit import create_model
from skipinit.nets.merges import SkipInit


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def alphas(model: nn.Module) -> list[nn.Parameter]:
    return [p for name, p in model.named_parameters() if name.endswith("alpha")]


# --- identity at alpha = 0 -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "scheme", "identities"),
    [
        ("wrn16_2", "skipinit", 3),
        ("wrn16_2", "regularized-skipinit", 3),
        ("wrn100_2", "skipinit", 45),
        ("wrn1000_2", "skipinit", 495),
        ("resnet50_v2", "skipinit", 16 - 4 - 3),
    ],
)
def test_every_identity_skip_returns_its_input_bit_for_bit(name: str, scheme: str, identities: int) -> None:
    """All blocks but transitions, and on V2 those that subsample."""
    model = create_model(name, scheme=scheme, seed=0).train()
    x = randn(1, 3, 8, 8) if name.startswith("wrn") else randn(1, 3, 64, 64)
    found = 0
    with torch.no_grad():
        x = model.stem(x)
        for block in model.blocks:
            before, x = x, block(x)
            found += torch.equal(before, x)
    assert found == identities


def test_a_subsampling_block_of_v2_returns_every_second_pixel() -> None:
    model = create_model("resnet50_v2", scheme="skipinit", seed=0)
    x = randn(2, 256, 7, 6)
    assert torch.equal(model.blocks[2](x), x[:, :, [0, 2, 4, 6]][..., [0, 2, 4]])


@pytest.mark.parametrize(("name", "d"), [("wrn16_2", 6), ("wrn100_2", 48), ("wrn1000_2", 498)])
def test_alpha_one_over_sqrt_d(name: str, d: int) -> None:
    model = create_model(name, scheme="skipinit", alpha="1/sqrt(d)", seed=0)
    assert model.num_blocks == d
    starts = {alpha.item() for alpha in alphas(model)}
    assert len(alphas(model)) == d
    assert starts == {float(np.float32(1 / math.sqrt(d)))}


@pytest.mark.parametrize("alpha", [0, 1, 0.25, -2])
def test_any_number_is_an_alpha(alpha: float) -> None:
    model = create_model("wrn10_1", scheme="skipinit", alpha=alpha, seed=0)
    assert [start.item() for start in alphas(model)] == [alpha] * 3


# --- gradients ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "index", "shape"), [("wrn16_2", 1, (2, 32, 8, 8)), ("resnet50_v2", 1, (2, 256, 5, 5))]
)
def test_gradients_at_alpha_zero(name: str, index: int, shape: tuple[int, ...]) -> None:
    """dL/dalpha = <dL/dout, f(x)>, dL/dx = dL/dout, and nothing reaches the branch's convolutions."""
    block = create_model(name, scheme="skipinit", seed=0).double().blocks[index]
    x = randn(*shape, dtype=torch.float64).requires_grad_()
    upstream = randn(*shape, seed=1, dtype=torch.float64)
    block(x).backward(upstream)
    with torch.no_grad():
        branch = block.branch(block.preactivation(x))
    assert block.merge.alpha.grad.item() == pytest.approx((upstream * branch).sum().item(), rel=1e-12)
    assert torch.equal(x.grad, upstream)
    weights = [module.weight for module in block.branch if isinstance(module, nn.Conv2d)]
    assert len(weights) == (2 if name == "wrn16_2" else 3)
    assert all(weight.grad is not None and not weight.grad.any() for weight in weights)


def convolution_matrix(weight: np.ndarray, size: int) -> np.ndarray:
    """The 3x3 convolution with zero padding of size x size images, as a matrix built entry by entry."""
    out_channels, in_channels = weight.shape[:2]
    matrix = np.zeros((out_channels, size, size, in_channels, size, size))
    for row in range(size):
        for column in range(size):
            for i in (-1, 0, 1):
                for j in (-1, 0, 1):
                    if 0 <= row + i < size and 0 <= column + j < size:
                        matrix[:, row, column, :, row + i, column + j] = weight[:, :, i + 1, j + 1]
    return matrix.reshape(out_channels * size**2, in_channels * size**2)


def test_gradients_at_other_alphas_by_hand() -> None:
    """out = x + a B relu(A relu(x)), differentiated by hand with A and B as matrices."""
    alpha, size, channels = 0.7, 3, 16
    block = create_model("wrn10_1", scheme="skipinit", alpha=alpha, seed=0).double().blocks[0]
    with torch.no_grad():
        block.merge.alpha.fill_(alpha)
    x = randn(1, channels, size, size, dtype=torch.float64).requires_grad_()
    upstream = randn(1, channels, size, size, seed=1, dtype=torch.float64)
    out = block(x)
    out.backward(upstream)

    first, second = (block.branch.get_submodule(name).weight for name in ("conv1", "conv2"))
    A, B = (convolution_matrix(weight.detach().numpy(), size) for weight in (first, second))
    values, g = x.detach().numpy().ravel(), upstream.numpy().ravel()
    h = np.maximum(values, 0)
    u = A @ h
    branch = B @ np.maximum(u, 0)
    to_u = alpha * (B.T @ g) * (u > 0)
    np.testing.assert_allclose(out.detach().numpy().ravel(), values + alpha * branch, rtol=1e-12)
    np.testing.assert_allclose(block.merge.alpha.grad.item(), g @ branch, rtol=1e-12)
    np.testing.assert_allclose(
        x.grad.numpy().ravel(), g + (A.T @ to_u) * (values > 0), rtol=1e-11, atol=1e-12
    )
    for weight, incoming, outgoing in ((first, h, to_u), (second, np.maximum(u, 0), alpha * g)):
        expected = kernel_gradient(outgoing, incoming, channels, size)
        np.testing.assert_allclose(weight.grad.numpy(), expected, rtol=1e-11, atol=1e-12)


def kernel_gradient(outgoing: np.ndarray, incoming: np.ndarray, channels: int, size: int) -> np.ndarray:
    """Sum over pixels p of the gradient at p times the input at p + offset."""
    gradient = outgoing.reshape(channels, size, size)
    padded = np.pad(incoming.reshape(channels, size, size), ((0, 0), (1, 1), (1, 1)))
    kernel = np.zeros((channels, channels, 3, 3))
    for i in range(3):
        for j in range(3):
            kernel[:, :, i, j] = np.einsum("oxy,cxy->oc", gradient, padded[:, i : i + size, j : j + size])
    return kernel


def test_the_loss_of_a_whole_network_reaches_every_alpha_and_then_every_convolution() -> None:
    """At 0 the branch convolutions wait; one step on alpha alone and the gradient reaches them all."""
    model = create_model("wrn16_2", scheme="skipinit", seed=0)
    x, labels = randn(4, 3, 16, 16), torch.tensor([0, 1, 2, 3])
    nn.functional.cross_entropy(model(x), labels).backward()
    assert all(alpha.grad.item() != 0 for alpha in alphas(model))
    branch = [p for name, p in model.named_parameters() if ".branch." in name]
    assert len(branch) == 12
    assert not any(p.grad.any() for p in branch)
    with torch.no_grad():
        for alpha in alphas(model):
            alpha -= 0.1 * alpha.grad
    model.zero_grad()
    nn.functional.cross_entropy(model(x), labels).backward()
    assert all(p.grad.any() for p in branch)


def test_the_merge_is_one_operation() -> None:
    merge = SkipInit(0.5)
    # Without acc_events torch 2.11 warns that the events of the last cycle alone are kept: there is one.
    on_cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=on_cpu, acc_events=True) as profile:
        merge(randn(2, 3), randn(2, 3, seed=1))
    computing = {event.key for event in profile.key_averages()} & {"aten::add", "aten::mul", "aten::addcmul"}
    assert computing == {"aten::addcmul"}


@pytest.mark.parametrize("alpha", [0, 1, True])
def test_a_whole_number_is_a_start_that_trains(alpha: int) -> None:
    merge = SkipInit(alpha)
    branch = torch.full((3,), 2.0)
    merge(torch.ones(3), branch).sum().backward()
    assert merge.alpha.item() == alpha
    assert merge.alpha.grad is not None
    assert merge.alpha.grad.item() == branch.sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_merge_keeps_the_type_of_its_operands(dtype: torch.dtype) -> None:
    assert SkipInit(0.5)(randn(2, 3).to(dtype), randn(2, 3).to(dtype)).dtype == dtype


# --- WRN-1000-2 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["batchnorm", "skipinit"])
def test_a_thousand_layers_build_fast_and_stay_finite(scheme: str) -> None:
    start = time.process_time()  # of this process: the machine may be busy with others
    model = create_model("wrn1000_2", scheme=scheme, seed=0)
    assert time.process_time() - start < 5
    loss = nn.functional.cross_entropy(model(randn(2, 3, 8, 8)), torch.tensor([0, 1]))
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_a_thousand_layers_at_alpha_one_overflow_without_an_error() -> None:
    """Variance 2^498 is beyond float32: a result, not an error."""
    model = create_model("wrn1000_2", scheme="skipinit", alpha=1, seed=0)
    loss = nn.functional.cross_entropy(model(randn(2, 3, 8, 8)), torch.tensor([0, 1]))
    loss.backward()
    assert not torch.isfinite(loss)
