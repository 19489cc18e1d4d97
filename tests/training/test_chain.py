"""A chain of blocks and its kernels, without a GPU.

What a chain asks of the kernels, and how the gradients of weights and scalars come out of it, is tested
against autograd, with plain convolutions in float64 in place of the kernels. The kernels are then compared
with these plain convolutions: Triton's interpreter runs them on the CPU, in float32, because it cannot
compute in bfloat16. `test_gpu.py` runs them compiled.
"""

from __future__ import annotations

import copy
import importlib
import math
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.grad import conv2d_input, conv2d_weight

from skipinit.config import ModelConfig
from skipinit.nets.create import build

_KERNELS, _CHAIN = "skipinit.training.kernels.convolution", "skipinit.training.kernels.bfloat16"


def _convolve_into(
    y: Tensor | None,
    x: Tensor,
    weight: Tensor,
    to_input: bool,
    *,
    activated: Tensor | None = None,
    scale: Tensor | None = None,
    gate: Tensor | None = None,
    added: Tensor | None = None,
    keep: float = 1.0,
) -> None:
    shape = (len(x), weight.shape[1], *x.shape[2:])
    out = conv2d_input(shape, weight, x, padding=1) if to_input else F.conv2d(x, weight, padding=1)
    out = out if scale is None else scale * out
    out = out if gate is None else out * (gate > 0)
    out = out if added is None else keep * added + out
    if y is not None:
        y.copy_(out)
    if activated is not None:
        activated.copy_(out.relu())


def _weight_gradients(
    x: Tensor, grad: Tensor, scales: Tensor | None = None, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    shape = (grad.shape[2], x.shape[2], 3, 3)
    plain = torch.stack([conv2d_weight(i, shape, g, padding=1) for i, g in zip(x, grad, strict=True)])
    if scales is None or weights is None:
        return plain, plain
    return plain * scales.view(-1, 1, 1, 1, 1), (plain * weights).flatten(1)


@pytest.fixture
def chain_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    plain = ModuleType(_KERNELS)
    vars(plain).update(
        FEW_CHANNELS=frozenset((16, 32, 64, 128)),
        convolve_into=_convolve_into,
        weight_gradients=_weight_gradients,
        convolve_3x3=None,  # for convolutions that are in no chain
        weight_gradient_3x3=None,
    )
    monkeypatch.setitem(sys.modules, _KERNELS, plain)
    monkeypatch.delitem(sys.modules, _CHAIN, raising=False)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    yield importlib.import_module(_CHAIN).chain_blocks
    sys.modules.pop(_CHAIN, None)  # it holds the plain convolutions


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the kernels; `conftest.py` has Triton interpret them."""
    pytest.importorskip("triton", reason="needs the extra `kernels`")
    if torch.cuda.is_available():
        pytest.skip("Triton compiles the kernels here: test_gpu.py")
    module = importlib.import_module(_KERNELS)
    monkeypatch.setattr(module, "_SUM_PROGRAMS", 24)  # to interpret one takes milliseconds
    return module


def _images(*shape: int) -> Tensor:
    """Normal values of one layer or several, each layer channels last."""
    x = torch.randn(math.prod(shape[:-3]), *shape[-3:])
    return x.contiguous(memory_format=torch.channels_last).view(shape)


def _error(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


def _fill(chain: Any) -> None:
    """What `RoundedWeights` copies before every step, but unrounded."""
    stack = torch.cat([layer.weight.detach() for layer in chain.convolutions])
    chain.weights = stack.contiguous(memory_format=torch.channels_last).view(chain.weights.shape)
    chain.scales = torch.ones(len(chain.convolutions), dtype=stack.dtype)
    chain.scales[chain.closing] = chain.keep
    if chain.alphas:
        chain.scales[chain.closing] = torch.stack([alpha.detach() for alpha in chain.alphas])


@pytest.mark.parametrize(
    ("name", "scheme", "options", "layers"),
    [
        ("wrn22_1", "skipinit", {"alpha": 0.7}, [6, 5, 5]),  # the first group of width 1 has no transition
        ("wrn22_2", "skipinit", {"alpha": 0.0}, [5, 5, 5]),
        ("wrn16_2", "skipinit", {"alpha": "1/sqrt(d)"}, [3, 3, 3]),
        ("wrn16_2", "divide-sqrt2", {}, [3, 3, 3]),
        ("wrn16_2", "skipinit", {"alpha": 0.5, "projection": "raw"}, [3, 3, 3]),
        ("wrn10_2", "none", {}, [1, 1, 1]),
        ("wrn10_4", "skipinit", {"alpha": 1.0}, [1, 1]),  # 256 channels are not few
        ("wrn16_2", "batchnorm", {}, []),
        ("wrn16_2", "regularized-skipinit", {}, []),
        ("wrn16_2", "fixup", {}, []),
    ],
)
def test_a_chain_computes_what_its_blocks_compute(
    chain_blocks: Any, name: str, scheme: str, options: dict[str, Any], layers: list[int]
) -> None:
    chained = build(ModelConfig(name, scheme, num_classes=10, **options), seed=1).double().eval()
    plain = copy.deepcopy(chained)
    chains = chain_blocks(chained.blocks)
    assert [len(chain.convolutions) for chain in chains] == layers
    assert list(chained.state_dict()) == list(plain.state_dict())
    for chain in chains:
        _fill(chain)
    torch.manual_seed(0)
    images, gradient = torch.randn(3, 3, 8, 8).double(), torch.randn(3, 10).double()
    inputs = [images.clone().requires_grad_() for _ in range(2)]
    ours, theirs = chained(inputs[0]), plain(inputs[1])
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    for out in (ours, theirs):
        out.backward(gradient)
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, rtol=1e-11, atol=1e-13)
    for (parameter, mine), right in zip(chained.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, right.grad, rtol=1e-10, atol=1e-12, msg=parameter)
    with torch.no_grad():
        torch.testing.assert_close(chained(images), plain(images), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("given", "results"),
    [
        ((), ("y",)),
        ((), ("activated",)),  # the first layer of a block
        (("scale", "added"), ("y", "activated")),  # the second one
        (("scale", "gate"), ("y",)),  # backward to the input of the second
        (("gate", "added"), ("y",)),  # and of the first
    ],
)
@pytest.mark.parametrize("to_input", [False, True])
@pytest.mark.parametrize("wide", [False, True])
def test_a_convolution_and_what_follows_it_equal_plain_ones(
    kernels: Any,
    monkeypatch: pytest.MonkeyPatch,
    given: tuple[str, ...],
    results: tuple[str, ...],
    to_input: bool,
    wide: bool,
) -> None:
    """One program has 64 of 189 pixels and of 128 channels; with indices of 32 and of 64 bits."""
    monkeypatch.setattr(kernels, "_is_wide", lambda *size: wide)
    channels, out = (128, 16) if to_input else (16, 128)
    x, weight = _images(3, channels, 9, 7), _images(128, 16, 3, 3)
    gate = _images(3, out, 9, 7).relu()  # zero at half of all places, where a ReLU was closed
    all_given = {"scale": torch.tensor(0.3), "gate": gate, "added": _images(3, out, 9, 7)}
    options = {name: all_given[name] for name in given}
    exact = {name: value.double() for name, value in options.items()}
    found, expected = (
        {name: torch.empty_like(gate, dtype=dtype) for name in results}
        for dtype in (torch.float32, torch.float64)
    )
    for convolve, images, by, outputs, rest in (
        (kernels.convolve_into, x, weight, found, options),
        (_convolve_into, x.double(), weight.double(), expected, exact),
    ):
        activated = outputs.get("activated")
        convolve(outputs.get("y"), images, by, to_input, activated=activated, keep=0.7, **rest)
    for name in results:
        assert _error(found[name], expected[name]) < 1e-6, name


def test_a_value_that_is_not_a_number_passes_the_relu(kernels: Any) -> None:
    x, weight = _images(1, 16, 4, 4), _images(16, 16, 3, 3)
    x[0, 3, 0, 0] = torch.nan
    activated = torch.empty_like(x)
    kernels.convolve_into(None, x, weight, False, activated=activated)
    assert activated[..., :2, :2].isnan().all()
    assert activated.isfinite().sum() == 16 * 12


@pytest.mark.parametrize(
    ("layers", "channels", "out"), [(1, 16, 32), (2, 16, 16), (1, 128, 16)]
)  # of 128 channels, a program sums up 64
@pytest.mark.parametrize("scaled", [False, True])
def test_weight_gradients_of_several_layers_equal_those_of_plain_convolutions(
    kernels: Any, layers: int, channels: int, out: int, scaled: bool
) -> None:
    x, grad = _images(layers, 5, channels, 5, 6), _images(layers, 5, out, 5, 6)
    scales, weights = torch.randn(layers), _images(layers, out, channels, 3, 3)
    factors = (scales, weights) if scaled else ()
    found, products = kernels.weight_gradients(x, grad, *factors)
    exact = [factor.double() for factor in factors]
    expected, expected_products = _weight_gradients(x.double(), grad.double(), *exact)
    assert _error(found, expected) < 1e-6
    if scaled:
        assert _error(products.sum(1), expected_products.sum(1)) < 1e-5


def test_the_operators_for_compiled_code_return_what_they_announce(kernels: Any) -> None:
    """Shape, strides and type, by which the rest of the code is compiled."""
    x, grad, weight = _images(2, 16, 3, 4), _images(2, 32, 3, 4), _images(32, 16, 3, 3)
    exact = [tensor.double() for tensor in (x, grad, weight)]
    forward, to_input = (
        F.conv2d(exact[0], exact[2], padding=1),
        conv2d_input(x.shape, exact[2], exact[1], padding=1),
    )
    to_weight = conv2d_weight(exact[0], weight.shape, exact[1], padding=1)
    for operator, arguments, expected in (
        (kernels.convolve_3x3, (x, weight, False), forward),
        (kernels.convolve_3x3, (grad, weight, True), to_input),
        (kernels.weight_gradient_3x3, (x, grad), to_weight),
    ):
        found = operator(*arguments)
        assert _error(found, expected) < 1e-6
        assert found.is_contiguous(memory_format=torch.channels_last)
        torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize(("scheme", "alpha"), [("skipinit", 0.5), ("divide-sqrt2", None)])
def test_a_chain_of_interpreted_kernels_computes_what_its_blocks_compute(
    kernels: Any, monkeypatch: pytest.MonkeyPatch, scheme: str, alpha: float | None
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    chained = build(ModelConfig("wrn10_1", scheme, num_classes=10, alpha=alpha), seed=1)
    chained = chained.to(memory_format=torch.channels_last)
    exact = copy.deepcopy(chained).double()
    for chain in importlib.import_module(_CHAIN).chain_blocks(chained.blocks):
        _fill(chain)
    images, gradient = _images(2, 3, 8, 8), torch.randn(2, 10)
    found, expected = chained(images), exact(images.double())
    found.backward(gradient)
    expected.backward(gradient.double())
    assert _error(found.detach(), expected.detach()) < 1e-6
    for (name, parameter), right in zip(chained.named_parameters(), exact.parameters(), strict=True):
        assert _error(parameter.grad, right.grad) < 1e-5, name
