"""A user's mistakes: each is one line of the right family that says what is allowed."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

from skipinit import ConfigError, ModelConfig, TheoryConfig, create_model, describe, list_models, list_schemes
from skipinit.errors import SkipinitError, system_errors_explained
from skipinit.nets.create import build


def refused(*allowed: str, name: str = "wrn10_1", **options: object) -> str:
    """The message of the refusal, which must be one line and hold every one of the given pieces."""
    with pytest.raises(ConfigError) as caught:
        create_model(name, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert [piece for piece in allowed if piece not in message] == []
    assert caught.value.exit_code == 2
    return message


# --- names ---------------------------------------------------------------------------------------------


def test_a_depth_that_is_none_names_its_neighbours() -> None:
    message = refused(name="wrn17_2")
    assert message == "wrn17_2: depth 17 is not 6m + 4; the nearest are wrn16_2 and wrn22_2"


@pytest.mark.parametrize("depth", [*range(11, 16), *range(101, 106), 999])
def test_the_neighbours_of_a_depth_surround_it_and_exist(depth: int) -> None:
    message = refused(name=f"wrn{depth}_3")
    below, above = map(int, re.findall(r"wrn(\d+)_3 and wrn(\d+)_3", message)[0])
    assert below < depth < above
    assert above - below == 6
    with torch.device("meta"):
        assert create_model(f"wrn{below}_3").num_blocks == (below - 4) // 2


@pytest.mark.parametrize("depth", [0, 1, 3, 4, 9])
def test_depths_without_a_block_point_to_the_first_that_has(depth: int) -> None:
    refused("wrn10_2", name=f"wrn{depth}_2")


def test_a_path_of_a_factory_is_no_network_of_the_paper() -> None:
    message = refused(name="mymodels:net")
    assert message.startswith("mymodels:net is a model of your own; call its factory")


def test_width_zero() -> None:
    refused("width 0", "1 to 100,000", name="wrn16_0")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("wrn16_100001", "width 100001"),
        ("wrn1000000_1", "depth 1000000"),
        (f"wrn{10**17}_1", "100,000 or less"),
        (f"wrn16_{10**20}", "is not known"),
    ],
)
def test_a_mistyped_size_is_refused_before_anything_is_built(name: str, says: str) -> None:
    """One of 10^17 layers would fill the memory, one of 10^20 channels is more than torch can count."""
    refused(name, says, name=name)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("resnet50", "resnet50_v2"),
        ("restnet50_v1", "resnet50_v1"),
        ("WRN16_2", "wrn16_2"),
        ("wrn-28-10", "wrn28_10"),
        ("WRN-40-4", "did you mean wrn40_4?"),
        ("wide-resnet-22-8", "did you mean wrn22_8?"),
        ("wrn016_2", "did you mean wrn16_2?"),
    ],
)
def test_unknown_models_are_answered_with_the_nearest(name: str, near: str) -> None:
    refused(repr(name), near, name=name)


def test_a_name_like_no_other_is_answered_with_all() -> None:
    refused("'zzz'", *list_models(), name="zzz")


@pytest.mark.parametrize(
    ("scheme", "near"),
    [("skip-init", "skipinit"), ("batch-norm", "batchnorm"), ("fixup_dropout", "fixup-dropout")],
)
def test_unknown_schemes_are_answered_with_the_nearest(scheme: str, near: str) -> None:
    refused(repr(scheme), near, scheme=scheme)


def test_a_scheme_like_no_other_is_answered_with_all() -> None:
    refused(*list_schemes(), scheme="zzz")


@pytest.mark.parametrize("name", ["wrn10_1", "fc_linear"])
def test_unknown_options_are_answered_with_those_there_are(name: str) -> None:
    refused("'depth'", "in_channels", name=name, depth=3)


def test_theory_networks_have_no_scheme() -> None:
    refused("scheme", "blocks, width, in_channels", name="fc_linear", scheme="skipinit")


def test_a_theory_network_has_a_config_of_another_type() -> None:
    with pytest.raises(ConfigError, match=r"fc_linear is a theory network.*TheoryConfig"):
        build(ModelConfig("fc_linear"))


@pytest.mark.parametrize("function", [build, describe])
@pytest.mark.parametrize("config", ["wrn16_2", None, torch.nn.Identity()])
def test_what_is_no_config_is_refused(function: Callable[[object], object], config: object) -> None:
    with pytest.raises(ConfigError, match=f"a {type(config).__name__} is not a config; give a ModelConfig"):
        function(config)


def test_more_classes_than_torch_can_count_are_too_large_for_the_memory() -> None:
    with pytest.raises(SkipinitError, match="out of memory"):
        describe(ModelConfig("wrn10_1", num_classes=2**62))


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), SkipinitError),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate"), SkipinitError),
        (MemoryError(), SkipinitError),
        (RuntimeError("value cannot be converted to type int without overflow"), RuntimeError),
    ],
)
def test_only_a_lack_of_memory_is_called_one(error: Exception, raised: type[Exception]) -> None:
    with pytest.raises(Exception, match=r"memory|overflow") as caught, system_errors_explained():
        raise error
    assert type(caught.value) is raised


def test_an_unknown_theory_network_in_a_config() -> None:
    with pytest.raises(ConfigError, match="fc_linear"):
        build(TheoryConfig("fc_liner"))


HUGE = pytest.param(10**400, id="beyond-float")

# --- values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["num_classes", "in_channels"])
@pytest.mark.parametrize("value", [0, -1, 2.5, "10", True])
def test_counts_are_whole_numbers_from_one(option: str, value: object) -> None:
    refused(option, str(value), "1 or more", **{option: value})


@pytest.mark.parametrize("option", ["blocks", "width", "in_channels"])
@pytest.mark.parametrize("value", [0, -1, 2.5, "10"])
def test_counts_of_theory_networks_too(option: str, value: object) -> None:
    small = {"blocks": 2, "width": 4, "in_channels": 3}
    refused(option, str(value), "1 or more", name="fc_linear", **(small | {option: value}))


@pytest.mark.parametrize("value", [0, -4, 2.5, "8"])
def test_ghosts_are_whole_numbers_from_one(value: object) -> None:
    refused("ghost_batch", str(value), "1 or more", ghost_batch=value)


@pytest.mark.parametrize("value", [1.0, -0.1, float("nan"), "0.5"])
def test_dropout_is_a_probability_below_one(value: object) -> None:
    refused("dropout", str(value), "[0, 1)", dropout=value)


def test_the_classifiers_start_and_the_projection_are_refused_where_they_decide_nothing() -> None:
    refused("classifier_init", "component 1", scheme="fixup", classifier_init="zero")
    refused("classifier_init 'big'", "he, lecun, zero", classifier_init="big")
    refused("projection 'none'", "activated, raw", projection="none")
    with pytest.raises(ConfigError, match="projection is not defined"):
        create_model("resnet50_v1", projection="raw")


@pytest.mark.parametrize("scheme", ["skipinit", "regularized-skipinit"])
@pytest.mark.parametrize("value", ["half", "1/sqrt(n)", "nan", float("nan"), float("inf"), [0.5], HUGE])
def test_alpha_is_a_number_or_one_over_sqrt_d(scheme: str, value: object) -> None:
    refused("alpha", "finite number", "1/sqrt(d)", scheme=scheme, alpha=value)


@pytest.mark.parametrize("value", [(5,), (0, 1), ("1",), 5, ([1],)])
def test_fixup_has_four_components(value: object) -> None:
    refused("1, 2, 3 and 4", scheme="fixup", fixup_components=value)


@pytest.mark.parametrize("name", [None, 16, ["wrn16_2"]])
def test_a_name_that_is_no_text(name: object) -> None:
    refused("name", repr(name), name=name)


@pytest.mark.parametrize("scheme", [None, 5, ["skipinit"]])
def test_a_scheme_that_is_no_text(scheme: object) -> None:
    refused("scheme", repr(scheme), scheme=scheme)


@pytest.mark.parametrize("seed", ["0", 1.5, True, 2**64, -(2**63) - 1])
def test_a_seed_that_is_not_allowed(seed: object) -> None:
    refused("seed", str(seed), seed=seed)


# --- combinations --------------------------------------------------------------------------------------

WITHOUT_NORM = ["none", "skipinit", "regularized-skipinit", "divide-sqrt2", "fixup", "fixup-dropout"]
WITHOUT_ALPHA = [name for name in list_schemes() if "skipinit" not in name]


@pytest.mark.parametrize("scheme", WITHOUT_ALPHA)
def test_alpha_belongs_to_skipinit(scheme: str) -> None:
    refused("alpha", scheme, "skipinit and regularized-skipinit", scheme=scheme, alpha=0.5)


@pytest.mark.parametrize("scheme", WITHOUT_NORM)
@pytest.mark.parametrize("option", [{"ghost_batch": 4}, {"batch_statistics_at_test": True}])
def test_norm_options_need_a_norm(scheme: str, option: dict[str, object]) -> None:
    refused(scheme, *option, "nothing is normalized", scheme=scheme, **option)


@pytest.mark.parametrize(
    "scheme", ["batchnorm", "batchnorm-divide-sqrt2", "batchnorm-block-end", "batchnorm-on-skip"]
)
def test_biases_are_for_naught_before_a_norm(scheme: str) -> None:
    refused("biases", "batch norm", scheme=scheme, biases=True)


@pytest.mark.parametrize("scheme", ["fixup", "fixup-dropout"])
def test_biases_next_to_those_of_fixup(scheme: str) -> None:
    refused("biases", "component 4", scheme=scheme, biases=True)


@pytest.mark.parametrize("scheme", WITHOUT_ALPHA)
def test_the_scalar_bias_belongs_to_skipinit(scheme: str) -> None:
    if scheme in ("batchnorm", "none", "divide-sqrt2", "fixup", "fixup-dropout"):
        refused("scalar_bias", "skipinit", name="resnet50_v1", scheme=scheme, scalar_bias=True)
    refused("scalar_bias", "skipinit", name="wrn10_1", scheme=scheme, scalar_bias=True)


@pytest.mark.parametrize("name", ["wrn10_1", "resnet50_v2"])
def test_the_scalar_bias_belongs_to_v1(name: str) -> None:
    refused("scalar_bias", "resnet*_v1", name=name, scheme="skipinit", scalar_bias=True)


@pytest.mark.parametrize(
    "scheme",
    ["batchnorm-divide-sqrt2", "batchnorm-block-end", "batchnorm-on-skip", "batchnorm-final-only"],
)
def test_variants_of_batch_norm_need_an_identity_skip(scheme: str) -> None:
    refused("resnet50_v1", scheme, "wrn*, resnet*_v2", name="resnet50_v1", scheme=scheme)


@pytest.mark.parametrize("scheme", [name for name in list_schemes() if "fixup" not in name])
def test_fixup_components_belong_to_fixup(scheme: str) -> None:
    refused("fixup_components", "fixup and fixup-dropout", scheme=scheme, fixup_components=(1,))


# --- inputs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 4, 8, 8), (2, 1, 8, 8), (2, 8, 8, 3), (2, 3), (3, 3, 8), (3,)])
def test_images_of_the_wrong_shape(shape: tuple[int, ...]) -> None:
    model = create_model("wrn10_1", scheme="none", seed=0)
    with pytest.raises(ConfigError) as caught:
        model(torch.zeros(shape))
    assert str(shape) in str(caught.value)
    assert "3 channels" in str(caught.value)


def test_vectors_of_the_wrong_length() -> None:
    model = create_model("fc_linear", blocks=1, width=4, in_channels=3, seed=0)
    with pytest.raises(ConfigError, match=r"\(2, 4\).*3"):
        model(torch.zeros(2, 4))


def test_a_batch_that_ghosts_do_not_divide() -> None:
    model = create_model("wrn10_1", ghost_batch=4, seed=0)
    with pytest.raises(ConfigError, match="ghost_batch 4 does not divide the batch of 6"):
        model(torch.zeros(6, 3, 8, 8))


@pytest.mark.parametrize("name", list_models())
def test_every_listed_model_exists(name: str) -> None:
    with torch.device("meta"):
        assert create_model(name).config.name == name


def test_patterns_select_models() -> None:
    assert list_models("wrn16_*") == ["wrn16_2", "wrn16_4"]
    assert set(list_models("*_v1")) == {"resnet50_v1", "resnet101_v1", "resnet152_v1"}
    assert list_models("nothing*") == []


def test_an_undefined_network_is_not_described_either() -> None:
    with pytest.raises(ConfigError, match=r"wrn16_2 and wrn22_2"):
        describe(ModelConfig("wrn17_2"))


@pytest.mark.parametrize(
    ("name", "options"), [("wrn10_1", {"num_classes": 10**6}), ("fc_linear", {"width": 9000})]
)
def test_weights_that_do_not_fit_are_refused_before_they_are_drawn(
    name: str, options: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skipinit.nets.create._free_memory", lambda: 2**27)
    line = r"out of memory: the weights take [\d.]+ [MG]iB, and 128 MiB are free; use a smaller network"
    with pytest.raises(SkipinitError, match=line):
        create_model(name, **options)
    create_model("wrn10_1")
