"""The algebra of a chain of blocks, with plain convolutions in float64 in place of a GPU's kernels.

The kernels themselves are tested on a GPU (`test_gpu.py`); what they are asked to do, and how the
gradients of weights and scalars come out of it, is tested here against autograd.
"""

from __future__ import annotations

import copy
import importlib
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
    out = conv2d_input(x.shape, weight, x, padding=1) if to_input else F.conv2d(x, weight, padding=1)
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


def _fill(chain: Any) -> None:
    """What `RoundedWeights` copies before every step, but unrounded."""
    chain.weights = torch.stack([layer.weight.detach() for layer in chain.convolutions])
    chain.scales = torch.ones(len(chain.convolutions)).double()
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
