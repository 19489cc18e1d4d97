"""What a watch measures, against numbers computed by hand; that it changes nothing; how it counts steps."""

from __future__ import annotations

import copy
import io
import json
import math
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import optimizer as optim
from torch.utils.checkpoint import checkpoint

import skipinit
from skipinit.errors import ConfigError
from skipinit.nets.create import create_model
from skipinit.probing.measure import probe
from skipinit.probing.watch import Watch, watch
from support.probe_models import Function, PostActivationResNet, PreActivationResNet, ViT, images, vectors
from support.watched_processes import make


def float64(tensor):
    return tensor.detach().double()


def two_blocks(m, x):
    x = x + m.scalar * m.a(x)
    return x + m.b(F.relu(m.c(x)))


def train(model, steps, *, batches=None, called=None, lr=0.01, accumulate=1, autocast=False, seed=3):
    """The losses of a plain loop; `called` is the module that the loop calls."""
    torch.manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    losses = []
    for step in range(steps * accumulate):
        batch = images(4, step) if batches is None else batches[step]
        targets = torch.arange(len(batch)) % 6
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy((model if called is None else called)(batch), targets)
        loss.backward()
        losses.append(loss.item())
        if (step + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    return losses


def seeded(make, seed=0):
    torch.manual_seed(seed)
    return make()


MODELS = {
    "post-activation ResNet": PostActivationResNet,
    "pre-activation ResNet": PreActivationResNet,
    "vision transformer": ViT,
    "wide ResNet with dropout": lambda: create_model(
        "wrn16_2", scheme="regularized-skipinit", num_classes=10, seed=0
    ),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("autocast", [False, True])
def test_training_is_the_same_to_the_bit(name, autocast):
    plain, watched = seeded(MODELS[name]), seeded(MODELS[name])
    wanted = train(plain, 3, autocast=autocast)
    with watch(watched, every=2) as watching:
        assert train(watched, 3, autocast=autocast) == wanted
    assert all(map(torch.equal, plain.state_dict().values(), watched.state_dict().values()))
    assert watching.report().steps == (0, 2)


def test_rows_equal_numbers_computed_by_hand():
    model, batch = seeded(lambda: Function(two_blocks)), vectors(64)
    start = copy.deepcopy(model)
    with watch(model, every=1) as watching:
        train(model, 1, batches=[batch], lr=0.1)
    first, second = watching.report().measurements[0].rows

    x = batch + start.scalar * start.a(batch)
    out = x + start.b(F.relu(start.c(x)))
    loss = F.cross_entropy(out, torch.arange(64) % 6)
    parameters = [start.scalar, *start.a.parameters(), *start.b.parameters(), *start.c.parameters()]
    g_x, g_out, *gradients = (float64(g) for g in torch.autograd.grad(loss, [x, out, *parameters]))

    def norm(tensors):
        return float(sum(float64(t).square().sum() for t in tensors) ** 0.5)

    branches = [start.scalar * start.a(batch), start.b(F.relu(start.c(x)))]
    for row, skip, branch, gradient, part in (
        (first, batch, branches[0], g_x, slice(0, 3)),
        (second, x, branches[1], g_out, slice(3, 7)),
    ):
        assert row.skip_variance == pytest.approx(float(float64(skip).var(correction=0)), rel=1e-5)
        assert row.branch_variance == pytest.approx(float(float64(branch).var(correction=0)), rel=1e-5)
        assert row.gradient_norm == pytest.approx(float(gradient.norm()), rel=1e-5)
        assert row.parameter_gradient_norm == pytest.approx(norm(gradients[part]), rel=1e-5)
        # The first update of SGD is the rate times the gradient.
        wanted = 0.1 * norm(gradients[part]) / norm(parameters[part])
        assert row.update_ratio == pytest.approx(wanted, rel=1e-4)
    assert (first.scale, second.scale) == (0.5, None)


FACTORS = {
    "the parameter": (lambda m, x: x + m.scalar * m.a(x), lambda g: g),
    "computed from it": (lambda m, x: x + torch.tanh(m.scalar) * m.a(x), math.tanh),
    "fused": (lambda m, x: torch.addcmul(x, m.scalar.tanh(), m.a(x)), math.tanh),
    "with its sign": (lambda m, x: x + m.a(x) * -m.scalar, lambda g: -g),
    "divided by it": (lambda m, x: x + m.a(x) / m.scalar, lambda g: 1 / g),
    "many values": (lambda m, x: x + m.a(x) * m.scalar.expand(6).exp(), math.exp),
}


@pytest.mark.parametrize("form", FACTORS)
def test_the_scale_is_what_multiplies(form):
    forward, factor = FACTORS[form]
    model = Function(forward)
    model.scalar.data.fill_(0.5)
    with watch(model, every=1) as watching:
        train(model, 2, batches=[vectors(64)] * 2, lr=0.1)
    first, second = (measured.rows[0].scale for measured in watching.report().measurements)
    assert first == pytest.approx(factor(0.5), rel=1e-6)
    assert second != first


@pytest.mark.parametrize("scheme", ["batchnorm", "skipinit"])
def test_a_measurement_equals_a_probe_of_the_same_batch(scheme):
    model = create_model(
        "wrn16_1", scheme=scheme, num_classes=10, alpha=None if scheme != "skipinit" else 0.5
    )
    wanted = probe(copy.deepcopy(model), images(4, 0), torch.arange(4) % 6).rows
    with watch(model) as watching:
        train(model, 1)
    rows = watching.report().measurements[0].rows
    assert [row.name for row in rows] == [row.name for row in wanted]
    for row, same in zip(rows, wanted, strict=True):
        assert row.branch_share == same.branch_share
        assert row.gradient_norm == pytest.approx(same.gradient_norm, rel=1e-6)
        assert row.parameter_gradient_norm == pytest.approx(same.parameter_gradient_norm, rel=1e-5)


def gated_steps_after_a_block(m, x):
    state = x + m.b(F.relu(m.d(x)))
    for _ in range(3):
        gate = m.a(state * x).sigmoid()
        state = (1 - gate) * state + gate * m.c(state).tanh()
    return state


def test_a_recurrent_cell_is_no_more_a_block_than_in_a_probe():
    model = seeded(lambda: Function(gated_steps_after_a_block))
    expected = [add.name for add in skipinit.find_residual_adds(model, vectors(4))]
    assert len(expected) == 1
    with watch(model, every=1) as watched:
        train(model, 2, batches=[vectors(4)] * 2)
    for measurement in watched.report().measurements:
        assert [row.name for row in measurement.rows] == expected


def test_accumulated_batches_are_one_step():
    """Statistics are of the first micro-batch, the parameters' gradient is the sum."""
    model = seeded(lambda: Function(two_blocks))
    single, batches = copy.deepcopy(model), [vectors(64)[i::2] for i in (0, 1)]
    with watch(model, every=1) as watching:
        train(model, 3, batches=batches * 3, accumulate=2)
    report = watching.report()
    assert report.steps == (0, 1, 2)
    row = report.measurements[0].rows[0]
    assert row.skip_variance == pytest.approx(float(float64(batches[0]).var(correction=0)), rel=1e-5)
    for batch in batches:
        F.cross_entropy(single(batch), torch.arange(32) % 6).backward()
    gradients = [single.scalar.grad, *(p.grad for p in single.a.parameters())]
    assert row.parameter_gradient_norm == pytest.approx(
        float(sum(float64(g).square().sum() for g in gradients)) ** 0.5, rel=1e-5
    )


def test_two_optimizers_make_one_step_and_others_none():
    model, other = seeded(lambda: Function(two_blocks)), nn.Linear(2, 2)
    optimizers = [
        torch.optim.SGD([model.scalar, *model.a.parameters()], lr=0.1),
        torch.optim.Adam([*model.b.parameters(), *model.c.parameters()]),
        torch.optim.SGD(other.parameters(), lr=0.1),
    ]
    with watch(model, every=1) as watching:
        for _ in range(3):
            (model(vectors(8)).square().mean() + other.weight.sum()).backward()
            for optimizer in optimizers:
                optimizer.step()
    measured = watching.report().measurements
    assert [m.step for m in measured] == [0, 1, 2]
    assert all(row.update_ratio > 0 for m in measured for row in m.rows)


def test_a_forward_in_the_closure_of_the_step():
    """Some loops hand forward and backward to the optimizer."""
    model, plain = seeded(lambda: Function(two_blocks)), seeded(lambda: Function(two_blocks))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(vectors(64)), torch.arange(64) % 6)
        loss.backward()
        return loss

    with watch(model, every=2) as closed:
        for _ in range(5):
            optimizer.step(closure)
    with watch(plain, every=2) as opened:
        train(plain, 5, batches=[vectors(64)] * 5)
    assert closed.report().measurements == opened.report().measurements
    assert closed.report().steps == (0, 2, 4)


def test_an_update_by_hand_is_counted_by_hand():
    model = seeded(lambda: Function(two_blocks))
    with watch(model, every=2) as watching:
        for _ in range(3):
            model(vectors(8)).square().mean().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.01 * (0 if parameter.grad is None else parameter.grad)
            watching.count_step()
    assert watching.report().steps == (0, 2)
    assert watching.report().measurements[0].rows[0].parameter_gradient_norm > 0


class Checkpointed(nn.Module):
    def __init__(self, whole, reentrant):
        super().__init__()
        self.net, self.whole, self.reentrant = ViT(depth=3), whole, reentrant

    def forward(self, x):
        if self.whole:
            return checkpoint(self.net, x, use_reentrant=self.reentrant)
        net = self.net
        x = net.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([net.cls.expand(len(x), -1, -1), x], dim=1) + net.pos
        for block in net.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return net.head(net.norm(x)[:, 0])


def test_checkpointed_blocks_are_measured_once():
    plain, checkpointed = seeded(lambda: ViT(depth=3)), seeded(lambda: Checkpointed(False, False))
    with watch(plain, every=1) as wanted, watch(checkpointed, every=1) as found:
        assert train(checkpointed, 2) == train(plain, 2)
    for a, b in zip(found.report().measurements, wanted.report().measurements, strict=True):
        assert [row.name for row in a.rows] == [f"net.{row.name}" for row in b.rows]
        assert [dict(row.to_dict(), name="") for row in a.rows] == [
            dict(row.to_dict(), name="") for row in b.rows
        ]


def test_a_forward_that_runs_again_in_the_backward_is_not_a_step():
    model = seeded(lambda: Checkpointed(True, False))
    with watch(model.net, every=1) as watching:
        train(model, 3)
    assert watching.report().steps == (0, 1, 2)
    assert len(watching.report().blocks) == 6


def test_a_gradient_scaler_changes_the_gradients_on_the_way_and_not_those_that_are_used():
    def scaled(model):
        torch.manual_seed(3)
        optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.01), torch.amp.GradScaler("cpu", 1024.0)
        losses = []
        for step in range(4):
            loss = F.cross_entropy(model(images(4, step)), torch.arange(4)) * (torch.inf if step == 1 else 1)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        return losses

    plain, watched, unscaled = (seeded(PreActivationResNet) for _ in range(3))
    losses = scaled(plain)
    with watch(watched, every=1) as watching:
        assert scaled(watched) == losses
    assert all(map(torch.equal, plain.state_dict().values(), watched.state_dict().values()))
    assert watching.report().steps == (0, 1, 2), "the update that overflowed was none"
    with watch(unscaled, every=1) as wanted:
        train(unscaled, 1)
    pairs = zip(watching.report().measurements[0].rows, wanted.report().measurements[0].rows, strict=True)
    for row, same in pairs:
        assert row.gradient_norm == pytest.approx(1024 * same.gradient_norm, rel=1e-5)
        assert row.parameter_gradient_norm == pytest.approx(same.parameter_gradient_norm, rel=1e-5)


COMPILED = {
    "what compile returned": lambda model: (compiled := torch.compile(model, **EAGER), compiled),
    "the model before": lambda model: (torch.compile(model, **EAGER), model),
    "compiled in place": lambda model: (model.compile(**EAGER), model)[1:] * 2,
}
EAGER = {"backend": "aot_eager", "fullgraph": True}  # A compiler that takes no minutes.


@pytest.mark.parametrize("form", COMPILED)
def test_compiled_models_are_seen_and_unchanged(form):
    eager, plain, model = (seeded(lambda: Function(two_blocks)) for _ in range(3))
    batches = [vectors(64)] * 3
    with watch(eager, every=2) as wanted:
        train(eager, 3, batches=batches)
    called, _ = COMPILED[form](plain)
    losses = train(plain, 3, batches=batches, called=called)
    called, given = COMPILED[form](model)
    with watch(given, every=2) as watching:
        assert train(model, 3, batches=batches, called=called) == losses
    for a, b in zip(watching.report().measurements, wanted.report().measurements, strict=True):
        for row, same in zip(a.rows, b.rows, strict=True):
            assert row.name == same.name
            assert row.branch_share == pytest.approx(same.branch_share, rel=1e-5)
            assert row.parameter_gradient_norm == pytest.approx(same.parameter_gradient_norm, rel=1e-4)
            assert row.update_ratio == pytest.approx(same.update_ratio, rel=1e-4)
            assert row.gradient_norm is None


def seen_by_two_processes(way, folder):
    """The measurements of both processes that train the model of `support.watched_processes`."""
    tests = Path(__file__).parents[1]
    script = tests / "support" / "watched_processes.py"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tests), *sys.path])}
    processes = [
        subprocess.Popen([sys.executable, script, str(rank), folder, way], env=environment) for rank in (0, 1)
    ]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    return [json.loads((folder / f"{rank}.json").read_text())["measurements"] for rank in (0, 1)]


def test_processes_measure_their_own_share_and_the_common_gradient(tmp_path):
    """The gradients that DDP averages are those of the whole batch in one process."""
    seen = seen_by_two_processes("ddp", tmp_path)
    assert [measured["step"] for measured in seen[0]] == [0, 2]
    model = seeded(lambda: ViT(depth=2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, every=2) as watching:
        for step in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(images(8, step)), torch.arange(8)).backward()
            optimizer.step()
    own = [probe(seeded(lambda: ViT(depth=2)), images(8, 0)[rank::2]).rows for rank in (0, 1)]
    for rank in (0, 1):
        assert [row["branch_share"] for row in seen[rank][0]["rows"]] == pytest.approx(
            [row.branch_share for row in own[rank]], rel=1e-5
        )
        for measured, alone in zip(seen[rank], watching.report().measurements, strict=True):
            for row, whole in zip(measured["rows"], alone.rows, strict=True):
                assert row["name"] == whole.name
                assert row["parameter_gradient_norm"] == pytest.approx(
                    whole.parameter_gradient_norm, rel=1e-3
                )
                assert row["update_ratio"] == pytest.approx(whole.update_ratio, rel=1e-3)


@pytest.mark.parametrize("way", ["sharded", "tensor"])
def test_parameters_that_are_spread_over_processes_hide_no_block(way, tmp_path):
    """No norm of weights is known of which a process holds a part. All else is as in one process."""
    seen = seen_by_two_processes(way, tmp_path)
    model = make(way)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, every=2) as watching:
        for step in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(images(8, step).double()), torch.arange(8)).backward()
            optimizer.step()
    assert len(watching.report().blocks) == (8 if way == "sharded" else 4)
    for measurements in seen:
        for measured, alone in zip(measurements, watching.report().measurements, strict=True):
            for row, whole in zip(measured["rows"], alone.rows, strict=True):
                assert row["name"] == whole.name
                for field in ("skip_variance", "branch_variance", "scale", "gradient_norm"):
                    assert row[field] == pytest.approx(getattr(whole, field), rel=1e-5), field
                hidden = way == "sharded" or whole.name.endswith("#2")
                assert (row["parameter_gradient_norm"] is None) == hidden
                assert (row["update_ratio"] is None) == hidden


def traces(model):
    """All that a module keeps of hooks and attributes."""
    return [
        (name, {key: value if key.startswith("_") and "hooks" in key else id(value) for key, value in found})
        for name, found in ((n, sorted(vars(m).items())) for n, m in model.named_modules())
    ]


def test_it_leaves_no_trace():
    model = seeded(PostActivationResNet)
    hooks = len(optim._global_optimizer_pre_hooks), len(optim._global_optimizer_post_hooks)
    before, keys = copy.deepcopy(traces(model)), list(model.state_dict())
    with watch(model, every=1):
        train(model, 1)
    assert traces(model) == before
    assert list(model.state_dict()) == keys
    assert hooks == (len(optim._global_optimizer_pre_hooks), len(optim._global_optimizer_post_hooks))


def test_copies_of_a_watched_model_are_not_watched():
    model = seeded(lambda: create_model("wrn10_1", num_classes=10))
    with watch(model, every=1) as watching:
        train(model, 1)
        saved = io.BytesIO()
        torch.save(model, saved)
        saved.seek(0)
        for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)),
                       torch.load(saved, weights_only=False)):  # fmt: skip
            train(copied, 2)
    assert watching.report().steps == (0,)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_forward_that_fails_is_measured_when_it_is_repeated(error):
    fail = True

    def forward(m, x):
        x = two_blocks(m, x)
        if fail:
            raise error
        return x

    model = seeded(lambda: Function(forward))
    with watch(model, every=1) as watching:
        with pytest.raises(error):
            model(vectors(8))
        fail = False
        train(model, 2, batches=[vectors(8)] * 2)
    assert watching.report().steps == (0, 1)
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    assert not torch._C._is_torch_function_mode_enabled() or torch._C._len_torch_function_stack() == 0


def test_evaluation_counts_nothing():
    model = seeded(lambda: Function(two_blocks))
    with watch(model, every=1) as watching:
        model.eval()(vectors(8))
        with torch.no_grad():
            model.train()(vectors(8))
    report = watching.report()
    assert (report.steps, watching.step) == ((), 0)
    assert "made no forward pass in training mode" in str(report)


def test_one_copy_to_the_host_for_each_measurement(monkeypatch):
    waits = []
    for name in ("tolist", "item", "__bool__", "__float__", "__int__", "cpu", "numpy"):
        original = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor, name, lambda t, *a, n=name, f=original, **k: (waits.append(n), f(t, *a, **k))[1]
        )
    model = seeded(PostActivationResNet)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, every=2) as watching:
        for _ in range(4):
            model(images(2)).square().mean().backward()
            optimizer.step()
    assert watching.report().steps == (0, 2)
    assert waits == ["tolist", "tolist"]


def test_memory_is_bounded_and_steps_stay_even():
    model = seeded(lambda: Function(two_blocks))
    with watch(model, every=1, limit=4) as watching:
        train(model, 20, batches=[vectors(8)] * 20)
    # The fifth measurement makes it every 2, the next fifth every 4, and so on.
    assert (watching.report().steps, watching.every) == ((0, 8, 16), 8)


def test_resumed_equals_uninterrupted():
    model, other = (seeded(lambda: Function(two_blocks)) for _ in range(2))
    batches = [vectors(64)[i : i + 8] for i in range(8)]
    with watch(model, every=2) as whole:
        train_with(model, batches)
    with watch(other, every=2) as first:
        optimizer = train_with(other, batches[:3])
    state = json.loads(json.dumps(first.state_dict()))
    with Watch(other, every=7) as second:
        second.load_state_dict(state)
        train_with(other, batches[3:], optimizer)
    assert second.report() == whole.report()
    assert (second.step, second.every) == (8, 2)
    with pytest.raises(ConfigError, match="format 9; 1 is readable"):
        second.load_state_dict({"format": 9})
    with pytest.raises(ConfigError, match="a dict without a format is no state_dict of a watch"):
        second.load_state_dict({"model": {}})
    with pytest.raises(ConfigError, match="a list without a format is no state_dict of a watch"):
        second.load_state_dict([])
    for part, name in (({"step": 3}, "every"), (state | {"measurements": [{"rows": []}]}, "step")):
        with pytest.raises(ConfigError, match=rf"not a whole state_dict of a watch \(KeyError\('{name}'\)\)"):
            second.load_state_dict({"format": 1, **part})
    with pytest.raises(ConfigError, match="every=0 is not allowed"):
        second.load_state_dict(state | {"every": 0})
    assert second.report() == whole.report(), "what is refused changes nothing"


def train_with(model, batches, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for batch in batches:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    return optimizer


def test_writers_get_each_measurement_once():
    got, model = [], seeded(lambda: Function(two_blocks))
    with watch(model, every=2, writers=[got.append]) as watching:
        train(model, 5, batches=[vectors(8)] * 5)
    assert tuple(got) == watching.report().measurements


def test_a_model_without_residual_adds_says_so():
    model = nn.Sequential(nn.Linear(6, 6))
    with watch(model, every=1) as watching:
        train(model, 2, batches=[vectors(8)] * 2)
    assert str(watching.report()).startswith("Sequential has no residual add")
    with pytest.raises(ConfigError, match="nothing to plot; Sequential has no residual add"):
        watching.report().plot("picture.png")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every=0 "),
        ({"every": 2.5}, r"every=2\.5 .* a whole number"),
        ({"every": "2"}, "every='2' "),
        ({"limit": 1}, "limit=1 "),
        ({"limit": 9.5}, r"limit=9\.5 .* a whole number"),
    ],
)
def test_wrong_settings_are_one_line(options, message):
    with pytest.raises(ConfigError, match=message):
        skipinit.watch(nn.Linear(2, 2), **options)
    with pytest.raises(ConfigError, match=r"must be a torch.nn.Module; a str"):
        skipinit.watch("model")


def test_the_pass_of_a_probe_is_no_step():
    def measured(with_probe):
        model = seeded(lambda: Function(two_blocks))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with watch(model, every=1) as watching:
            for _ in range(2):
                if with_probe:
                    probe(model, 9 * vectors(8), torch.arange(8) % 6)
                model(vectors(8)).square().mean().backward()
                optimizer.step()
        return watching.report()

    assert measured(with_probe=True) == measured(with_probe=False)


def test_a_compiled_model_is_measured_on_all_of_its_arguments():
    """Whole numbers as the second argument are no labels here, and `gain` is required but given by name."""

    class Timed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 6)

        def forward(self, x, times=None, offset=None, *, gain):
            return gain * (x + self.a(x) * (0 if times is None else times[:, None]))

    class Required(Timed):
        def forward(self, x, times, gain):
            return super().forward(x, times, gain=gain)

    for kind in (Timed, Required):
        model, inputs, times = seeded(kind), vectors(8), torch.arange(8)
        compiled = torch.compile(model, backend="eager")
        with watch(compiled, every=1) as watching:
            compiled(inputs, times, gain=torch.tensor(2.0)).sum().backward()
        (row,) = watching.report().measurements[0].rows
        branch = float64(model.a(inputs) * times[:, None])
        assert row.branch_variance == pytest.approx(branch.var(correction=0).item(), rel=1e-5)
