"""After a pass the model is as it was; where it cannot run, one clear line says why."""

from __future__ import annotations

import copy
import math
import random
import threading
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules import module as module_hooks

from skipinit import convert, watch
from skipinit.errors import ConfigError, SkipinitError
from skipinit.nets.create import create_model
from skipinit.probing.inputs import example_inputs
from skipinit.probing.measure import find_residual_adds, probe
from support.probe_models import Function, vectors

VECTORS = vectors(64)


class Noisy(nn.Module):
    """Draws from every generator; writes, replaces, sets, removes and adds buffers."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", torch.zeros(6))
        self.register_buffer("cache", None)
        self.register_buffer("once", torch.ones(2, 3))

    def forward(self, x):
        self.calls += 1
        self.last = x.detach().mean(0)
        self.cache = x.detach()
        del self.once
        self.register_buffer("extra", torch.zeros(1))
        x.mul_(2)
        noise = random.random() + np.random.random()
        out = x + F.dropout(self.norm(self.layer(x)), 0.5, training=self.training) * noise
        if x.shape[0] == 7:
            raise RuntimeError("seven is\nnot allowed")
        return out


def _generators():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


@pytest.mark.parametrize("examples", [64, 7])
@pytest.mark.parametrize("targets", [True, False])
def test_model_and_generators_are_untouched(examples, targets):
    model = Noisy()
    model.norm.eval()
    model.layer.weight.grad = torch.ones(6, 6)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    objects = {name: id(value) for name, value in model.named_buffers()}
    batch, generators = torch.randn(examples, 6), _generators()
    given, labels = (
        batch.clone(),
        torch.randint(6, (examples,), generator=torch.Generator()) if targets else None,
    )
    if examples == 7:
        with pytest.raises(
            ConfigError, match=r"Noisy cannot take the inputs 7x6 float32: seven is not allowed"
        ):
            probe(model, batch, labels)
    else:
        assert probe(model, batch, labels) == probe(model, batch, labels)
    assert _generators() == generators
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert {name: id(value) for name, value in model.named_buffers()} == objects
    assert (model.training, model.norm.training, model.layer.training) == (True, False, True)
    assert torch.equal(model.layer.weight.grad, torch.ones(6, 6))
    assert model.norm.weight.grad is None
    assert torch.equal(batch, given)
    hooks = [
        hook
        for module in model.modules()
        for kind in (
            "_forward_hooks",
            "_forward_pre_hooks",
            "_backward_hooks",
            "_forward_hooks_always_called",
        )
        for hook in getattr(module, kind)
    ]
    assert hooks == []
    assert not module_hooks._global_forward_pre_hooks
    assert not module_hooks._global_forward_hooks
    assert torch.backends.mha.get_fastpath_enabled()


def _error(*arguments, **keywords):
    with pytest.raises(SkipinitError) as caught:
        probe(*arguments, **keywords)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_inputs_that_do_not_fit():
    model = create_model("wrn16_2")
    assert "with 3 channels in the second" in _error(model, torch.randn(2, 4, 32, 32))
    integers = torch.ones(2, 3, 32, 32, dtype=torch.int64)
    assert "cannot take the inputs 2x3x32x32 int64" in _error(model, integers)
    assert "NaN or infinity before the model runs" in _error(model, torch.full((2, 3, 32, 32), math.nan))
    assert "the batch is empty: 0x3x32x32 float32" in _error(model, torch.randn(0, 3, 32, 32))
    assert "must be a torch.nn.Module; a function was given" in _error(lambda x: x, VECTORS)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_scripted_part_is_refused():
    model = nn.Sequential(nn.Linear(6, 6), torch.jit.script(nn.Sequential(nn.BatchNorm1d(6))))
    assert "Sequential: 1 is scripted" in _error(model, VECTORS)


def test_a_model_made_in_inference_mode_is_refused_and_a_copy_of_it_is_not():
    with torch.inference_mode():
        model = nn.Sequential(nn.BatchNorm1d(6), Function(lambda m, x: x + m.a(x)))
        with pytest.raises(ConfigError, match=r"made under torch.inference_mode.*give a copy.deepcopy of it"):
            probe(model, VECTORS)
    assert len(probe(copy.deepcopy(model), VECTORS).rows) == 1


def test_targets_that_do_not_fit():
    model, batch = create_model("wrn16_2"), torch.Size([2, 3, 32, 32])
    assert "targets (2,) do not fit outputs (2, 10)" in _error(model, batch, torch.tensor([0, 99]))
    assert "have no default loss" in _error(model, batch, torch.randn(2, 10))
    assert "targets is a list; give a tensor of classes" in _error(model, batch, [1, 2])
    classes = torch.tensor([0, 1])
    assert "loss=3 is no function" in _error(model, batch, classes, loss=3)
    number = _error(model, batch, classes, loss=lambda output, targets: output.sum().item())
    assert "the loss returns a float; it must return a tensor" in number
    cut_off = Function(lambda m, x: (x + m.a(x)).detach())
    assert "cannot go backward" in _error(cut_off, VECTORS, torch.zeros(64, dtype=torch.int64))
    frozen = Function(lambda m, x: x + m.a(x)).requires_grad_(False)
    assert "omit the targets" in _error(frozen, VECTORS, torch.zeros(64, dtype=torch.int64))


@dataclass
class Graph:
    nodes: torch.Tensor
    edges: torch.Tensor

    def __post_init__(self):
        self.nodes = 2 * self.nodes


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")
@pytest.mark.parametrize("edges", ["to_dense", "to_sparse", "to_sparse_csr"])
def test_a_graph_in_a_dataclass_is_the_same_as_its_tensors(edges):
    adjacency = (torch.rand(64, 64, generator=torch.Generator().manual_seed(0)) < 0.1).float()
    model = Function(lambda m, x, a: x + (a @ m.a(x)).relu())
    model.forward = lambda graph: model.function(model, graph.nodes.mul_(0.5), graph.edges)
    graph = Graph(VECTORS, getattr(adjacency, edges)())
    (row,) = probe(model, (graph,)).rows
    branch = (adjacency.double() @ model.a(VECTORS).double()).relu()
    assert row.branch_variance == pytest.approx(branch.var(correction=0).item(), rel=1e-5)
    assert torch.equal(graph.nodes, 2 * VECTORS)


class Batch:
    """Holds its tensors in another object, which also knows the batch, as PyTorch Geometric's does."""

    def __init__(self, nodes):
        self.store = type("Store", (), {})()
        self.store.nodes, self.store.batch, self.store.kind = nodes, self, Batch


class TakesBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, batch):
        x = batch.store.nodes.mul_(0.5)
        return self.last(x + self.norm(self.first(x)).relu())


@pytest.mark.parametrize(
    "wrap", [lambda batch: batch, lambda batch: (batch,), lambda batch: {"batch": batch}]
)
def test_tensors_are_found_in_the_attributes_of_an_object(wrap):
    model, nodes = TakesBatch(), 2 * VECTORS
    inputs = wrap(Batch(nodes))
    report, kept = probe(model, inputs), convert(model, inputs, keep_function=True)
    x = VECTORS.double()
    branch = copy.deepcopy(model.double()).norm(model.first(x)).relu()
    assert report.rows[0].skip_variance == pytest.approx(x.var(correction=0).item())
    assert report.rows[0].branch_variance == pytest.approx(branch.var(correction=0).item(), rel=1e-5)
    assert kept.difference < 1e-6
    assert torch.equal(nodes, 2 * VECTORS)
    model.float()
    with watch(model, every=1) as watched:
        model(Batch(nodes.clone())).sum().backward()
    assert [row.name for row in watched.report().measurements[0].rows] == ["TakesBatch"]


class Energy(nn.Module):
    """Two blocks, and the gradient of what they compute, as in a force field."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm1d(6) for _ in range(2))
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
        self.last = nn.Linear(6, 1)

    def forward(self, x):
        x = x.clone().requires_grad_()
        h = x
        for norm, layer in zip(self.norms, self.layers, strict=True):
            h = h + layer(norm(h)).tanh()
        energy = self.last(h)
        (gradient,) = torch.autograd.grad(energy.sum(), x, create_graph=self.training)
        return energy, -gradient


def test_a_model_that_differentiates_in_its_forward_has_the_adds_of_its_forward():
    torch.manual_seed(0)
    model = Energy()
    for function in (find_residual_adds, lambda *given: probe(*given).rows):
        with torch.no_grad():
            assert [add.name for add in function(model, VECTORS)] == ["Energy", "Energy#2"]
    branch = model.layers[0](F.batch_norm(VECTORS, None, None, training=True)).tanh()
    (first, _) = probe(model, VECTORS).rows
    assert first.branch_variance == pytest.approx(branch.var(correction=0).item(), rel=1e-4)
    assert model.norms[0].num_batches_tracked == 0
    for norm in model.norms:
        norm.running_mean.uniform_(-1, 1)
        norm.running_var.uniform_(0.5, 2)
    kept = convert(model, VECTORS, keep_function=True).model
    for output, wanted in zip(kept.eval()(VECTORS), model.eval()(VECTORS), strict=True):
        torch.testing.assert_close(output, wanted)
    started = convert(model, VECTORS, seed=0)
    assert [row.branch_variance for row in started.after.rows] == [0, 0]
    energy, force = started.model.train()(VECTORS)
    (energy.square().mean() + force.square().mean()).backward()
    assert all(parameter.grad is not None for parameter in started.model.layers.parameters())
    with watch(model.train(), every=1) as watched:
        sum(output.square().mean() for output in model(VECTORS)).backward()
    assert [row.name for row in watched.report().measurements[0].rows] == ["Energy", "Energy#2"]


def test_a_model_that_fails_with_gradients_too_says_why_it_failed_without():
    class Fails(Function):
        def forward(self, x):
            raise RuntimeError("with" if torch.is_grad_enabled() else "without")

    assert _error(Fails(None), VECTORS) == "Fails cannot take the inputs 64x6 float32: without"


def test_weights_on_the_meta_device_have_a_structure_but_no_variances():
    with torch.device("meta"):
        model = create_model("wrn16_2")
    shape = torch.Size([2, 3, 32, 32])
    assert find_residual_adds(model, shape) == find_residual_adds(create_model("wrn16_2"), shape)
    assert "weight is on the meta device and has no values" in _error(model, shape)


def test_integer_input_is_welcome_where_the_model_takes_it():
    model = nn.Sequential(nn.Embedding(9, 6), Function(lambda m, x: x + m.a(x)))
    assert [row.name for row in probe(model, torch.randint(9, (4, 5))).rows] == ["1"]


def test_buffers_that_cannot_be_flattened_or_written_are_kept():
    model = Function(lambda m, x: x + (m.graph.mul_(2) @ m.a(x)).relu() + m.shift)
    model.register_buffer("graph", torch.eye(len(VECTORS)).to_sparse())
    model.register_buffer("shift", torch.ones(1).expand(6))
    (row,) = probe(model, VECTORS).rows
    branch = (2 * model.a(VECTORS).double()).relu()
    assert row.branch_variance == pytest.approx(branch.var(correction=0).item(), rel=1e-5)
    assert torch.equal(model.graph.to_dense(), torch.eye(len(VECTORS)))
    assert torch.equal(model.shift, torch.ones(6))


def test_buffers_that_grow_are_as_they_were():
    """As the observers of a quantization, which start without elements."""

    def observe(m, x):
        m.least.resize_(6).copy_(x.detach().amin(0))
        return x + m.a(x)

    model = Function(observe)
    model.register_buffer("least", torch.empty(0))
    model.register_buffer("after", torch.arange(3.0))
    least = model.least
    first = probe(model, VECTORS)
    assert model.least is least
    assert least.shape == (0,)
    assert model.after.tolist() == [0, 1, 2]
    assert probe(model, VECTORS).rows == first.rows


def test_casts_that_autocast_keeps_are_neither_used_nor_left():
    """In one region: the model has run, is probed, its weights change, and it is probed again."""
    model = Function(lambda m, x: x + m.a(x))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        model(VECTORS)
        ((before,), (add,)) = probe(model, VECTORS).rows, find_residual_adds(model, VECTORS)
        model.a.weight.mul_(2)
        model.a.bias.mul_(2)
        (after,) = probe(model, VECTORS).rows
        assert torch.is_autocast_cache_enabled()
    assert set(add.parameters) == {"a.weight", "a.bias"}
    assert after.branch_variance == pytest.approx(4 * before.branch_variance)


def test_a_forward_without_a_signature_takes_a_tuple_of_arguments():
    model = nn.Identity()
    model.forward = torch.add
    report = probe(model, (VECTORS, VECTORS))
    assert report.rejected == {"both operands are one tensor": 1}


def test_a_tensor_given_twice_is_one_tensor():
    model = Function(lambda m, a, b: a + m.a(b))
    model.forward = lambda a, b: model.function(model, a, b)
    assert len(find_residual_adds(model, (VECTORS, VECTORS))) == 1
    assert find_residual_adds(model, (VECTORS, VECTORS.clone())) == []


def test_a_shape_stands_for_the_same_values_on_every_default_device():
    model = Function(lambda m, x: x + m.a(x))
    with torch.device("meta"):
        values = example_inputs(model, VECTORS.shape)
    assert torch.equal(values, example_inputs(model, VECTORS.shape))


def test_modules_that_run_in_another_thread_give_no_names():
    """The hooks are global; the other thread is inside a layer of the model while the add runs."""
    inside, done = threading.Event(), threading.Event()

    class Waiting(nn.Linear):
        def forward(self, x):
            inside.set()
            done.wait(10)
            return super().forward(x)

    def add_beside_a_thread(m, x):
        other = threading.Thread(target=m.other, args=(x,))
        other.start()
        inside.wait(10)
        x = x + m.a(x)
        done.set()
        other.join()
        return x

    model = Function(add_beside_a_thread)
    model.other = Waiting(6, 6)
    (add,) = find_residual_adds(nn.Sequential(model), VECTORS)
    assert (add.module, add.branch_modules) == ("0", ("0.a",))


@pytest.mark.parametrize("fails", [False, True])
def test_parameters_that_a_forward_writes_into_are_restored(fails):
    """EDM2's networks normalize their weights in the forward pass, in training."""

    class Forced(nn.Linear):
        def forward(self, x):
            with torch.no_grad():
                self.weight[1:].copy_(F.normalize(self.weight[1:]))
            if fails:
                raise RuntimeError("not today")
            return x + super().forward(x)

    model, other = nn.Sequential(nn.Linear(6, 6), Forced(6, 6)), torch.randn(4, 6)
    before = {name: values.clone() for name, values in model.state_dict().items()}
    with pytest.raises(ConfigError, match="not today") if fails else nullcontext():
        assert probe(model, other, torch.zeros(4).long()).rows[0].gradient_norm > 0
    assert all(torch.equal(values, before[name]) for name, values in model.state_dict().items())
