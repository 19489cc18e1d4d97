"""Converting this package's batch-normalized networks gives its unnormalized ones, up to names of scalars."""

from __future__ import annotations

import re

import pytest
import torch

from skipinit.converting.convert import convert
from skipinit.nets.create import create_model
from support.probe_models import images

# Name in the converted network -> name in the package's own. There the scalar is a module of its own, here it
# is part of the layer that ends the branch; Fixup's biases stand where norms stood, and inside convolutions.
NAMES = [
    (r"\.branch\.(conv|norm)\d\.branch_alpha$", ".merge.alpha"),
    (r"\.branch\.norm3\.merge_bias$", ".activation.bias.bias"),
    (r"\.norm(\d)\.bias$", r".bias\1a.bias"),
    (r"^head\.norm\.bias$", "head.bias0a.bias"),
    (r"\.conv(\d)\.input_bias$", r".bias\1b.bias"),
    (r"\.(conv|dense)\.input_bias$", ".bias.bias"),
]

# (network, scheme, options of create_model, options of convert)
CASES = [
    ("wrn16_2", "skipinit", {}, {"biases": False}),
    ("wrn16_2", "skipinit", {"biases": True}, {}),
    ("wrn16_2", "skipinit", {"biases": True, "alpha": 0.25}, {"alpha": 0.25}),
    ("wrn16_2", "regularized-skipinit", {"dropout": 0.2}, {}),
    ("wrn16_2", "none", {}, {}),
    ("wrn16_2", "divide-sqrt2", {}, {}),
    ("wrn16_2", "fixup", {}, {}),
    ("resnet50_v2", "skipinit", {}, {}),
    ("resnet50_v2", "fixup", {}, {}),
    ("resnet50_v1", "skipinit", {"scalar_bias": True}, {}),
    ("resnet50_v1", "divide-sqrt2", {}, {}),
    ("resnet50_v1", "fixup", {}, {}),
]
IMAGES = images(2)


def renamed(name):
    for pattern, own in NAMES:
        name = re.sub(pattern, own, name)
    return name


@pytest.mark.parametrize(("network", "scheme", "options", "choices"), CASES)
def test_same_structure_same_start_same_outputs(network, scheme, options, choices):
    own = create_model(network, scheme=scheme, seed=7, num_classes=5, **options)
    normalized = create_model(network, scheme="batchnorm", seed=1, num_classes=5)
    converted = convert(normalized, IMAGES, scheme=scheme, seed=7, classifier_init="he", **choices).model

    theirs = {renamed(name): value for name, value in converted.state_dict().items()}
    ours = own.state_dict()
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[name], ours[name]) for name in ours)

    with torch.no_grad():  # Off the start, where branches or classifier may be zero.
        for value in converted.parameters():
            value.add_(
                torch.randn(value.shape, generator=torch.Generator().manual_seed(value.numel())) * 0.05
            )
    own.load_state_dict({renamed(name): value for name, value in converted.state_dict().items()})
    own.eval()
    outputs = converted.eval()(IMAGES)
    assert outputs.std() > 0
    torch.testing.assert_close(outputs, own(IMAGES), rtol=1e-4, atol=1e-5 * outputs.abs().max().item())
