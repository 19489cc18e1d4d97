"""`inputs` of `probe`, `find_residual_adds` and `convert`: one name, the same forms, the same refusals."""

from __future__ import annotations

import inspect
from collections import UserDict
from types import MappingProxyType

import pytest
import torch
from torch import nn

from skipinit import convert, find_residual_adds, probe
from skipinit.errors import ConfigError
from support.probe_models import PostActivationResNet, images, vectors

FUNCTIONS = (probe, find_residual_adds, convert)
X, SHIFT = vectors(8), torch.ones(8, 6)


class Conditioned(nn.Module):
    """A block, or with `twice` two; writes into its arguments and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.other = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6)
        self.seen: list[torch.Tensor] = []

    def forward(self, x, shift=None, twice=False):
        self.seen.append(x.clone())
        x = x.add_(0 if shift is None else shift)
        x = x + self.norm(self.layer(x))
        return x + self.other(x) if twice else x


def count(function, inputs):
    """How many residual adds the function sees."""
    found = function(Conditioned(), inputs)
    if function is convert:
        return len(found.before.rows)
    return len(found.rows) if function is probe else len(found)


# form: (inputs, how many residual adds that call has)
FORMS = {
    "tensor": (X, 1),
    "tuple": ((X, SHIFT), 1),
    "tuple with a number": ((X, SHIFT, 1), 2),
    "list": ([X, SHIFT, True], 2),
    "dictionary": ({"x": X, "twice": True}, 2),
    "other mapping": (MappingProxyType({"x": X, "shift": SHIFT}), 1),
    "shape": (torch.Size([8, 6]), 1),
    "shape as numbers": ((8, 6), 1),
    "shape as a list": ([8, 6], 1),
    "shape of a tensor": (X.shape, 1),
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("form", FORMS)
def test_forms(function, form):
    inputs, adds = FORMS[form]
    x, shift = X.clone(), SHIFT.clone()
    assert count(function, inputs) == adds
    assert torch.equal(X, x)
    assert torch.equal(SHIFT, shift)


def test_what_is_found_does_not_depend_on_inference_mode():
    """In that mode torch dispatches a convolution as one whole, of another name."""
    model, x = PostActivationResNet(), images(2)
    found, report = find_residual_adds(model, x), probe(model, x)
    with torch.inference_mode():
        assert find_residual_adds(model, x) == found
        assert find_residual_adds(model, x.clone()) == found
        assert probe(model, x).rows == report.rows
        with pytest.raises(ConfigError, match=r"convert makes parameters .*outside torch.inference_mode\(\)"):
            convert(model, x)
    assert len(found) == len(report.rows) > 0


@pytest.mark.parametrize("function", FUNCTIONS)
def test_name_and_place(function):
    assert list(inspect.signature(function).parameters)[:2] == ["model", "inputs"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shape_stands_for_gaussian_values_of_the_models_dtype(dtype):
    shape = torch.Size([8, 6])
    model = Conditioned().to(dtype)
    before = torch.get_rng_state()
    assert probe(model, shape) == probe(model, shape)
    wanted = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert all(seen.dtype == dtype and torch.equal(seen, wanted) for seen in model.seen)
    assert torch.equal(torch.get_rng_state(), before)


def test_shape_is_drawn_once_for_the_whole_conversion():
    """Otherwise a norm that is first and of another dtype would change what the new model is given."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.layer = nn.BatchNorm1d(6).double(), nn.Linear(6, 6)

        def forward(self, x):
            assert x.dtype == torch.float64
            return x + self.layer(self.norm(x).float())

    assert len(convert(Mixed(), torch.Size([8, 6])).after.rows) == 1


REFUSED = {
    "inputs (8, -6) is not the shape of a batch": (8, -6),
    "inputs is a int without a tensor; give a tensor, a tuple of arguments": 8,
    "inputs is a str without a tensor": "images",
    "inputs is a NoneType without a tensor": None,
    "inputs is a tuple without a tensor": (),
    "inputs is a dict without a tensor": {"x": (8, 6)},
    "inputs (8, 0) is not the shape of a batch": torch.Size([8, 0]),
    "inputs () is not the shape of a batch": torch.Size([]),
    "Conditioned cannot take the inputs 8x6 float32, 8x6 float32: ": {"x": X, "bias": X},
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("message", REFUSED)
def test_refused_in_one_line(function, message):
    with pytest.raises(ConfigError) as caught:
        function(Conditioned(), REFUSED[message])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


class Plain(nn.Module):
    """Takes one tensor and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)

    def forward(self, x):
        return x + self.norm(self.layer(x))


class Detector(Plain):
    """Takes a list of images of their own sizes, and targets in training."""

    def forward(self, images: list[torch.Tensor], targets=None):
        assert isinstance(images, list)
        return super().forward(torch.cat([image.sum(0, keepdim=True) for image in images]))


class Masked(Plain):
    """May have a mask, which is no label."""

    def forward(self, x, mask=None):
        assert mask is None or mask.shape == (8, 1)
        return super().forward(x if mask is None else x * mask)


TARGETS = [{"boxes": torch.ones(1, 4), "labels": torch.ones(1, dtype=torch.int64)}] * 2
BATCHES = {
    "images and labels of a data loader": (Plain, (X, torch.arange(8))),
    "the same as a list": (Plain, [X, torch.arange(8)]),
    "where forward may have a second argument": (Masked, [X, torch.arange(8)]),
    "a second argument": (Masked, (X, torch.ones(8, 1))),
    "more than two": (Plain, (X, torch.arange(8), torch.arange(8))),
    "a detector's images and targets": (Detector, ([X, X[:3]], TARGETS)),
    "a detector's images": (Detector, [X, X[:3]]),
    "a mapping of the user's own": (Plain, UserDict(x=X)),
}


@pytest.mark.parametrize("form", BATCHES)
def test_batches_as_people_have_them(form):
    make, batch = BATCHES[form]
    x = X.clone()
    assert len(find_residual_adds(make(), batch)) == 1
    assert convert(make(), batch, seed=0).num_blocks == 1
    assert torch.equal(X, x)


class OnNested(nn.Module):
    """Two blocks, one after each kind of norm, on examples of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
        self.norm, self.batch_norm = nn.LayerNorm(6), nn.BatchNorm1d(6)

    def forward(self, x):
        x = x + self.first(self.norm(x))
        normalized = self.batch_norm(x.values())
        return x + self.last(torch.nested.nested_tensor_from_jagged(normalized, x.offsets()))


def nested(layout):
    return torch.nested.nested_tensor([X[:3], X[3:]], layout=layout)


def test_examples_of_different_lengths_are_measured_as_one_after_the_other():
    torch.manual_seed(0)
    model = OnNested().eval()
    model.batch_norm.running_var.fill_(2)
    inputs = nested(torch.jagged)
    rows = probe(model, inputs).rows
    branch = model.first(model.norm(X)).double()
    assert rows[0].branch_variance == pytest.approx(branch.var(correction=0).item(), rel=1e-5)
    within = (X + branch).var(0, correction=0).mean().item()
    assert rows[0].channel_variance == pytest.approx(within, rel=1e-5)
    conversion = convert(model, inputs, keep_function=True)
    assert conversion.difference < 1e-6
    torch.testing.assert_close(conversion.model(inputs).values(), model(inputs).values())
    drawn = convert(model, inputs, seed=0).model
    torch.testing.assert_close(drawn(inputs).values(), X)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_nested_tensor_without_a_shape_is_refused_in_one_line(function):
    with pytest.raises(ConfigError, match=r"layout torch\.strided has no shape; use layout=torch\.jagged"):
        function(OnNested(), nested(torch.strided))
