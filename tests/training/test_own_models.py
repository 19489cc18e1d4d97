"""Models and data of the user's own: the numbers of a plain loop, resumed to the bit, swept and converted."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from skipinit.cli import main
from skipinit.config import Convert, ModelConfig, TrainConfig, to_dict
from skipinit.converting.plan import CONVERSIONS
from skipinit.data import epoch_plan, standardize
from skipinit.data.images import mix
from skipinit.errors import ConfigError
from skipinit.nets.layers import l2_parameters
from skipinit.sweeping.engine import Outcome, run_sweep
from skipinit.sweeping.forecast import forecast
from skipinit.sweeping.grid import Grid, expand, group
from skipinit.sweeping.single import train
from skipinit.sweeping.store import open_store
from skipinit.sweeping.trained import evaluate, export
from skipinit.training.control import say_once
from skipinit.training.loop import InTurn, make_executor
from skipinit.training.own_models import build_own
from skipinit.training.protocol import identity, make_train_config, settle, settled_from_dict
from skipinit.training.records import TrainResult
from skipinit.training.run import Run
from skipinit.training.world import World
from support.own_models import SmallNet, small_net
from support.runs import StopAfter, state, tensors

_PATH = "support.own_models:small_net"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Images that brighten to one side or the other or not at all; one class each."""
    generator = np.random.default_rng(0)

    def draw(size: int) -> tuple[np.ndarray, np.ndarray]:
        labels = generator.integers(3, size=size)
        ramp = (labels - 1)[:, None, None, None] * np.linspace(-60, 60, 8)
        noise = generator.normal(128, 30, size=(size, 1, 8, 8))
        return (noise + ramp).clip(0, 255).astype(np.uint8), labels

    path = tmp_path_factory.mktemp("data") / "ramps.npz"
    (train_images, train_labels), (test_images, test_labels) = draw(96), draw(48)
    np.savez(
        path,
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
    )
    return str(path)


def _config(data: str, **options: Any) -> TrainConfig:
    given = {"epochs": 3, "batch_size": 16, "lr": 0.05, **options}
    return make_train_config(ModelConfig(_PATH), data, **given)


def _train(config: TrainConfig, out: Path | None = None, **options: Any) -> TrainResult:
    return train(config, out, device="cpu", progress=False, **options)


def _plain_loop(config: TrainConfig, data: str) -> nn.Module:
    """What anyone would write: their model, their data, torch's SGD."""
    torch.manual_seed(mix("weights", config.seed))
    model = SmallNet().train()
    decayed = list(l2_parameters(model).values())
    assert len(decayed) == 4, "three convolutions and the dense layer"
    rest = [p for p in model.parameters() if all(p is not weight for weight in decayed)]
    optimizer = torch.optim.SGD(
        [{"params": decayed, "weight_decay": config.l2}, {"params": rest}], lr=config.lr, momentum=0.9
    )
    arrays = np.load(data)
    images = standardize(torch.from_numpy(arrays["train_images"]))
    labels = torch.from_numpy(arrays["train_labels"])
    torch.manual_seed(mix("dropout", config.seed))
    for epoch in range(config.epochs):
        for rows in epoch_plan(config.seed, epoch, len(labels)).order.split(config.batch_size):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()
    return model


def test_the_numbers_are_those_of_a_plain_loop(data: str, tmp_path: Path) -> None:
    config = _config(data, schedule="constant", seed=3)
    before = torch.random.get_rng_state()
    result = _train(config, tmp_path / "run")
    assert torch.equal(torch.random.get_rng_state(), before), "torch's generator is left alone"
    wanted = _plain_loop(config, data).state_dict()
    found = state(tmp_path / "run")["model"]
    assert wanted.keys() == found.keys()
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-5, atol=1e-6)
    measured = evaluate(tmp_path / "run", device="cpu")
    assert result.final is not None
    assert (measured.test_accuracy, measured.test_loss) == (
        result.final.test_accuracy,
        result.final.test_loss,
    )
    assert measured.test_accuracy > 60, "chance is 33"


@pytest.mark.parametrize("convert", [None, "regularized-skipinit"])
def test_stopped_and_resumed_is_whole_to_the_bit(data: str, tmp_path: Path, convert: str | None) -> None:
    config = _config(data, convert=convert)
    _train(config, tmp_path / "whole")
    for steps in (2, 5, 4):  # within an epoch, at the end of one, and after the next has begun
        torch.rand(7)  # what others draw in between does not matter
        assert _train(config, tmp_path / "halting", stop=StopAfter(steps)).state == "stopped"
    assert _train(config, tmp_path / "halting").state == "finished"
    whole, halting = (state(tmp_path / name) for name in ("whole", "halting"))
    assert torch.equal(whole["generator"]["state"], halting["generator"]["state"])
    for name, value in tensors(whole).items():
        assert torch.equal(value, tensors(halting)[name]), name
    drop = {"images_per_second"}
    for one, other in zip(whole["records"], halting["records"], strict=True):
        assert {k: v for k, v in one.items() if k not in drop} == {
            k: v for k, v in other.items() if k not in drop
        }


def test_two_workers_at_once_give_the_numbers_of_one_at_a_time(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    axes = {"model": _PATH, "data": data, "lr": "2^-5,2^-4", "batch_size": 32, "epochs": 2, "watch": 2}
    grid = expand({**axes, "convert": "none,skipinit"})
    assert {trial.convert for trial in grid.trials} == {None, "skipinit"}
    curves = []
    for cores in (1, 2):
        monkeypatch.setattr("skipinit.sweeping.workers.usable_cores", lambda cores=cores: cores)
        out = tmp_path / str(cores)
        assert run_sweep(grid, out, device="cpu", progress=False) == Outcome(4, 0, 0)
        with open_store(out) as store:
            curves.append(
                {
                    trial.id: (
                        [replace(epoch, images_per_second=0) for epoch in store.curve(trial.id)],
                        store.measurements(trial.id),
                    )
                    for trial in store.trials()
                }
            )
    assert curves[0] == curves[1]
    assert all(
        [measured.step for measured in seen] == [0, 2, 4] and len(seen[0].rows) == 2
        for _, seen in curves[0].values()
    )


def test_threads_that_train_at_once_give_the_numbers_of_one_at_a_time(data: str) -> None:
    """They share torch's generator, from which factory and dropout draw."""
    model = ModelConfig("support.own_models:slow_to_draw")
    configs = [make_train_config(model, data, epochs=2, batch_size=32, seed=seed) for seed in range(3)]

    def losses(config: TrainConfig) -> list[float]:
        return [epoch.train_loss for epoch in _train(config).records]

    alone = [losses(config) for config in configs]
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(losses, configs)) == alone


def test_convert_removes_the_norms_before_training(data: str, tmp_path: Path) -> None:
    arguments = ["train", _PATH, "--data", data, "--convert", "skipinit", "--epochs", "3", "--json"]
    out = tmp_path / "run"
    assert main([*arguments, "--batch-size", "16", "--device", "cpu", "--out", str(out)]) == 0
    names = state(out)["model"].keys()
    assert not [name for name in names if "running_mean" in name]
    assert len([name for name in names if name.endswith("branch_alpha")]) == 2
    assert {name.split(".")[0] for name in names} == {"stem", "blocks", "dense"}
    config = json.loads((out / "config.json").read_text())["config"]
    assert (config["convert"], config["model"]["scheme"]) == ("skipinit", "own")


def test_an_export_holds_the_state(data: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    _train(_config(data, epochs=1), tmp_path / "run")
    export(tmp_path / "run", tmp_path / "model")
    model = SmallNet()
    model.load_state_dict(load_file(tmp_path / "model" / "model.safetensors"))
    saved = state(tmp_path / "run")["model"]
    assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())


def test_settling_and_reading_back_need_neither_module_nor_data() -> None:
    model = ModelConfig("nowhere.models:make", num_classes=3, in_channels=1)
    config = TrainConfig(model, "nowhere.npz", lr=0.1, batch_size=8, epochs=1)
    settled = settle(config)
    assert settled_from_dict(to_dict(settled)) == settle(settled) == settled
    ids = {identity(replace(config, convert=scheme)) for scheme in (None, "skipinit", "fixup")}
    assert len(ids) == 3
    assert identity(config) == identity(settled)


def test_the_protocol_knows_data_and_norms(data: str) -> None:
    usual = make_train_config(ModelConfig(_PATH), data)
    converted = make_train_config(ModelConfig(_PATH), data, convert="skipinit")
    assert (usual.epochs, usual.batch_size, usual.schedule, usual.augment) == (10, 64, "cifar", False)
    assert (usual.lr, converted.lr) == (0.05, 0.025)
    assert (usual.model.num_classes, usual.model.in_channels) == (3, 1)
    paper = make_train_config(ModelConfig("wrn10_1", "skipinit"), data)
    assert (paper.model.num_classes, paper.model.in_channels) == (3, 1)
    on_cifar = make_train_config(ModelConfig(_PATH), "cifar10")
    assert on_cifar.model.classifier_init is None


def test_a_conversion_is_any_that_removes_norms() -> None:
    """But `none`, which in a list of values says that nothing is converted."""
    assert {*get_args(Convert)} == {*CONVERSIONS} - {"none"}


def test_own_models_share_a_pack_with_the_papers_networks(data: str, tmp_path: Path) -> None:
    own, other = _config(data), _config(data, seed=1)
    paper = make_train_config(ModelConfig("wrn10_1"), data, epochs=3, batch_size=16, lr=0.1)
    assert [*group([(own, 0), (paper, 0), (other, 0)]).values()] == [[own, paper, other]]
    run_sweep(Grid((own, paper, other)), tmp_path / "pack", device="cpu", pack_size=3, progress=False)
    with open_store(tmp_path / "pack") as store:
        together = {trial.id: trial.last for trial in store.trials()}
    for config in (own, paper, other):
        alone, shared = train(config, progress=False).final, together[identity(config)]
        assert alone is not None
        assert shared is not None
        assert (shared.train_loss, shared.test_accuracy) == (alone.train_loss, alone.test_accuracy)


def test_own_models_are_forecast(data: str, tmp_path: Path) -> None:
    assert forecast([_config(data)], tmp_path / "out", "cpu", None).trials == 1


def test_processes_draw_each_their_own_and_the_same_again(data: str) -> None:
    """By the step, so that a resumed run needs no generator but the config's seed."""

    def draw(rank: int, step: int, size: int = 2) -> list[float]:
        world = World(torch.device("cpu"), rank, size)
        run: Any = SimpleNamespace(own=True, config=_config(data), position=step, world=world)
        with Run.randomness(run):
            return torch.rand(4).tolist()

    before = torch.random.get_rng_state()
    assert draw(0, 3) == draw(0, 3)
    assert len({tuple(draw(rank, step)) for rank in (0, 1) for step in (3, 4)}) == 4
    assert torch.equal(torch.random.get_rng_state(), before)


def test_on_a_gpu_they_step_in_turn_and_take_its_batches(
    data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As far as the CPU can tell: no graph, and `view` in a forward works on channels last."""
    world = SimpleNamespace(device=torch.device("cuda"), size=1)
    run: Any = SimpleNamespace(world=world, own=True)
    assert isinstance(make_executor([run], images_on_device=True), InTurn)
    images = torch.randn(2 * 8 * 8).as_strided((2, 1, 8, 8), (64, 1, 8, 1))
    with pytest.raises(RuntimeError, match="view"):
        SmallNet()(images)
    assert build_own(_config(data), (1, 8, 8))(images).shape == (2, 3)
    for _ in range(2):
        say_once(f"{_PATH} runs eagerly")
    assert capsys.readouterr().err == f"skipinit: {_PATH} runs eagerly\n"


REFUSED = {
    "returns a dict; it must return logits (N, 3)": "support.own_models:dictionary",
    "for 2 images its model returns (2, 2); it must return logits (N, 3)": "support.own_models:two_classes",
    "its model is scripted; it must be the Python module": "support.own_models:scripted",
    "its model has no parameter that can be trained": "support.own_models:frozen",
    "its parameter factor is complex; parameters must be real numbers": "support.own_models:ComplexNet",
    "_extra_state of its state is no tensor": "support.own_models:stateful",
    "is a SmallNet; it must be a function that returns a model": "support.own_models:module",
    "is a Tensor; it must be a function that returns a model": "support.own_models:number",
    "broken() failed: ValueError: two lines; it is called without arguments": "support.own_models:broken",
    "module 'support.own_models' has no 'nothing'; it defines SmallNet,": "support.own_models:nothing",
    "module 'support.nowhere' does not import: ModuleNotFoundError": "support.nowhere:make",
    "is not a path of the form package.module:factory": "support.own_models:",
}


@pytest.mark.parametrize("verb", ["train", "sweep"])
@pytest.mark.parametrize("message", REFUSED)
def test_models_that_cannot_be_trained_are_refused_and_leave_nothing(
    data: str, tmp_path: Path, message: str, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    arguments = [verb, REFUSED[message], "--data", data, "--out", str(out), "--device", "cpu", "--lr", "0.1"]
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("auxiliary", "its model returns a tuple in training; it must return logits (N, 3)"),
        ("detached", "its logits have no gradient in training"),
    ],
)
def test_what_is_wrong_in_training_alone_is_one_line(
    data: str, tmp_path: Path, name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [f"support.own_models:{name}", "--data", data, "--device", "cpu", "--lr", "0.1"]
    assert main(["train", *options, "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"skipinit: support.own_models:{name}: {message}")
    assert said.count("\n") == 1
    assert main(["sweep", *options, "--out", str(tmp_path / "sweep")]) == 3
    with open_store(tmp_path / "sweep") as store:
        (reason,) = store.failure_reasons()
    assert message in reason


def test_images_or_a_device_that_do_not_fit_are_refused(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"small_net: its model cannot take images \(N, 3, 32, 32\)"):
        _train(make_train_config(ModelConfig(_PATH), "gaussian"))
    monkeypatch.setattr("support.own_models.small_net", lambda: SmallNet().to("meta"))
    with pytest.raises(ConfigError, match="its model is on meta; it must be on the CPU"):
        _train(_config(data))


def test_a_factory_that_gives_two_runs_one_model_is_refused(data: str) -> None:
    config = make_train_config(ModelConfig("support.own_models:shared"), data, epochs=1)
    _train(config)
    with pytest.raises(ConfigError, match=r"shared\(\) returned the model of another run"):
        _train(replace(config, seed=1))


def test_options_of_the_papers_networks_are_refused(data: str) -> None:
    with pytest.raises(ConfigError, match="scheme 'skipinit' is for the paper's networks; use convert"):
        make_train_config(ModelConfig(_PATH, "skipinit"), data)
    with pytest.raises(ConfigError, match="dropout is for the paper's networks; set it in your factory"):
        make_train_config(ModelConfig(_PATH, dropout=0.5), data)
    with pytest.raises(ConfigError, match="convert 'skipinit' is for a model of your own; wrn16_2 has"):
        make_train_config(ModelConfig("wrn16_2"), data, convert="skipinit")
    with pytest.raises(ConfigError, match="convert 'batchnorm' is not allowed"):
        make_train_config(ModelConfig(_PATH), data, convert="batchnorm")


def test_from_python_a_function_and_tensors(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run of the path and the file, with the same numbers: in memory they only have other names."""
    monkeypatch.setenv("SKIPINIT_DATA", str(tmp_path / "data"))
    arrays = np.load(data)
    train_set = TensorDataset(torch.tensor(arrays["train_images"]), torch.tensor(arrays["train_labels"]))
    in_memory = (train_set, (arrays["test_images"], arrays["test_labels"]))
    options = {"epochs": 1, "batch_size": 16, "lr": 0.05, "convert": "skipinit"}
    config = make_train_config(small_net, in_memory, **options)
    assert config.model.name == _PATH
    assert config == make_train_config(small_net, in_memory, **options)
    for model in (small_net, [small_net, _PATH]):
        [grid_config] = expand({"model": model, "data": in_memory, **options}).trials
        assert grid_config == config
    named = _train(_config(data, epochs=1, convert="skipinit"))
    result = _train(config, tmp_path / "run")
    assert [replace(each, images_per_second=0) for each in result.records] == [
        replace(each, images_per_second=0) for each in named.records
    ]


def test_what_has_no_name_cannot_be_a_model(data: str) -> None:
    words = r"runs are resumed and sent to workers by name, and this has none; put a function that returns"
    for nameless in (lambda: SmallNet(), partial(SmallNet, 2), SmallNet(), SmallNet.forward):
        with pytest.raises(ConfigError, match=words) as caught:
            make_train_config(nameless, data)
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=words):
        expand({"model": lambda: SmallNet(), "data": data, "lr": 0.1})
    with pytest.raises(ConfigError, match="config is a function; make a TrainConfig of it"):
        train(cast(Any, small_net))
