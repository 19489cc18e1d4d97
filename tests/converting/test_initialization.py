"""A model that starts anew: which weights are drawn, by which rule, and which cannot be."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, prune

from skipinit import convert, l2_parameters
from skipinit.errors import ConfigError
from support.convert_models import with_statistics
from support.probe_models import Function

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


class MaxNorm(nn.Module):
    """The weights of each output have at most this norm."""

    def forward(self, weight):
        return weight.renorm(2, 0, 0.25)

    def right_inverse(self, weight):
        return weight


def test_weights_of_a_bounded_norm_are_drawn_up_to_the_bound():
    def bounded(layer):
        return parametrize.register_parametrization(layer, "weight", MaxNorm())

    plain, model = (convert(net(wrap), IMAGES, seed=0).model for wrap in (lambda layer: layer, bounded))
    wanted = plain[0].conv.weight.renorm(2, 0, 0.25)
    torch.testing.assert_close(model[0].conv.weight, wanted)
    assert (wanted.flatten(1).norm(dim=1) - 0.25).abs().max() < 1e-5


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


@pytest.mark.filterwarnings("ignore:.*nn.utils.weight_norm.* is deprecated:FutureWarning")
def test_what_has_no_batch_norm_is_not_told_to_keep_its_function():
    """As a temporal convolutional network: keep_function would refuse it."""
    model = Function(lambda m, x: x + m.a(x).relu())
    nn.utils.weight_norm(model.a)
    with pytest.raises(ConfigError, match=r"prune.remove or exclude='a'$"):
        convert(model, torch.randn(4, 6))


def test_what_removes_an_older_weight_norm_is_named():
    with pytest.warns(FutureWarning):
        model = net(nn.utils.weight_norm)
    with pytest.raises(ConfigError, match=r"^0.conv: a hook .*; use torch.nn.utils.remove_weight_norm, "):
        convert(model, IMAGES)
    for layer in (model[0].conv, model[1].conv, model[-1]):
        nn.utils.remove_weight_norm(layer)
    assert convert(model, IMAGES).num_norms == 2


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
    model, images = with_statistics(net(wrap, bias=False)).double().eval(), IMAGES.double()
    kept = convert(model, images, keep_function=True).model
    torch.testing.assert_close(kept.eval()(images), model(images))


def test_fixup_leaves_what_is_excluded():
    model = net(lambda layer: layer)
    with pytest.warns(UserWarning, match="contribute from the start, unlike Fixup's: 0 "):
        fixed = convert(model, IMAGES, scheme="fixup", exclude="0.conv").model
    assert torch.equal(fixed[0].conv.weight, model[0].conv.weight)
    assert not fixed[1].conv.weight.any()


class Mixed(nn.Module):
    """A layer of every kind that is neither a convolution nor dense."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.token = nn.Embedding(20, 8), nn.Parameter(torch.zeros(8))
        self.norm, self.attention = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.queries = nn.MultiheadAttention(8, 2, kdim=8, vdim=4, batch_first=True)
        self.lstm, self.gru, self.cell = nn.LSTM(8, 8, batch_first=True), nn.GRU(8, 8), nn.RNNCell(8, 8)
        self.up = nn.ConvTranspose1d(8, 8, 4, 2, 1, bias=False)
        self.head = nn.Linear(8, 4)

    def forward(self, ids):
        x = self.table(ids) + self.token
        h = self.norm(x)
        x = x + self.attention(h, h, h)[0]
        x = x + self.queries(x, x, x[..., :4])[0]
        x = x + self.gru(self.lstm(x)[0])[0] + self.cell(x[:, 0])[:, None]
        return self.head(self.up(x.transpose(1, 2)).transpose(1, 2))


IDS = torch.arange(12).view(2, 6)
KEPT = ["table.weight", "token"]


@pytest.mark.filterwarnings("ignore:branches that contribute:UserWarning")
@pytest.mark.filterwarnings("ignore:left as they were:UserWarning")
def test_a_fresh_network_depends_on_the_seed_and_not_on_what_the_given_one_learned():
    def converted(start, seed):
        torch.manual_seed(0)
        model = Mixed()
        with torch.no_grad():
            for name, value in model.named_parameters():
                if name not in KEPT:
                    value.fill_(start)
        return convert(model, IDS, seed=seed)

    conversions = [converted(0.1, 0), converted(0.2, 0), converted(0.1, 1)]
    first, again, other = (dict(c.model.named_parameters()) for c in conversions)
    assert conversions[0].kept == tuple(sorted(KEPT, reverse=True))
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    drawn = {name for name, value in first.items() if value.dim() > 1 and name not in KEPT}
    assert {name for name, value in first.items() if not torch.equal(value, other[name])} >= drawn
    by_own_rule = [c.module for c in conversions[0].changes if c.added == "drawn by its own rule"]
    assert by_own_rule == ["attention", "queries", "lstm", "gru", "cell"]
    assert "Not drawn anew: token, table.weight." in str(conversions[0])


@pytest.mark.parametrize(
    ("size", "stride", "groups"), [(2, 2, 1), (3, 1, 1), (4, 2, 1), (4, 2, 4), (3, 2, 1), (1, 1, 1)]
)
def test_transposed_convolutions_keep_the_variance_through_a_relu(size, stride, groups):
    class Up(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block(lambda layer: layer, bias=True)
            self.up = nn.ConvTranspose2d(8, 64, size, stride, groups=groups)

        def forward(self, x):
            return self.up(self.block(x).relu())

    x = torch.randn(64, 8, 16, 16, generator=torch.Generator().manual_seed(0))
    outputs = convert(Up(), x, seed=0).model(x)[..., size:-size, size:-size]
    assert outputs.square().mean().item() == pytest.approx(1, rel=0.2)


def test_weights_of_attention_recurrent_and_transposed_layers_decay():
    assert set(l2_parameters(Mixed())) == {
        *("attention.in_proj_weight", "attention.out_proj.weight", "queries.out_proj.weight"),
        *("queries.q_proj_weight", "queries.k_proj_weight", "queries.v_proj_weight"),
        *("lstm.weight_ih_l0", "lstm.weight_hh_l0", "gru.weight_ih_l0", "gru.weight_hh_l0"),
        *("cell.weight_ih", "cell.weight_hh", "up.weight", "head.weight"),
    }


class Lookup(nn.Module):
    """A layer of the user's own that says how it starts, for itself and for a layer in it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.inner, self.block = nn.Parameter(torch.ones(8)), nn.Linear(8, 8), Mixed()

    def reset_parameters(self):
        nn.init.constant_(self.weight, 3.0)
        nn.init.constant_(self.inner.weight, 3.0)

    def forward(self, ids):
        return self.block(ids) * self.inner(self.weight).sum()


@pytest.mark.filterwarnings("ignore:branches that contribute:UserWarning")
@pytest.mark.filterwarnings("ignore:left as they were:UserWarning")
def test_a_rule_of_the_users_own_starts_its_layer_alone():
    model = Lookup()
    converted = convert(model, IDS, exclude="inner").model
    assert converted.weight.unique().tolist() == [3.0]
    assert torch.equal(converted.inner.weight, model.inner.weight)

    class Failing(Lookup):
        def reset_parameters(self):
            raise RuntimeError("not\nagain")

    with pytest.raises(ConfigError, match=r"0: its reset_parameters fails \(not again\); exclude='0'"):
        convert(nn.Sequential(Failing()), IDS)


def test_a_rule_of_the_users_own_may_reset_its_norms():
    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.norm, self.last = nn.Parameter(torch.ones(8)), nn.LayerNorm(8), nn.Linear(8, 8)

        def reset_parameters(self):
            nn.init.constant_(self.gate, 2.0)
            self.norm.reset_parameters()

        def forward(self, x):
            return x + self.last(self.norm(x * self.gate))

    conversion = convert(nn.Sequential(Cell(), Cell()), torch.randn(4, 8))
    assert conversion.num_norms == 2
    assert conversion.model[0].gate.unique().tolist() == [2.0]
    assert type(conversion.model[0].norm) is nn.Identity


class Gain(nn.Module):
    """Its reset_parameters needs an argument, so it is no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((8,), 3.0))

    def reset_parameters(self, value):
        nn.init.constant_(self.gain, value)

    def forward(self, x):
        return x * self.gain.view(-1, 1, 1)


def test_a_rule_that_needs_arguments_is_none():
    conversion = convert(nn.Sequential(Gain(), net(lambda layer: layer)), IMAGES)
    assert conversion.model[0].gain.unique().tolist() == [3.0]
    assert conversion.kept == ("0.gain",)


def test_what_is_drawn_anew_trains():
    model = net(lambda layer: layer)
    model[0].requires_grad_(False)
    with pytest.warns(UserWarning, match=r"^0.conv.weight, 0.conv.bias: were frozen; .* and train"):
        converted = convert(model, IMAGES).model
    assert all(parameter.requires_grad for parameter in converted.parameters())
    kept = convert(model, IMAGES, exclude="0.conv").model
    assert not kept[0].conv.weight.requires_grad
    assert torch.equal(kept[0].conv.weight, model[0].conv.weight)
    folded = convert(model, IMAGES, keep_function=True).model
    assert not folded[0].conv.weight.requires_grad


class Decoding(nn.Module):
    """As YOLO's heads: in evaluation a frozen layer takes the mean of bins, which training does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.decode = net(lambda layer: layer), nn.Conv1d(4, 1, 1, bias=False)
        self.decode.weight = nn.Parameter(torch.arange(4.0).view(1, 4, 1), requires_grad=False)

    def forward(self, x):
        logits = self.body(x)
        return logits if self.training else self.decode(logits.softmax(1)[..., None])


def test_a_layer_that_does_not_take_part_in_training_stays(recwarn):
    model = Decoding()
    conversion = convert(model, IMAGES)
    decode = conversion.model.decode
    assert decode.bias is None
    assert torch.equal(decode.weight, model.decode.weight)
    assert not decode.weight.requires_grad
    assert conversion.kept == ("decode.weight",)
    assert not recwarn.list
    assert not torch.equal(conversion.model.body[-1].weight, model.body[-1].weight)


def _binary(parameter):
    return parameter.sign() * (parameter.shape[1] * parameter.shape[2]) ** -0.5


class Binary(nn.Conv2d):
    """Its forward is made for a weight alone."""

    def forward(self, x):
        weight, bias = (None if p is None else _binary(p) for p in (self.weight, self.bias))
        return nn.functional.conv2d(x, weight, bias, padding=self.padding)


def test_layers_whose_forward_takes_no_bias_get_none():
    def binary(layer):
        return Binary(8, 8, 3, padding=1, bias=False) if isinstance(layer, nn.Conv2d) else layer

    conversion = convert(nn.Sequential(nn.Conv2d(8, 8, 3, bias=False), net(binary)), IMAGES)
    assert {row.branch_share for row in conversion.after.rows} == {0}
    layers = [layer for layer in conversion.model.modules() if isinstance(layer, (nn.Conv2d, nn.Linear))]
    assert [layer.bias is None for layer in layers] == [False, True, True, False]


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = net(lambda layer: layer)[:-1], nn.Linear(8, 4)

    def forward(self, x):
        features = self.body(x)
        return {"logits": self.head(features), "features": features}


@pytest.mark.parametrize("scheme", ["skipinit", "fixup"])
def test_the_only_dense_layer_among_several_outputs_is_the_classifier(scheme, recwarn):
    outputs = convert(Several(), 100 * IMAGES, scheme=scheme).model.eval()(100 * IMAGES)
    assert outputs["logits"].std(correction=0).item() == pytest.approx(0 if scheme == "fixup" else 1)
    assert outputs["features"].std() > 2
    assert not recwarn.list


class Segmenter(nn.Module):
    """A convolution for each of the outputs."""

    def __init__(self, *last) -> None:
        super().__init__()
        self.body, self.last = nn.Sequential(*net(lambda layer: layer)[:2]), nn.ModuleList(last)

    def forward(self, x):
        features = self.body(x)
        return tuple(layer(features) for layer in self.last)


LAST = {
    "1x1": nn.Conv2d(8, 3, 1),
    "3x3": nn.Conv2d(8, 3, 3, padding=1),
    "transposed": nn.ConvTranspose2d(8, 3, 2, 2),
    "with a sigmoid": nn.Sequential(nn.Conv2d(8, 1, 1), nn.Sigmoid()),
}


@pytest.mark.parametrize("last", LAST)
def test_the_only_last_convolution_starts_as_a_classifier(last, recwarn):
    def first_outputs(**options):
        (output,) = convert(Segmenter(LAST[last]), 100 * IMAGES, seed=0, **options).model(100 * IMAGES)
        logits = output.logit() if "sigmoid" in last else output
        return logits.std(correction=0).item()

    assert first_outputs() == pytest.approx(1, rel=1e-3)
    assert first_outputs(classifier_init="zero") == first_outputs(scheme="fixup") == 0
    assert not recwarn.list


def test_convolutions_that_make_features_start_by_he(recwarn):
    """One of several, one that a norm follows, and one beside a dense layer."""
    features = nn.Sequential(nn.Conv2d(8, 3, 1), nn.BatchNorm2d(3), nn.ReLU())
    for last in ((LAST["1x1"], LAST["3x3"]), (features,)):
        assert all(out.std() > 10 for out in convert(Segmenter(*last), 100 * IMAGES).model(100 * IMAGES))
    model = Segmenter(LAST["1x1"], nn.Sequential(nn.Flatten(), nn.Linear(512, 4)))
    made, logits = convert(model, 100 * IMAGES).model(100 * IMAGES)
    assert made.std() > 10
    assert logits.std(correction=0).item() == pytest.approx(1, rel=1e-3)
    assert not recwarn.list


class TwoHeads(Several):
    def __init__(self, tied) -> None:
        super().__init__()
        self.words, self.table = nn.Linear(8, 5), nn.Embedding(5, 8)
        if tied:
            self.words.weight = self.table.weight

    def forward(self, x):
        outputs = super().forward(x)
        return outputs | {"words": self.words(outputs["features"])}


@pytest.mark.parametrize("scheme", ["skipinit", "fixup"])
@pytest.mark.parametrize(("tied", "named"), [(False, "head, words"), (True, "head")])
def test_classifiers_among_several_outputs_are_named(scheme, tied, named):
    """A layer that is tied to an embedding did not start by He."""
    with pytest.warns(UserWarning, match=f"an output of TwoHeads, .* classifies: {named} started by He"):
        convert(TwoHeads(tied), IMAGES, scheme=scheme)


def test_a_start_by_he_that_was_asked_for_is_no_exception(recwarn):
    convert(TwoHeads(tied=False), IMAGES, classifier_init="he")
    assert not recwarn.list


class InOut(nn.Module):
    """A dense layer whose weight is (in, out), as in transformers' GPT-2."""

    def __init__(self, inputs, outputs) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(inputs, outputs)), nn.Parameter(torch.ones(outputs))

    def forward(self, x):
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).unflatten(0, x.shape[:-1])


class Words(nn.Module):
    """A language model: tables of small entries, pre-norm blocks, and a head that is one of the tables."""

    def __init__(self, entries=0.02) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(20, 64), nn.Parameter(entries * torch.randn(6, 64))
        nn.init.normal_(self.table.weight, 0, entries)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(64), InOut(64, 256), nn.GELU(), InOut(256, 64)) for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 20, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        x = self.table(ids) + self.places
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.norm(x))


def test_dense_layers_of_another_class_are_dense_layers():
    torch.manual_seed(0)
    model = Words()
    conversion = convert(model, IDS, seed=0)
    assert conversion.kept == ("places", "table.weight")
    wide, narrow = conversion.model.blocks[0][1], conversion.model.blocks[0][3]
    assert wide.weight.var().item() == pytest.approx(2 / 64, rel=0.05)
    assert narrow.weight.var().item() == pytest.approx(2 / 256, rel=0.05)
    assert not wide.bias.any()
    weights = {f"blocks.{block}.{layer}.weight" for block in (0, 1) for layer in (1, 3)}
    assert set(l2_parameters(model)) == set(l2_parameters(conversion.model)) == weights
    fixed = convert(model, IDS, scheme="fixup", seed=0).model
    assert all(hasattr(fixed.blocks[0][layer], "input_bias") for layer in (1, 3))
    assert not fixed.blocks[0][3].weight.any()


def test_a_stream_that_starts_from_small_tables_starts_at_variance_1():
    torch.manual_seed(0)
    model = Words()
    conversion = convert(model, IDS, seed=0)
    assert conversion.before.rows[0].skip_variance == pytest.approx(2 * 0.02**2, rel=0.1)
    assert [row.skip_variance for row in conversion.after.rows] == pytest.approx([1, 1], rel=1e-3)
    converted = conversion.model
    scale = converted.table.table_scale
    assert scale.item() == pytest.approx(35, rel=0.1)
    torch.testing.assert_close(converted.places, model.places * scale)
    assert torch.equal(converted.table.weight, model.table.weight)
    assert converted.head.weight is converted.table.weight
    assert converted(IDS).std().item() == pytest.approx(64**0.5 * 0.02, rel=0.5)
    other = convert(model, IDS.flip(0, 1), seed=1).model
    other.load_state_dict(converted.state_dict())
    torch.testing.assert_close(other(IDS), converted(IDS))
    large = Words(entries=0.7)
    assert torch.equal(convert(large, IDS).model.places, large.places)
    assert not hasattr(convert(model, IDS, exclude="table").model.table, "table_scale")
    assert not hasattr(convert(with_batch_norm(), IDS, keep_function=True).model.table, "table_scale")


def with_batch_norm():
    model = Words()
    model.norm = nn.BatchNorm1d(6)
    return model


class Translator(nn.Module):
    """Two streams that share a table; each has its own positions."""

    def __init__(self) -> None:
        super().__init__()
        self.given, self.made = Words(), Words()
        self.made.table = self.given.table

    def forward(self, ids):
        return self.given(ids) + self.made(ids.flip(1))


def test_a_table_that_two_streams_share_has_one_scale():
    torch.manual_seed(0)
    model = Translator()
    conversion = convert(model, IDS, seed=0)
    converted = conversion.model
    assert converted.made.table is converted.given.table
    for mine, wanted in ((converted.given, model.given), (converted.made, model.made)):
        torch.testing.assert_close(mine.places, wanted.places * converted.given.table.table_scale)
    starts = [row.skip_variance for row in conversion.after.rows if row.name in ("given", "made")]
    assert starts == pytest.approx([1, 1], rel=0.1)


class WithState(Words):
    """A block that adds to a constant state, which is computed from the table and from a decay."""

    def __init__(self) -> None:
        super().__init__()
        self.decay, self.update = nn.Parameter(torch.ones(64)), nn.Linear(64, 64)

    def forward(self, ids):
        state = 0 * self.table(ids) - self.decay.exp().mean()
        return super().forward(ids) + self.head(state + self.update(state))


def test_a_constant_is_no_stream_and_its_parameters_are_kept():
    conversion = convert(WithState(), IDS, seed=0)
    assert conversion.num_blocks == 3
    assert conversion.model.table.table_scale > 30
    assert torch.equal(conversion.model.decay, torch.ones(64))


class Quantized(nn.Module):
    """Blocks on what two quantizers, one for what the other leaves, chose from their tables."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.tables = nn.ModuleList(nn.Embedding(20, 64) for _ in range(2))
        self.last = nn.ModuleList(nn.Linear(64, 64) for _ in range(2))
        self.blocks = Words().blocks

    def forward(self, x):
        rest, total = self.first(x), 0
        for table, last in zip(self.tables, self.last, strict=True):
            entry = table(torch.cdist(rest, table.weight).argmin(-1))
            given = last(rest + (entry - rest).detach())
            rest, total = rest - given, total + given
        for block in self.blocks:
            total = total + block(total)
        return total


@pytest.mark.filterwarnings("ignore:no normalization was found")
def test_the_tables_of_a_quantizer_are_kept():
    """Entries are compared with the data, so their scale is not free; and no branch is what they give."""
    torch.manual_seed(0)
    model = Quantized()
    for table in model.tables:
        table.weight.data.mul_(0.1)
    conversion = convert(model, torch.randn(16, 64), seed=0)
    assert conversion.num_blocks == 2
    assert [row.name for row in conversion.after.rows] == ["Quantized", "Quantized#2"]
    assert not any(hasattr(table, "table_scale") for table in conversion.model.tables)
    given = conversion.after.rows[0].skip_variance
    assert given == pytest.approx(conversion.after.rows[1].skip_variance)
    assert given > 0


class Scaled(nn.Embedding):
    """As in BART and Gemma: the embedding scales by itself, too."""

    def forward(self, ids):
        return 2 * super().forward(ids)


def test_an_embedding_that_scales_by_itself_is_one_table():
    torch.manual_seed(0)
    model = Words()
    table = model.table.weight
    model.table = Scaled(20, 64, _weight=table)
    model.head.weight = model.table.weight
    conversion = convert(model, IDS, seed=0)
    assert conversion.after.rows[0].skip_variance == pytest.approx(1, rel=1e-3)
    scale = conversion.model.table.table_scale
    torch.testing.assert_close(conversion.model.places, model.places * scale)


def test_a_converted_language_model_learns():
    """Another word for each of 20: with a stream of deviation 0.03, the loss is 1.7 after as many steps."""
    torch.manual_seed(0)
    converted = convert(Words(), IDS, seed=0).model
    optimizer = torch.optim.Adam(converted.parameters(), 2e-3)
    ids = torch.randint(20, (32, 6))
    for _ in range(40):
        loss = F.cross_entropy(converted(ids).flatten(0, 1), (ids * 7 % 20).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.8


class OwnTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(20, 8))

    def forward(self, ids):
        return F.embedding(ids, self.weight)


@pytest.mark.parametrize("tied", [True, False])
def test_what_another_layer_draws_is_not_listed_as_kept(tied):
    """A table of one's own class, tied to a dense layer, is drawn as the dense layer's weight."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.norm, self.layer = OwnTable(), nn.LayerNorm(8), nn.Linear(8, 8)
            self.head = nn.Linear(8, 20, bias=False)
            if tied:
                self.head.weight = self.table.weight

        def forward(self, ids):
            x = self.table(ids)
            return self.head(x + self.layer(self.norm(x)))

    model = Tied()
    conversion = convert(model, torch.randint(20, (4, 6)))
    same = torch.equal(conversion.model.table.weight, model.table.weight)
    assert same is not tied
    assert conversion.kept == (() if tied else ("table.weight",))


class DrawnByNumpy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(8))
        self.reset_parameters()

    def reset_parameters(self):
        with torch.no_grad():
            self.scale.copy_(torch.from_numpy(np.random.rand(8)) * random.random())

    def forward(self, x):
        return self.scale * x


def test_the_seed_is_that_of_every_generator():
    """Also of those of numpy and Python, which an own rule may use; all are restored."""

    model, x = nn.Sequential(DrawnByNumpy(), Vectors()), torch.randn(4, 8)
    states = random.getstate(), np.random.get_state()[1].tolist()
    first, same, other = (convert(model, x, seed=seed).model[0].scale for seed in (1, 1, -1))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states


class Vectors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x):
        return x + self.layer(self.norm(x))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_model_on_two_devices_is_drawn_by_one_seed():
    class Spread(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.block = nn.Linear(8, 8), Vectors().cuda()

        def forward(self, x):
            return self.block(self.first(x).cuda())

    x = torch.randn(4, 8)
    first, same = (convert(Spread(), x, seed=0).model for _ in range(2))
    torch.testing.assert_close(first.state_dict(), same.state_dict(), rtol=0, atol=0)


class Standardized(nn.Linear):
    """The scale of its weight changes nothing; each output has fan-in times the variance of the inputs."""

    def forward(self, x):
        weight = self.weight - self.weight.mean(1, keepdim=True)
        return nn.functional.linear(x, weight / weight.std(1, keepdim=True), self.bias)


@pytest.mark.parametrize(("layers", "warns"), [(1, False), (4, True)])
def test_branches_that_dwarf_their_skip_are_named(layers, warns, recwarn):
    """64 inputs to each of four standardized layers: 64^4 = 1.7e7 times the variance."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.branch = (
                nn.LayerNorm(64),
                nn.Sequential(*(Standardized(64, 64) for _ in range(layers))),
            )

        def forward(self, x):
            return x + self.branch(self.norm(x))

    conversion = convert(nn.Sequential(Block(), nn.Linear(64, 3)), torch.randn(256, 64), seed=0)
    (row,) = conversion.after.rows
    assert row.branch_variance_before_scalar / row.skip_variance == pytest.approx(64.0**layers, rel=0.3)
    said = [str(each.message) for each in recwarn.list]
    assert any("0: without norms the branch has up to 2e+07 times" in text for text in said) is warns
