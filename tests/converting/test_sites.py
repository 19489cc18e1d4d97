"""The operands of an add in the source, whatever torch's functions are called with."""

from __future__ import annotations

import importlib
import inspect
import pickle
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from skipinit import convert, probe
from skipinit.errors import SkipinitError
from support.convert_models import scalars

X = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
SUMS = {
    "dim": lambda both: both.sum(dim=0),
    "position": lambda both: both.sum(0),
    "tuple": lambda both: both.sum((0,)),
    "axis": lambda both: both.sum(axis=0),
    "all by name": lambda both: torch.sum(input=both, dim=0),
}


class Stacked(nn.Module):
    def __init__(self, name) -> None:
        super().__init__()
        self.norm, self.layer, self.name = nn.LayerNorm(8), nn.Linear(8, 8), name

    def forward(self, x):
        return SUMS[self.name](torch.stack([x, F.gelu(self.layer(self.norm(x)))]))


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_of_skip_and_branch_is_written_in_any_way(name):
    model = convert(nn.Sequential(Stacked(name), nn.Linear(8, 3)), X, alpha=0.5, strict=True).model
    assert len(scalars(model)) == 1
    block = model[0]
    expected = X + 0.5 * F.gelu(F.linear(X, block.layer.weight, block.layer.bias))
    torch.testing.assert_close(block(X), expected)


class ToBeQuantized(nn.Module):
    """As torchvision's quantizable models: a module of torch's package of quantized layers adds floats."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(8), nn.Linear(8, 8)
        self.sum = torch.ao.nn.quantized.FloatFunctional()

    def forward(self, x):
        return self.sum.add_relu(x, self.layer(self.norm(x)))


def test_a_model_that_is_to_be_quantized_is_no_quantized_model():
    model = convert(nn.Sequential(ToBeQuantized(), nn.Linear(8, 3)), X, alpha=0.5, strict=True).model
    block = model[0]
    expected = F.relu(X + 0.5 * F.linear(X, block.layer.weight, block.layer.bias))
    torch.testing.assert_close(block(X), expected)


class Modulated(nn.Module):
    """As in StyleGAN2: each layer's weights are computed from a style, so that x meets no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Linear(6, 6)
        self.styles = nn.ModuleList(nn.Linear(6, 36) for _ in range(3))

    def forward(self, x, style):
        x = self.start(x)
        for make in self.styles:
            x = x + torch.einsum("ni,nio->no", x.relu(), make(style).view(-1, 6, 6))
        return x


@pytest.mark.filterwarnings("ignore:no normalization was found")
def test_blocks_whose_weights_are_computed_have_a_scalar_each():
    torch.manual_seed(0)
    inputs = torch.randn(4, 6), torch.randn(4, 6)
    conversion = convert(Modulated(), inputs, seed=0)
    alphas = [name for name, _ in conversion.model.named_parameters() if name.endswith("branch_alpha")]
    assert conversion.num_blocks == len(alphas) == 3
    model = conversion.model
    model.branch_scales[1].branch_alpha.data.fill_(0.5)
    x, style = inputs
    start = model.start(x)
    expected = start + 0.5 * torch.einsum("ni,nio->no", start.relu(), model.styles[1](style).view(-1, 6, 6))
    torch.testing.assert_close(model(x, style), expected)


class Loop(nn.Module):
    """Adds in the forward of the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer, self.head = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(x + F.gelu(self.layer(self.norm(x))))


class Around(nn.Module):
    def __init__(self, inner) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner.forward(x)


def test_a_forward_that_is_not_called_through_its_module_has_its_scalars():
    model = convert(Loop(), X, alpha=0.5).model
    expected = model.head(X + 0.5 * F.gelu(model.layer(X)))
    torch.testing.assert_close(model(X), expected)
    torch.testing.assert_close(model.forward(X), expected)
    torch.testing.assert_close(Around(model)(X), expected)
    converted = convert(Around(Loop()), X, alpha=0.5).model
    inner = converted.inner
    expected = inner.head(X + 0.5 * F.gelu(inner.layer(X)))
    torch.testing.assert_close(converted(X), expected)


def test_a_model_that_adds_is_called_as_before():
    """By the names of its arguments; a data loader's labels are none of them."""
    model = convert(Loop(), X, alpha=0.5).model
    assert inspect.signature(model.forward) == inspect.signature(Loop().forward)
    assert torch.equal(model(x=X), model(X))
    assert len(probe(model, (X, torch.arange(16))).rows) == 1
    exported = torch.export.export(model, (X,), dynamic_shapes={"x": {0: torch.export.Dim("batch")}})
    torch.testing.assert_close(exported.module()(X[:5]), model(X[:5]))
    with pytest.raises(SkipinitError, match=r"Loop is itself extended by a conversion, which torch.fx"):
        torch.fx.symbolic_trace(model)


SOURCE = """
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm, self.layer, self.head = (
            nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 3)
        )

    def forward(self, x):
        x = self.stem(x)
        x = x + F.gelu(self.layer(self.norm(x)))
        return self.head(x)
"""


@pytest.mark.parametrize(
    ("old", "new", "lost"),
    [
        ("class Net", "# A comment.\n\nclass Net", False),
        ("        x = self.stem(x)\n", "        x = 1 * x\n        x = self.stem(x)\n", True),
        ("x = x + F.gelu(", "x = F.gelu(", True),
    ],
)
def test_a_pickled_model_whose_source_was_edited_does_not_run_without_its_scalars(
    old, new, lost, tmp_path, monkeypatch
):
    file = tmp_path / "module_of_test_sites.py"
    file.write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module(file.stem)
    model = convert(module.Net(), X, alpha=0.5).model
    pickled, wanted = pickle.dumps(model), model(X)
    file.write_text(SOURCE.replace(old, new))
    importlib.reload(module)
    loaded = pickle.loads(pickled)
    assert loaded.state_dict().keys() == model.state_dict().keys()
    if lost:
        with pytest.raises(SkipinitError, match="Net: its forward is not the one that was converted"):
            loaded(X)
    else:
        assert torch.equal(loaded(X), wanted)
    monkeypatch.delitem(sys.modules, file.stem)
