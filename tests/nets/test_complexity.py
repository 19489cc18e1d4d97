"""Parameters and multiply-accumulates of every network against formulas derived by hand.

Each formula is a sum over groups of the widths in the architecture's table; none looks at a module.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
import torch

from skipinit import ModelConfig, TheoryConfig, create_model, describe, list_models, list_schemes
from skipinit.nets.architectures import THEORY_NETWORKS

IMAGE_NETWORKS = [name for name in list_models() if name not in THEORY_NETWORKS]
WIDE_RESNETS = [*(name for name in IMAGE_NETWORKS if name.startswith("wrn")), "wrn10_1", "wrn22_3", "wrn40_1"]
RESNETS = [name for name in IMAGE_NETWORKS if name.startswith("resnet")]
PRE_ACTIVATION_ONLY = {
    "batchnorm-divide-sqrt2",
    "batchnorm-block-end",
    "batchnorm-on-skip",
    "batchnorm-final-only",
}


@dataclass(frozen=True)
class Count:
    """What a network is made of, before a scheme chooses."""

    weights: int
    """Of convolutions and the dense layer."""
    dense_bias: int
    macs: int
    conv_outputs: int
    """One convolution bias each."""
    branch_norm_channels: int
    last_norm_channels: int
    block_channels: int
    """Output channels summed over blocks: what a norm at each merge would have."""
    scalar_places: int
    """Convolutions, ReLUs and dense layers: one Fixup bias each."""
    blocks: int

    def parameters(self, scheme: str, on_imagenet: bool) -> int:
        total = self.weights + self.dense_bias
        if scheme.startswith("batchnorm"):
            total += 2 * self.last_norm_channels
            if scheme != "batchnorm-final-only":
                total += 2 * self.branch_norm_channels
        if scheme in ("batchnorm-block-end", "batchnorm-on-skip"):
            total += 2 * self.block_channels
        if scheme in ("skipinit", "regularized-skipinit"):
            total += self.blocks
        if scheme == "regularized-skipinit" or (scheme == "skipinit" and on_imagenet):
            total += self.conv_outputs
        if scheme.startswith("fixup"):
            total += self.blocks + self.scalar_places
        return total


def wide_resnet(depth: int, widen: int, channels: int = 3, classes: int = 10, size: int = 32) -> Count:
    per_group = (depth - 4) // 6
    weights = 9 * channels * 16
    macs = weights * size**2
    conv_outputs, norm_channels, block_channels = 16, 0, 0
    convolutions = 1
    before = 16
    for group in range(3):
        width = 16 * 2**group * widen
        resolution = size // 2**group
        group_weights = 9 * before * width + (2 * per_group - 1) * 9 * width**2
        projects = group > 0 or before != width
        if projects:
            group_weights += before * width
        weights += group_weights
        macs += group_weights * resolution**2
        convolutions += 2 * per_group + projects
        conv_outputs += (2 * per_group + projects) * width
        norm_channels += before + (2 * per_group - 1) * width
        block_channels += per_group * width
        before = width
    relus = 2 * 3 * per_group + 1
    return Count(
        weights=weights + before * classes,
        dense_bias=classes,
        macs=macs + before * classes,
        conv_outputs=conv_outputs,
        branch_norm_channels=norm_channels,
        last_norm_channels=before,
        block_channels=block_channels,
        scalar_places=convolutions + relus + 1,
        blocks=3 * per_group,
    )


def resnet(depth: int, version: int, channels: int = 3, classes: int = 1000) -> Count:
    counts = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}[depth]
    weights = 49 * channels * 64
    macs = weights * 112**2
    norm_channels = 64 if version == 1 else 0
    conv_outputs, block_channels, convolutions = 64, 0, 1
    before = 64
    for group, count in enumerate(counts):
        middle = 64 * 2**group
        out = 4 * middle
        entry, first = before * out, before * middle
        usual_first, square, expansion = out * middle, 9 * middle**2, middle * out
        weights += entry + first + (count - 1) * usual_first + count * (square + expansion)
        area = (56 // 2**group) ** 2
        macs += area * (entry + first + (count - 1) * usual_first + count * (square + expansion))
        if version == 2 and group < 3:
            # The last block of the group halves the image at its 3x3, so the 1x1 after it is cheaper too.
            macs -= (area - area // 4) * (square + expansion)
        convolutions += 3 * count + 1
        conv_outputs += count * (2 * middle + out) + out
        block_channels += count * out
        if version == 1:
            norm_channels += count * (2 * middle + out) + out
        else:
            norm_channels += before + (count - 1) * out + count * 2 * middle
        before = out
    blocks = sum(counts)
    # 3 ReLUs a block either way; V1 has one more in the stem, V2 one more in the head.
    return Count(
        weights=weights + before * classes,
        dense_bias=classes,
        macs=macs + before * classes,
        conv_outputs=conv_outputs,
        branch_norm_channels=norm_channels,
        last_norm_channels=before if version == 2 else 0,
        block_channels=block_channels,
        scalar_places=convolutions + 3 * blocks + 1 + 1,
        blocks=blocks,
    )


def by_hand(name: str) -> Count:
    first, second = map(int, re.findall(r"\d+", name))
    return wide_resnet(first, second) if name.startswith("wrn") else resnet(first, second)


def defined(name: str, scheme: str) -> bool:
    """The deepest with two schemes only: in the others they differ from WRN-100-2 and ResNet-50 in depth."""
    if name.startswith(("wrn1000_2", "resnet101", "resnet152")):
        return scheme in ("batchnorm", "skipinit")
    return not (name.endswith("_v1") and scheme in PRE_ACTIVATION_ONLY)


NETWORKS = [
    (name, scheme) for name in (*WIDE_RESNETS, *RESNETS) for scheme in list_schemes() if defined(name, scheme)
]


@pytest.mark.parametrize(("name", "scheme"), NETWORKS)
def test_counts_equal_the_formulas(name: str, scheme: str) -> None:
    count, found = by_hand(name), describe(ModelConfig(name, scheme))
    assert found.num_blocks == count.blocks
    assert found.parameters == count.parameters(scheme, on_imagenet=name in RESNETS)
    assert found.macs == count.macs
    assert found.l2_parameters == count.weights
    assert found.branch_scalars == (count.blocks if "skipinit" in scheme or "fixup" in scheme else 0)
    assert found.scalar_biases == (count.scalar_places if "fixup" in scheme else 0)
    assert sum(row.last - row.first + 1 for row in found.blocks) == count.blocks


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("resnet50_v1", 25_557_032),
        ("resnet101_v1", 44_549_160),
        ("resnet152_v1", 60_192_808),
        ("wrn28_10", 36_479_194),
        ("wrn16_4", 2_748_890),
    ],
)
def test_formulas_give_the_published_counts(name: str, parameters: int) -> None:
    """What torchvision, and the authors of Wide-ResNets, count for the same networks."""
    assert by_hand(name).parameters("batchnorm", on_imagenet=name in RESNETS) == parameters


def test_resnet50_v1_costs_what_its_authors_say() -> None:
    """3.8e9 in Table 1 of He et al. 2016a."""
    assert 3.8e9 <= by_hand("resnet50_v1").macs < 3.9e9


@pytest.mark.parametrize("name", ["wrn16_2", "resnet50_v1"])
@pytest.mark.parametrize(("channels", "classes"), [(1, 2), (4, 100)])
def test_channels_and_classes_change_stem_and_classifier(name: str, channels: int, classes: int) -> None:
    found = describe(ModelConfig(name, "none", num_classes=classes, in_channels=channels))
    count = wide_resnet(16, 2, channels, classes) if name == "wrn16_2" else resnet(50, 1, channels, classes)
    assert (found.parameters, found.macs) == (count.weights + classes, count.macs)


def test_the_scalar_bias_of_v1_is_one_per_block() -> None:
    found = describe(ModelConfig("resnet50_v1", "regularized-skipinit", scalar_bias=True))
    assert found.scalar_biases == 16
    assert found.parameters == resnet(50, 1).parameters("regularized-skipinit", on_imagenet=True) + 16


@pytest.mark.parametrize(("component", "added"), [(1, 0), (2, 0), (3, 6), (4, 1 + 3 * 5 + 3 * 4 + 2)])
def test_each_fixup_component_brings_its_own_parameters(component: int, added: int) -> None:
    """On WRN-16-2: a multiplier per block; a scalar for 2 ReLUs and 2 or 3 convolutions a block, and 3."""
    plain = describe(ModelConfig("wrn16_2", "none")).parameters
    assert (
        describe(ModelConfig("wrn16_2", "fixup", fixup_components=(component,))).parameters == plain + added
    )


@pytest.mark.parametrize("name", THEORY_NETWORKS)
def test_theory_networks_at_the_size_of_the_paper(name: str) -> None:
    """Appendix B: 100 inputs, width 1000; or 3 channels, width 100, two strided 3x3 convolutions first."""
    found = describe(TheoryConfig(name))
    if name == "conv_relu_bn":
        weights = 9 * (3 * 100 + 100 * 100) + 100 * 9 * 100**2
        macs = 9 * 3 * 100 * 16**2 + 101 * 9 * 100**2 * 8**2
        norms = 2 * (100 + 100 * 100)
    else:
        weights = macs = 100 * 1000 + 100 * 1000**2
        norms = 2 * (100 + 100 * 1000) if name.endswith("_bn") else 0
    assert (found.num_blocks, found.parameters, found.macs) == (100, weights + norms, macs)


@pytest.mark.parametrize("name", ["wrn10_2", "resnet50_v2"])
def test_a_meta_description_counts_what_a_real_network_has(name: str) -> None:
    model = create_model(name, scheme="regularized-skipinit", seed=0)
    assert sum(parameter.numel() for parameter in model.parameters()) == describe(model.config).parameters


def test_describing_leaves_the_generator_alone() -> None:
    before = torch.get_rng_state()
    describe(ModelConfig("wrn10_1"))
    assert torch.equal(torch.get_rng_state(), before)


def test_describing_works_where_test_batches_have_their_own_ghosts() -> None:
    with_ghosts = ModelConfig("wrn10_1", ghost_batch=64, batch_statistics_at_test=True)
    assert describe(with_ghosts).macs == describe(ModelConfig("wrn10_1")).macs
