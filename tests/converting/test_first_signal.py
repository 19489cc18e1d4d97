"""Norms on raw data and on tables beside the stream: a constant in their place keeps the deviation of 1."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention

from skipinit import convert
from support.convert_models import scalars

CONTEXT = torch.randn(4, 10, 6, generator=torch.Generator().manual_seed(0))


class Perceiver(nn.Module):
    """Latents attend to raw data, or to what an embedding returns."""

    def __init__(self, look_up=False) -> None:
        super().__init__()
        self.latents = nn.Parameter(0.02 * torch.randn(3, 8))
        self.look_up = nn.Embedding(20, 6) if look_up else nn.Identity()
        self.of_latents, self.of_context = nn.LayerNorm(8), nn.LayerNorm(6)
        self.queries, self.pairs, self.end = nn.Linear(8, 8), nn.Linear(6, 16), nn.Linear(8, 8)
        self.mlp = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.head = nn.Linear(8, 5)

    def forward(self, context):
        x = self.latents.expand(len(context), -1, -1)
        keys, values = self.pairs(self.of_context(self.look_up(context))).chunk(2, -1)
        x = x + self.end(F.scaled_dot_product_attention(self.queries(self.of_latents(x)), keys, values))
        return self.head((x + self.mlp(x)).mean(1))


def outputs(model, inputs, **options):
    """What the converted network computes when its branches have a part in it."""
    converted = convert(model, inputs, seed=0, **options).model
    for scalar in scalars(converted).values():
        nn.init.ones_(scalar)
    return converted(inputs)


@pytest.mark.parametrize("unit", [0.02, 200.0])
@pytest.mark.parametrize("scheme", ["skipinit", "none"])
def test_the_unit_of_the_context_does_not_matter_as_it_did_not_with_norms(unit, scheme):
    torch.manual_seed(0)
    model, standardized = Perceiver(), CONTEXT / CONTEXT.std(correction=0)
    torch.testing.assert_close(model(unit * CONTEXT), model(CONTEXT), rtol=0.1, atol=0.01)
    wanted = outputs(model, standardized, scheme=scheme)
    torch.testing.assert_close(outputs(model, unit * CONTEXT, scheme=scheme), wanted)


def test_a_context_from_a_table_has_deviation_1_and_the_table_keeps_its_entries():
    model, ids = Perceiver(look_up=True), torch.arange(40).view(4, 10) % 20
    nn.init.normal_(model.look_up.weight, 0, 0.02)
    conversion = convert(model, ids)
    converted = conversion.model
    assert torch.equal(converted.look_up.weight, model.look_up.weight)
    context = converted.of_context(converted.look_up(ids))
    assert context.std(correction=0).item() == pytest.approx(1, rel=1e-5)
    (change,) = (change for change in conversion.changes if change.module == "of_context" and change.added)
    assert change.added.startswith("times ")
    other = convert(model, ids.flip(1)).model
    other.load_state_dict(converted.state_dict())
    torch.testing.assert_close(other(ids), converted(ids))


def test_other_norms_leave_no_scale():
    """Of a context near deviation 1, of streams, of what a layer computed, and with the norm excluded."""
    assert not scales(convert(Perceiver(), CONTEXT).model)
    assert not scales(convert(Perceiver(), 0.02 * CONTEXT, exclude="of_context").model)
    layers = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6)), nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6))
    for first in (*layers, nn.Identity()):
        assert len(scales(convert(Stream(first), 0.02 * CONTEXT).model)) == (first is layers[1])


class Stream(nn.Module):
    def __init__(self, first) -> None:
        super().__init__()
        self.first, self.norm, self.layer = first, nn.LayerNorm(6), nn.Linear(6, 6)

    def forward(self, x):
        x = self.first(x)
        return x + self.layer(self.norm(x))


def scales(model):
    return [name for name, _ in model.named_buffers() if name.endswith("input_scale")]


class Words(nn.Module):
    def __init__(self, wrap) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        nn.init.normal_(self.table.weight, 0, 0.02)
        self.table = wrap(self.table)
        self.norm, self.layer, self.head = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 20)

    def forward(self, ids):
        x = self.table(ids)
        return self.head(x + self.layer(self.norm(x)).relu())


@pytest.mark.parametrize("wrap", [lambda table: table, torch.nn.utils.parametrizations.weight_norm])
def test_a_stream_from_a_table_starts_at_deviation_1_also_if_its_entries_are_computed(wrap):
    ids = torch.randint(20, (64, 16), generator=torch.Generator().manual_seed(0))
    model = convert(Words(wrap), ids, seed=0).model
    assert model.table(ids).std(correction=0).item() == pytest.approx(1, rel=1e-5)


class ClassToken(nn.Module):
    """The classifier sees the batch through attention alone; the token starts at zero, as DeiT's does."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.token = nn.Linear(6, 8), nn.Parameter(torch.zeros(1, 1, 8))
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(3))
        self.pairs, self.end, self.head = nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, 4)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x):
        x = torch.cat([self.token.expand(len(x), -1, -1), self.patches(x)], 1)
        queries, keys, values = self.pairs(self.norms[0](x)).chunk(3, -1)
        x = x + self.end(F.scaled_dot_product_attention(queries, keys, values))
        return self.head(self.norms[2](x + self.mlp(self.norms[1](x)))[:, 0])


@pytest.mark.parametrize("scheme", ["skipinit", "regularized-skipinit"])
def test_a_class_token_of_zeros_is_no_signal_that_vanishes(scheme, recwarn):
    """At the start its outputs are exactly zero, and yet it trains."""
    net = convert(ClassToken(), CONTEXT, scheme=scheme, dropout=0.0, seed=0).model
    assert not recwarn.list
    assert not net.eval()(CONTEXT).any()
    targets, optimizer = torch.arange(4), torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(100):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(CONTEXT), targets)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


class Relative(nn.Module):
    """Returns what the block adds, per its own size: 0 / 0 while the branch is 0."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer, self.head = nn.LayerNorm(6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        added = x + self.layer(self.norm(x)) - x
        return self.head(added / added.abs().max())


def test_a_model_that_gives_nan_at_the_start_is_named():
    inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
    with pytest.warns(UserWarning, match=r"Relative gives NaN on these inputs now.*exclude= leaves"):
        model = convert(Relative(), inputs).model
    assert model(inputs).isnan().all()


class Flexible(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.query, self.out = nn.LayerNorm(6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        q = self.query(self.norm(x))[:, None]
        return self.head(x + self.out(flex_attention(q, q, q)[:, 0]))


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.filterwarnings("ignore:.*does not take these inputs in training mode")
def test_the_first_signal_is_measured_without_gradients():
    """Torch has none for flex attention on a CPU."""
    conversion = convert(Flexible(), torch.randn(4, 5, 6))
    assert (conversion.num_norms, conversion.num_blocks) == (1, 1)
