"""What cannot be converted: one clear line each, and the given model is as it was."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from skipinit.converting.convert import convert
from skipinit.errors import ConfigError, SkipinitError
from skipinit.nets.create import create_model
from skipinit.training.world import leave_group
from support.convert_models import ResNet18
from support.probe_models import PreActivationResNet, ViT, images, vectors

IMAGES, VECTORS = images(4), vectors(4)


def quiet(make):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Scripting and quantization are deprecated; people still have them.
        return make()


def with_scripted_part():
    model = ResNet18()
    model.layer1 = torch.jit.script(model.layer1)
    return model


def quantized():
    model = ResNet18()
    model.fc = torch.ao.nn.quantized.Linear(64, 10)
    return model


def prepared_for_quantization():
    model = ResNet18()
    model.qconfig = torch.ao.quantization.get_default_qat_qconfig()
    return torch.ao.quantization.prepare_qat(model)


def with_integer_weights():
    model = ResNet18()
    weight = model.fc.weight.detach().mul(100).to(torch.int8)
    model.fc.weight = nn.Parameter(weight, requires_grad=False)
    return model


def on_meta():
    with torch.device("meta"):
        return ResNet18()


def lazy():
    model = ResNet18()
    model.fc = nn.LazyLinear(10)
    return model


def wrapped():
    model = ResNet18()
    model.forward = torch.autocast("cpu", dtype=torch.bfloat16)(model.forward)
    return model


def with_function():
    model = ResNet18()
    layer = model.layer1[0].conv2
    model.layer1[0].conv2.forward = lambda x: nn.functional.conv2d(x, layer.weight, padding=1)
    return model


class Uncopyable(ResNet18):
    def __deepcopy__(self, memo):
        raise RuntimeError("a lock\ncannot be copied")


MODELS = {
    "has no residual add": (lambda: nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)), VECTORS),
    "and a learned scale ends every branch: nothing to convert": (
        lambda: create_model("wrn10_1", scheme="skipinit", seed=0),
        IMAGES,
    ),
    "is scripted": (lambda: quiet(lambda: torch.jit.script(PreActivationResNet().blocks[0])), IMAGES),
    "layer1 is scripted": (lambda: quiet(with_scripted_part), IMAGES),
    "fc is quantized": (lambda: quiet(quantized), IMAGES),
    "conv1.weight_fake_quant prepares a quantization": (lambda: quiet(prepared_for_quantization), IMAGES),
    "fc.weight is quantized (int8)": (with_integer_weights, IMAGES),
    "conv1.weight is on the meta device": (on_meta, IMAGES),
    "fc.weight has no size yet": (lazy, IMAGES),
    "is a compiled model": (lambda: torch.compile(ResNet18(), backend="eager"), IMAGES),
    "wraps a model": (lambda: nn.DataParallel(ResNet18()), IMAGES),
    "cannot be copied (a lock cannot be copied)": (Uncopyable, IMAGES),
    "a copy of it still computes with conv1.weight of the model itself": (wrapped, IMAGES),
    "a copy of it still computes with layer1.0.conv2.weight": (with_function, IMAGES),
    "ResNet18 cannot take the inputs 4x6": (ResNet18, VECTORS),
    "the model must be a torch.nn.Module; a int was given": (lambda: 3, IMAGES),
}

OPTIONS = {
    "did you mean skipinit": {"scheme": "skipint"},
    "scheme 'batchnorm' has norms": {"scheme": "batchnorm"},
    "scheme 'fixup' changes what a model computes": {"scheme": "fixup", "keep_function": True},
    "scheme 'divide-sqrt2' changes": {"scheme": "divide-sqrt2", "keep_function": True},
    "alpha 1.0 is not allowed for scheme 'fixup'": {"scheme": "fixup", "alpha": 1.0},
    "with keep_function it is 1": {"alpha": 0.0, "keep_function": True},
    "alpha nan is not allowed": {"alpha": float("nan")},
    "alpha 'small' is not allowed": {"alpha": "small"},
    "biases 'yes' is not allowed; it must be True, False or None": {"biases": "yes"},
    "dropout 1 is not allowed": {"scheme": "regularized-skipinit", "dropout": 1},
    "seed 'one' is not allowed": {"seed": "one"},
    "classifier_init 'tiny' is not allowed; it must be one of small, he, zero": {"classifier_init": "tiny"},
    "exclude 'layer9' matches no module of ResNet18": {"exclude": "layer9"},
    "only LSTM matches no module of ResNet18": {"only": (nn.LSTM,)},
    "exclude 3 is neither the name nor the type of a module": {"exclude": [3]},
    "exclude 4 is neither the name nor the type of a module": {"exclude": 4},
    "norms 'BatchNorm2d' is not a type of module": {"norms": ["BatchNorm2d"]},
    "norms 3 is not a type of module": {"norms": 3},
    "scheme '3' is not known; known: ": {"scheme": 3},
    "scheme '[]' is not known; known: ": {"scheme": []},
    "it must be a whole number of at most 64 bits": {"seed": 2**70},
}


def state(model):
    if not isinstance(model, nn.Module):
        return model
    tensors = {
        name: (id(t), t.clone() if not (t.is_meta or isinstance(t, nn.UninitializedParameter)) else None)
        for name, t in (*model.named_parameters(), *model.named_buffers())
    }
    return [(name, type(m), m.training) for name, m in model.named_modules()], tensors


def same(before, after):
    if not isinstance(before, tuple):
        return before == after
    values = [(before[1][n][1], after[1][n][1]) for n in before[1]]
    return (
        before[0] == after[0]
        and {n: i for n, (i, _) in before[1].items()} == {n: i for n, (i, _) in after[1].items()}
        and all(a is b is None or torch.equal(a, b) for a, b in values)
    )


def assert_refused(model, inputs, message, **options):
    before = state(model)
    random = torch.get_rng_state()
    with pytest.raises(SkipinitError) as caught:
        convert(model, inputs, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert same(before, state(model))
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize("message", MODELS)
def test_model_is_refused_in_one_line_and_untouched(message):
    make, inputs = MODELS[message]
    model = make()
    if isinstance(model, nn.Module) and "scripted" not in message:
        model.train()
    assert_refused(model, inputs, message, seed=0)


def test_a_model_that_is_spread_over_processes_is_refused(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with pytest.raises(
            SkipinitError, match=r"conv1.weight is a DTensor.*before you shard or parallelize"
        ):
            convert(fully_shard(ResNet18(4)), IMAGES)
    finally:
        leave_group()


@pytest.mark.parametrize("message", OPTIONS)
def test_option_is_refused_in_one_line(message):
    assert_refused(ResNet18(), IMAGES, message, **OPTIONS[message])
    with pytest.raises(ConfigError):
        convert(ResNet18(), IMAGES, **OPTIONS[message])


@pytest.mark.parametrize("options", [{"exclude": "*"}, {"only": "fc"}])
def test_a_selection_without_norms_and_residual_adds_is_refused(options):
    message = "ResNet18: exclude= and only= leave no norm and no residual add to convert"
    assert_refused(ResNet18(), IMAGES, message, **options)


def test_divide_sqrt2_is_refused_where_the_sum_is_out_of_reach():
    assert_refused(ViT(2), IMAGES, "its sum cannot be divided by sqrt(2) from outside", scheme="divide-sqrt2")


def test_dropout_is_refused_where_there_is_no_classifier():
    backbone = ResNet18()
    backbone.fc = nn.Identity()
    message = "no one last layer makes the output of ResNet18"
    assert_refused(backbone, IMAGES, message, scheme="regularized-skipinit", seed=0)


@pytest.mark.parametrize("keep_function", [True, False])
def test_the_given_model_is_untouched_by_success_too(keep_function):
    model = ResNet18().train()
    before, twin = state(model), copy.deepcopy(model)
    convert(model, IMAGES, keep_function=keep_function, seed=0)
    assert same(before, state(model))
    assert torch.equal(model(IMAGES), twin(IMAGES))


def test_norms_off_the_way_are_left_and_named():
    model = ResNet18()
    model.spare = nn.BatchNorm2d(3)
    with pytest.warns(UserWarning, match=r"left as they were: spare \(not reached by the inputs\)"):
        conversion = convert(model, IMAGES)
    assert isinstance(conversion.model.spare, nn.BatchNorm2d)
    assert conversion.left == ("spare, not reached by the inputs",)
