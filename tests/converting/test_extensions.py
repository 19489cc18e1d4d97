"""Extended layers: whatever they return, however they are called, and however they are copied."""

from __future__ import annotations

import copy
import inspect
import io
import threading
from abc import ABC
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import pytest
import torch
from snippets import blocks
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from skipinit import convert, probe
from skipinit.errors import SkipinitError
from support.convert_models import scalars
from support.optional import package

T = TypeVar("T")
X = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))


class Pair(NamedTuple):
    values: Tensor
    size: int


OUTPUTS = {
    "dictionary": (lambda y: {"values": y}, lambda out: out["values"]),
    "list": (lambda y: [y], lambda out: out[0]),
    "tuple": (lambda y: (y, 8), lambda out: out[0]),
    "named tuple": (lambda y: Pair(y, 8), lambda out: out.values),
    "second of a tuple": (lambda y: (8, y), lambda out: out[1]),
}


class Returns(nn.Module):
    """Ends a branch in a function of its own, so that this module is the end."""

    def __init__(self, wrap) -> None:
        super().__init__()
        self.layer, self.wrap = nn.Linear(8, 8), wrap

    def forward(self, x):
        return self.wrap(F.gelu(self.layer(x)))


class Block(nn.Module):
    def __init__(self, end, unwrap=lambda out: out) -> None:
        super().__init__()
        self.norm, self.end, self.unwrap = nn.LayerNorm(8), end, unwrap

    def forward(self, x):
        return x + self.unwrap(self.end(self.norm(x)))


def net(*ends):
    return nn.Sequential(*(Block(*end) for end in ends), nn.Linear(8, 3))


@pytest.mark.parametrize("output", OUTPUTS)
def test_a_branch_ends_in_a_module_that_returns_anything(output):
    wrap, unwrap = OUTPUTS[output]
    torch.manual_seed(0)
    model = convert(net((Returns(wrap), unwrap), (Returns(wrap), unwrap)), X, strict=True).model
    assert len(scalars(model)) == 2
    torch.testing.assert_close(model[:2](X), X)
    with torch.no_grad():
        for parameter in scalars(model).values():
            parameter.fill_(0.5)
    expected = X
    for block in model[:2]:
        expected = expected + 0.5 * F.gelu(F.linear(expected, block.end.layer.weight, block.end.layer.bias))
    torch.testing.assert_close(model[:2](X), expected)


class Abstract(ABC, Returns):
    """Its objects have the layout of the first base."""


class General(Generic[T], Returns):
    pass


class AbstractBlock(ABC, Block):
    def forward(self, x):
        return x + F.gelu(self.end(self.norm(x)))


@pytest.mark.parametrize("kind", [Abstract, General])
def test_a_layer_is_extended_whatever_its_first_base_is(kind):
    torch.manual_seed(0)
    blocks = Block(kind(lambda y: y)), AbstractBlock(nn.Linear(8, 8))
    model = convert(nn.Sequential(*blocks, nn.Linear(8, 3)), X, alpha=0.5, strict=True).model
    middle = X + 0.5 * F.gelu(F.linear(X, model[0].end.layer.weight, model[0].end.layer.bias))
    expected = middle + 0.5 * F.gelu(F.linear(middle, model[1].end.weight, model[1].end.bias))
    torch.testing.assert_close(model[:2](X), expected)
    torch.testing.assert_close(copy.deepcopy(model)[:2](X), expected)
    assert isinstance(model[0].end, kind)
    assert isinstance(model[1], AbstractBlock)


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x):
        return {"sum": x["sum"] + self.layer(self.norm(x["sum"]))}


class Sums(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Sum(), Sum())

    def forward(self, x):
        return self.blocks({"sum": x})["sum"]


def test_a_sum_in_a_dictionary_is_not_divided_and_refused():
    message = r"Sum returns a dict: its sum cannot be divided by sqrt\(2\)"
    with pytest.raises(SkipinitError, match=message):
        convert(Sums(), X, scheme="divide-sqrt2")


class ByName(nn.Module):
    """Gives its layers their input by name, as some people write it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer, self.head = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = x + self.layer(input=F.gelu(self.norm(x)))
        return self.head(input=x)


@pytest.mark.parametrize("scheme", ["regularized-skipinit", "fixup"])
def test_layers_are_called_by_name(scheme):
    model = convert(ByName(), X, scheme=scheme).model.eval()
    assert repr(model.head).startswith(("DroppedInputLinear(", "BiasedInputLinear("))
    torch.testing.assert_close(model(X), F.linear(X, model.head.weight, model.head.bias))


class Locked(Returns):
    """What cannot be copied is left out by its own rule."""

    def __init__(self, wrap) -> None:
        super().__init__(wrap)
        self.lock = threading.Lock()

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name != "lock"}

    def __setstate__(self, state):
        super().__setstate__(state)
        self.lock = threading.Lock()


def identity(y):
    return y


def test_a_layer_is_copied_by_its_own_rule():
    model = convert(nn.Sequential(Block(Locked(identity), identity)), X, alpha=0.5).model
    assert repr(model[0].end).startswith("ScaledOutputLocked(")
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for same in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert same[0].end.lock is not model[0].end.lock
        torch.testing.assert_close(same(X), model(X))


class NamedWeights(nn.Linear):
    """Saves the parameters that it has by name, and no others."""

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        destination[f"{prefix}weight"] = self.weight if keep_vars else self.weight.detach()
        destination[f"{prefix}bias"] = self.bias if keep_vars else self.bias.detach()


@pytest.mark.parametrize("scheme", ["skipinit", "fixup"])
def test_what_was_added_to_a_layer_is_saved_by_whatever_rule_the_layer_has(scheme):
    def converted(seed):
        blocks = [Block(NamedWeights(8, 8), identity) for _ in range(2)]
        return convert(nn.Sequential(*blocks, NamedWeights(8, 3)), X, scheme=scheme, seed=seed).model

    trained, again = converted(0), converted(1)
    with torch.no_grad():
        for place, parameter in enumerate(trained.parameters()):
            parameter.add_(0.1 * (1 + place))
    assert trained.state_dict().keys() == dict(trained.named_parameters()).keys()
    assert not any(tensor.requires_grad for tensor in trained.state_dict().values())
    assert all(tensor.requires_grad for tensor in trained.state_dict(keep_vars=True).values())
    again.load_state_dict(trained.state_dict())
    torch.testing.assert_close(again(X), trained(X))


class Whole(nn.Module):
    """Both blocks are in the forward of the model itself, and end in a function."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = x + F.gelu(self.layers[0](self.norms[0](x)))
        return self.head(x + F.gelu(self.layers[1](self.norms[1](x))))


def test_an_extended_model_has_the_name_of_its_class_and_its_blocks_have_theirs():
    conversion = convert(Whole(), X, alpha=0.5)
    assert type(conversion.model).__name__ == "Whole"
    assert repr(conversion.model).startswith("ScaledAddsWhole(")
    for report in (conversion.before, conversion.after, probe(conversion.model, X)):
        assert [row.name for row in report.rows] == ["Whole", "Whole#2"]


class Doubled(nn.Module):
    def forward(self, half):
        return 2 * half

    def right_inverse(self, weight):
        return weight / 2


@pytest.mark.parametrize("first", ["convert", "parametrize"])
def test_a_parametrization_can_be_removed(first):
    torch.manual_seed(0)
    model = net((nn.Linear(8, 8), identity), (nn.Linear(8, 8), identity))
    if first == "parametrize":
        parametrize.register_parametrization(model[0].end, "weight", Doubled())
    model = convert(model, X, alpha=0.5, strict=True).model
    if first == "convert":
        parametrize.register_parametrization(model[0].end, "weight", Doubled())
    wanted = model(X)
    with pytest.raises(RuntimeError, match="parametrized modules is only supported through state_dict"):
        torch.save(model, io.BytesIO())
    assert torch.equal(copy.deepcopy(model)(X), wanted)
    parametrize.remove_parametrizations(model[0].end, "weight")
    assert type(model[0].end) is type(model[1].end)
    torch.testing.assert_close(model(X), wanted)
    torch.save(model, io.BytesIO())


def test_what_unwraps_a_forward_keeps_the_scalars():
    """As accelerate does to take a model out of its mixed precision."""
    accelerate = package("accelerate")
    model = convert(Whole(), X, alpha=0.5).model
    wanted = model(X)
    accelerate.state.AcceleratorState._reset_state(True)  # It is the process's, and trainers leave theirs.
    try:
        accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
        prepared = accelerator.prepare(model)
        plain = accelerator.unwrap_model(prepared, keep_fp32_wrapper=False)
    finally:
        accelerate.state.AcceleratorState._reset_state(True)
    assert torch.equal(plain(X), wanted)
    assert str(inspect.signature(plain.forward)) == "(x)"
    with pytest.raises(SkipinitError, match=r"Whole is itself extended .* torch.fx cannot trace"):
        torch.fx.symbolic_trace(model)


def test_scalars_multiplied_into_their_layers_change_nothing():
    """As the guide does it before adapters are merged into the layers; then they are no longer multiplied."""
    torch.manual_seed(0)
    model = convert(net((nn.Linear(8, 8),), (nn.Linear(8, 8),)), X, alpha=0.5).model.double()
    guide = (Path(__file__).parents[2] / "docs" / "convert.md").read_text(encoding="utf-8")
    wanted = model(X.double())
    (code,) = [block.text for block in blocks(guide) if "values *= layer.branch_alpha" in block.text]
    exec(code, {"torch": torch, "net": model})
    torch.testing.assert_close(model(X.double()), wanted)
    assert all(value.item() == 1 for value in scalars(model).values())
