"""Which modules may change, and which options go together."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from skipinit import convert
from skipinit.errors import ConfigError
from support.convert_models import scalars, with_statistics

IMAGES = torch.randn(4, 8, 8, 8, generator=torch.Generator().manual_seed(0))


class NormAndActivation(nn.BatchNorm2d):
    """As timm's BatchNormAct2d."""

    def __init__(self, channels) -> None:
        super().__init__(channels)
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(super().forward(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.conv1 = NormAndActivation(8), nn.Conv2d(8, 8, 3, padding=1)
        self.norm2, self.conv2 = NormAndActivation(8), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        return x + self.conv2(self.norm2(self.conv1(self.norm1(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.drop(self.blocks(x).mean((2, 3))))


def test_types_are_excluded_where_layers_have_new_names():
    """A scalar bias with its activation is a Sequential, whose parts the given model does not have."""
    model = convert(Net(), IMAGES, scheme="fixup", exclude=nn.Dropout).model
    assert model.blocks[0].norm1.affine.bias.shape == ()


@pytest.mark.parametrize("scheme", ["skipinit", "regularized-skipinit"])
@pytest.mark.parametrize("name", ["blocks.0.conv2", "head"])
def test_an_excluded_layer_is_left_as_it_is(scheme, name):
    given = Net()
    expected = copy.deepcopy(given.get_submodule(name).state_dict())
    conversion = convert(given, IMAGES, scheme=scheme, exclude=name)
    layer = conversion.model.get_submodule(name)
    assert type(layer) is type(given.get_submodule(name))
    torch.testing.assert_close(layer.state_dict(), expected, rtol=0, atol=0)
    assert len(scalars(conversion.model)) == 2, "the scalar of its branch is at the add"


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "options", [{"scheme": "fixup"}, {"exclude": "blocks.0.conv2"}, {"keep_function": True}]
)
def test_new_layers_are_in_the_mode_of_those_they_belong_to(options, training):
    model = convert(with_statistics(Net()).train(training), IMAGES, **options).model
    assert {module.training for module in model.modules()} == {training}


def test_an_option_that_would_be_ignored_is_refused():
    with pytest.raises(ConfigError, match=r"biases True is not allowed with keep_function"):
        convert(Net(), IMAGES, keep_function=True, biases=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"exclude": "heads"},
            r"exclude 'heads' matches no module of Net; print\(model\) shows names and types",
        ),
        ({"only": nn.LSTM}, r"only LSTM matches no module of Net; print\(model\)"),
        ({"norms": "norm1"}, r"norms 'norm1' is not a type of module; give classes"),
    ],
)
def test_a_choice_of_nothing_says_what_to_give(options, message):
    with pytest.raises(ConfigError, match=message):
        convert(Net(), IMAGES, **options)
