"""Properties that hold for every network: it builds, runs, answers in the right shape, saves and loads."""

from __future__ import annotations

import tempfile
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from skipinit import create_model, from_pretrained, l2_parameters, list_schemes

PRE_ACTIVATION_ONLY = {
    "batchnorm-divide-sqrt2",
    "batchnorm-block-end",
    "batchnorm-on-skip",
    "batchnorm-final-only",
}


@st.composite
def networks(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A Wide-ResNet of any small depth and width, with options that its scheme has."""
    name = f"wrn{6 * draw(st.integers(1, 2)) + 4}_{draw(st.integers(1, 2))}"
    scheme = draw(st.sampled_from(list_schemes()))
    options: dict[str, Any] = {
        "scheme": scheme,
        "num_classes": draw(st.integers(1, 12)),
        "in_channels": draw(st.integers(1, 5)),
        "seed": draw(st.integers(0, 2**32)),
    }
    if draw(st.booleans()):
        options["dropout"] = draw(st.floats(0, 0.9))
    if "skipinit" in scheme:
        options["alpha"] = draw(st.none() | st.just("1/sqrt(d)") | st.floats(-2, 2))
        options["biases"] = draw(st.none() | st.booleans())
    if scheme.startswith("batchnorm"):
        options["ghost_batch"] = draw(st.sampled_from([None, 1, 2, 4]))
        options["batch_statistics_at_test"] = draw(st.booleans())
    if scheme.startswith("fixup"):
        options["fixup_components"] = tuple(sorted(draw(st.sets(st.integers(1, 4)))))
    return name, options


def images(options: dict[str, Any], size: tuple[int, int]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(options["seed"])
    return torch.randn(4, options["in_channels"], *size, generator=generator)


@given(network=networks(), size=st.tuples(st.integers(5, 12), st.integers(5, 12)))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_builds_runs_and_round_trips(network: tuple[str, dict[str, Any]], size: tuple[int, int]) -> None:
    name, options = network
    model = create_model(name, **options)
    x = images(options, size)
    out = model.train()(x)
    assert out.shape == (4, options["num_classes"])
    out.sum().backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in model.parameters())
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        loaded = from_pretrained(folder)
    assert loaded.config == model.config
    assert list(loaded.state_dict()) == list(model.state_dict())
    assert all(torch.equal(t, loaded.state_dict()[key]) for key, t in model.state_dict().items())
    with torch.no_grad():
        assert torch.equal(model.eval()(x), loaded.eval()(x))


@given(network=networks())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_l2_takes_exactly_the_matrices_and_kernels(network: tuple[str, dict[str, Any]]) -> None:
    """Weights of convolutions have four axes, of dense layers two; nothing else has more than one."""
    name, options = network
    model = create_model(name, **options)
    taken = l2_parameters(model)
    everything = dict(model.named_parameters())
    assert set(taken) == {key for key, p in everything.items() if p.dim() > 1}
    assert all(taken[key] is everything[key] for key in taken)


@pytest.mark.parametrize("name", ["resnet50_v1", "resnet50_v2"])
@pytest.mark.parametrize("scheme", ["batchnorm", "fixup", "regularized-skipinit"])
def test_l2_on_resnets_takes_exactly_the_matrices_and_kernels(name: str, scheme: str) -> None:
    with torch.device("meta"):
        model = create_model(name, scheme=scheme)
    expected = {key for key, p in model.named_parameters() if p.dim() > 1}
    assert set(l2_parameters(model)) == expected
    assert len(expected) == 54  # 53 convolutions and the classifier, as ResNet-50 with its four projections


def test_l2_of_any_module() -> None:
    """A user's own: a lone layer, an embedding, a norm over features."""
    lone = nn.Linear(3, 2)
    assert list(l2_parameters(lone)) == ["weight"]
    mixed = nn.Sequential(nn.Conv1d(2, 2, 3), nn.LayerNorm(5), nn.Embedding(3, 4), nn.Conv3d(1, 1, 1))
    assert set(l2_parameters(mixed)) == {"0.weight", "3.weight"}


def test_l2_does_not_depend_on_which_layer_was_made_first() -> None:
    """A head tied to an embedding takes none; a matrix that a layer shares with its model takes it."""
    for tied in (
        nn.ModuleList([nn.Embedding(5, 3), nn.Linear(3, 5)]),
        nn.ModuleList([nn.Linear(3, 5), nn.Embedding(5, 3)]),
    ):
        first, second = tied
        second.weight = first.weight
        assert l2_parameters(tied) == {}
    shared = nn.Module()
    shared.matrix = nn.Parameter(torch.ones(5, 3))
    shared.layer = nn.Linear(3, 5)
    shared.layer.weight = shared.matrix
    assert set(l2_parameters(shared)) == {"matrix"}


# --- seeds ---------------------------------------------------------------------------------------------

FAMILIES = [
    ("wrn10_1", {}),
    ("resnet50_v2", {}),
    ("resnet50_v1", {}),
    ("fc_relu_bn", {"blocks": 2, "width": 8}),
]


@pytest.mark.parametrize(("name", "options"), FAMILIES)
def test_a_seed_decides_the_weights_and_touches_no_global_generator(name: str, options: dict) -> None:
    before = torch.get_rng_state()
    first, same, other = (create_model(name, seed=seed, **options).state_dict() for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(tensor, same[key]) for key, tensor in first.items())
    kernels = [key for key, tensor in first.items() if tensor.dim() > 1]
    assert not any(torch.equal(first[key], other[key]) for key in kernels)


def test_without_a_seed_torchs_generator_decides() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(11)
        first, second = (create_model("wrn10_1").state_dict() for _ in range(2))
        torch.manual_seed(11)
        again = create_model("wrn10_1").state_dict()
    key = "stem.conv0.weight"
    assert torch.equal(first[key], again[key])
    assert not torch.equal(first[key], second[key])


def test_layers_of_one_network_draw_different_weights() -> None:
    model = create_model("wrn100_2", scheme="skipinit", seed=0)
    starts = {tuple(p.flatten()[:4].tolist()) for p in l2_parameters(model).values()}
    assert len(starts) == len(l2_parameters(model))


# --- ResNets, at the sizes a test can afford -----------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        (name, scheme)
        for name in ("resnet50_v1", "resnet50_v2")
        for scheme in list_schemes()
        if name == "resnet50_v2" or scheme not in PRE_ACTIVATION_ONLY
    ],
)
def test_every_scheme_runs_on_every_resnet_that_has_it(name: str, scheme: str) -> None:
    model = create_model(name, scheme=scheme, num_classes=3, in_channels=1, seed=0)
    out = model(torch.randn(2, 1, 33, 40, generator=torch.Generator().manual_seed(0)))
    assert out.shape == (2, 3)
    assert torch.isfinite(out).all()
    out.sum().backward()
    assert all(p.grad is not None for p in model.parameters())
