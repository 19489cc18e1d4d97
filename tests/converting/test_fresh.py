"""A model that starts anew: which weights are drawn, by which rule, and which cannot be."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from skipinit import convert
from skipinit.errors import ConfigError
from support.convert_models import with_statistics

IMAGES = torch.randn(4, 8, 8, 8, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    def __init__(self, wrap, bias) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(8), wrap(nn.Conv2d(8, 8, 3, padding=1, bias=bias))

    def forward(self, x):
        return x + self.conv(self.norm(x).relu())


def net(wrap, bias=True):
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), wrap(nn.Linear(8, 4))
    return nn.Sequential(Block(wrap, bias), Block(wrap, bias), *head)


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


def doubled(layer):
    return parametrize.register_parametrization(layer, "weight", Doubled())


def pruned(layer):
    layer.weight.requires_grad_(False)  # Otherwise such a model cannot even be copied.
    return prune.l1_unstructured(layer, "weight", 0.3)


@pytest.mark.parametrize("bias", [True, False])
def test_weights_with_a_norm_of_their_own_are_drawn_like_others(bias):
    plain = convert(net(lambda layer: layer, bias), IMAGES, seed=0).model
    normed = convert(net(parametrizations.weight_norm, bias), IMAGES, seed=0).model
    torch.testing.assert_close(normed(IMAGES), plain(IMAGES))
    for mine, wanted in ((normed[0].conv, plain[0].conv), (normed[-1], plain[-1])):
        torch.testing.assert_close(mine.weight, wanted.weight)
        assert parametrize.is_parametrized(mine)
    spectral = convert(net(parametrizations.spectral_norm, bias), IMAGES, seed=0).model
    ratio = spectral[0].conv.weight / plain[0].conv.weight
    torch.testing.assert_close(ratio, ratio.mean().expand_as(ratio))


@pytest.mark.parametrize("wrap", [parametrizations.orthogonal, doubled, nn.utils.spectral_norm])
def test_weights_that_cannot_be_set_are_refused(wrap):
    random = torch.get_rng_state()
    model = net(wrap)
    torch.set_rng_state(random)
    with pytest.raises(ConfigError, match=r"^0.conv: .* cannot start anew; use .*, exclude='0.conv' or keep"):
        convert(model, IMAGES)
    assert torch.equal(torch.get_rng_state(), random)
    kept = convert(model, IMAGES, exclude=("*.conv", "4")).model
    torch.testing.assert_close(kept.eval()(IMAGES), kept[1:](IMAGES))


@pytest.mark.parametrize("wrap", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_weights_that_cannot_be_zero_are_refused(wrap):
    with pytest.raises(ConfigError, match=r"takes no zero weight.*or scheme='skipinit'"):
        convert(net(wrap), IMAGES, scheme="fixup")
    with pytest.raises(ConfigError, match=r"^4: its parametrization takes no zero weight"):
        convert(net(wrap), IMAGES, classifier_init="zero")


@pytest.mark.parametrize(
    "wrap",
    [parametrizations.weight_norm, parametrizations.spectral_norm, parametrizations.orthogonal, doubled,
     nn.utils.spectral_norm, pruned],
)  # fmt: skip
def test_computed_weights_keep_their_function(wrap):
    model = with_statistics(net(wrap, bias=False)).eval()
    kept = convert(model, IMAGES, keep_function=True).model
    torch.testing.assert_close(kept.eval()(IMAGES), model(IMAGES))


def test_fixup_leaves_what_is_excluded():
    model = net(lambda layer: layer)
    with pytest.warns(UserWarning, match="contribute from the start, unlike Fixup's: 0 "):
        fixed = convert(model, IMAGES, scheme="fixup", exclude="0.conv").model
    assert torch.equal(fixed[0].conv.weight, model[0].conv.weight)
    assert not fixed[1].conv.weight.any()
