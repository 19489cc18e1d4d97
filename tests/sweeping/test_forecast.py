"""What a sweep is said to take, on machines of known speed and against sweeps that ran."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from skipinit.cli import main
from skipinit.config import ModelConfig, TrainConfig
from skipinit.errors import ConfigError
from skipinit.nets.architectures import find_architecture
from skipinit.sweeping import forecast as forecasting
from skipinit.sweeping.engine import run_sweep
from skipinit.sweeping.forecast import Pace, Step, epoch_seconds, forecast, measure_run
from skipinit.sweeping.grid import Grid, expand
from skipinit.training.control import Stop

CPU = torch.device("cpu")
GIB = 2**30
CIFAR = TrainConfig(ModelConfig("wrn16_2", "batchnorm"), "cifar10", lr=0.1, batch_size=64, epochs=200)
DIGITS = TrainConfig(
    ModelConfig("wrn10_1", "skipinit", in_channels=1), "digits", lr=0.01, batch_size=128, epochs=2
)


def with_network(config: TrainConfig, name: str) -> TrainConfig:
    return replace(config, model=replace(config.model, name=name))


def true_step(config: TrainConfig) -> Step:
    """A machine on which a step is linear in depth and in batch, as real ones are."""
    architecture = find_architecture(config.model.name)
    blocks = architecture.num_blocks
    fixed, each = 0.002 + 0.001 * blocks, (0.0001 + 0.0004 * blocks) * architecture.widen**2
    return Step(fixed + each * config.batch_size, memory=(0.01 + 0.02 * blocks) * GIB)


class Machine:
    """It remembers what was timed on it."""

    def __init__(self, step: Callable[[TrainConfig], Step] = true_step) -> None:
        self.step = step
        self.timed: list[TrainConfig] = []

    def __call__(self, config: TrainConfig) -> Step:
        self.timed.append(config)
        return self.step(config)


@pytest.mark.parametrize("name", ["wrn10_1", "wrn16_2", "wrn100_2", "wrn1000_4", "resnet50_v2"])
@pytest.mark.parametrize("batch_size", [1, 2, 4, 64, 1000])
def test_small_networks_and_batches_tell_the_time_of_large_ones(name: str, batch_size: int) -> None:
    config, machine = replace(with_network(CIFAR, name), batch_size=batch_size), Machine()
    found = Pace(CPU, measure=machine).epoch(config)
    assert found == pytest.approx(epoch_seconds(config, true_step(config)))
    deepest = max(find_architecture(timed.model.name).num_blocks for timed in machine.timed)
    assert deepest <= 16, "nothing deep is ever built"
    assert sum(timed.batch_size for timed in machine.timed) <= 2 * (2 + 8 + 32)


def fake_gpu(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> Pace:
    """The pace of a device of which only the numbers are there: 100 GiB."""
    memory = SimpleNamespace(total_memory=100 * GIB)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: memory)
    pace = Pace(CPU, measure=machine)
    pace.on_gpu = True
    return pace


def test_a_gpu_is_given_whole_batches_and_asked_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    pace, deep = fake_gpu(monkeypatch, machine), with_network(CIFAR, "wrn1000_2")
    assert pace.epoch(deep) == pytest.approx(epoch_seconds(deep, true_step(deep)))
    assert pace.memory([deep, deep]) == pytest.approx(2 * (true_step(deep).memory or 0))
    assert [timed.model.name for timed in machine.timed] == ["wrn10_2", "wrn28_2"]
    assert {timed.batch_size for timed in machine.timed} == {64}
    assert Pace(CPU, measure=machine).memory([deep]) is None


def test_packs_of_a_gpu_are_of_eight_or_as_many_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    pace, deep = fake_gpu(monkeypatch, Machine()), with_network(CIFAR, "wrn1000_2")
    assert pace.likely_size([CIFAR] * 20) == 8
    # A thousand layers take 0.01 + 0.02 · 498 = 9.97 GiB, and a pack may fill 80.
    assert pace.likely_size([CIFAR, deep]) == 8
    assert pace.likely_size([with_network(CIFAR, "wrn1600_2")]) == 5
    assert pace.likely_size([with_network(CIFAR, "wrn100000_2")]) == 1, "even if it does not fit"
    assert Pace(CPU, measure=Machine()).likely_size([CIFAR]) == 1


def test_trials_that_differ_in_rate_and_seed_are_timed_once(tmp_path: Path) -> None:
    grid = expand(
        {"model": "wrn16_2", "depth": "16,100,1000", "data": "cifar10", "lr": "2^-3..2^0", "seed": "0..6"}
    )
    machine = Machine()
    plan = forecast(grid.trials, tmp_path, "cpu", measure=machine)
    assert plan.trials == 84
    assert len(machine.timed) == len(set(machine.timed)) <= 6, "two depths, three batches"


def test_noise_does_not_make_depth_or_batch_pay(tmp_path: Path) -> None:
    def falling(config: TrainConfig) -> Step:
        return Step(1 / config.batch_size / find_architecture(config.model.name).num_blocks)

    found = Pace(CPU, measure=falling).epoch(with_network(CIFAR, "wrn1000_2"))
    assert found == pytest.approx(epoch_seconds(CIFAR, Step(1 / 128 / 12))), "that of the largest timed"


def test_an_epoch_is_its_steps_and_its_scores() -> None:
    # 781 batches of 64, and 10,000 images forward only.
    assert epoch_seconds(CIFAR, Step(0.5)) == pytest.approx(0.5 * (781 + 10_000 / 192))
    clean = replace(CIFAR, clean_train_loss=True)
    assert epoch_seconds(clean, Step(0.5)) == pytest.approx(0.5 * (781 + 60_000 / 192))
    with pytest.raises(ConfigError, match="batch_size 2048 is larger than the 1442 training examples"):
        epoch_seconds(replace(DIGITS, batch_size=2048), Step(0.5))


def test_the_fastest_of_a_few_steps_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def fastest(durations: list[float]) -> tuple[float, int]:
        now, left = 0.0, list(durations)

        def step() -> None:
            nonlocal now
            now += left.pop(0)

        monkeypatch.setattr(forecasting.time, "perf_counter", lambda: now)
        return forecasting.fastest(step, CPU), len(durations) - len(left)

    short = [0.012, *[0.001] * 8, 0.0005, 0.0001]
    assert fastest(short) == (pytest.approx(0.0005), 10)
    assert fastest([0.02, 0.015, 0.01]) == (pytest.approx(0.015), 2), "slow ones are not repeated for long"
    assert fastest([9.0, 1.0]) == (pytest.approx(9.0), 1)


@pytest.mark.parametrize(
    "config",
    [
        DIGITS,
        replace(DIGITS, model=replace(DIGITS.model, scheme="batchnorm", ghost_batch=64)),
        replace(DIGITS, model=replace(DIGITS.model, scheme="regularized-skipinit"), precision="bfloat16"),
        replace(DIGITS, model=replace(DIGITS.model, name="resnet50_v1", scheme="batchnorm"), batch_size=2),
    ],
    ids=lambda config: f"{config.model.name}-{config.model.scheme}",
)
def test_a_plan_leaves_everything_as_it_was(config: TrainConfig, tmp_path: Path) -> None:
    torch.manual_seed(5)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    plan = forecast([config, replace(config, seed=1)], tmp_path / "out", "cpu")
    assert math.isfinite(plan.seconds)
    assert plan.seconds > 0
    assert (plan.trials, plan.measured, plan.device) == (2, 0, "cpu")
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert not list(tmp_path.iterdir())


def test_the_timed_step_is_that_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """It trains: the weights move, batch after batch of the size that was asked for."""
    runs = []

    class Watched(forecasting.Run):
        def train_step(self) -> None:
            super().train_step()
            runs.append(self)

    monkeypatch.setattr(forecasting, "Run", Watched)
    assert measure_run(replace(DIGITS, batch_size=6), CPU).memory is None
    run = runs[0]
    assert run.position == len(runs) <= 10
    images, labels = run.source.batch(run.step)
    assert (images.shape, labels.shape) == ((6, 1, 8, 8), (6,))
    assert all(bool(buffer.any()) for buffer in run.changing_tensors()[-4:-2]), "momentum of the classifier"


def test_a_data_set_that_is_not_here_can_be_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKIPINIT_DATA", str(tmp_path))
    photographs = TrainConfig(ModelConfig("wrn10_1", "skipinit", num_classes=1000), "imagenet", 0.1, 2, 1)
    plan = forecast([replace(CIFAR, batch_size=2), photographs], tmp_path / "out", "cpu")
    assert [pack.key.data for pack in plan.packs] == ["cifar10", "imagenet"]
    assert all(pack.seconds > 0 for pack in plan.packs)
    assert not list(tmp_path.iterdir())


def test_a_forecast_leaves_out_results_and_goes_on_from_checkpoints(tmp_path: Path) -> None:
    done, half, new = DIGITS, replace(DIGITS, seed=1, epochs=3), replace(DIGITS, seed=2)
    run_sweep(Grid((done,)), tmp_path, device="cpu", progress=False)

    class AfterTwelveSteps(Stop):
        looks = 0

        @property
        def requested(self) -> bool:
            self.looks += 1
            return self.looks > 12

    run_sweep(Grid((half,)), tmp_path, device="cpu", progress=False, stop=AfterTwelveSteps())
    machine = Machine()
    plan = forecast([done, half, new], tmp_path, "cpu", measure=machine)
    assert (plan.results, plan.resumed, plan.measured, plan.trials) == (1, 1, 2, 2)
    assert not machine.timed, "a finished trial of the kind is the measure"
    going_on, fresh = plan.packs
    assert 0 < going_on.key.position < 33, "11 batches of 128 an epoch"
    assert fresh.key.position == 0
    # The one that finished took its seconds for two epochs.
    left = 3 - going_on.key.position / 11
    assert going_on.seconds / fresh.seconds == pytest.approx(left / 2)
    assert plan.seconds == going_on.seconds + fresh.seconds
    other = replace(new, batch_size=64)
    again = forecast([other], tmp_path, "cpu", measure=machine)
    assert again.measured == 0
    assert again.seconds == pytest.approx(2 * epoch_seconds(other, true_step(other)))


def test_trials_of_another_machine_are_no_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_sweep(Grid((DIGITS,)), tmp_path, device="cpu", progress=False)
    monkeypatch.setattr("platform.machine", lambda: "another")
    plan = forecast([replace(DIGITS, seed=1)], tmp_path, "cpu", measure=true_step)
    assert plan.measured == 0
    assert plan.seconds == pytest.approx(2 * epoch_seconds(DIGITS, true_step(DIGITS)))


def test_pack_sizes_asked_for(tmp_path: Path) -> None:
    grid = expand({"model": "wrn16_2", "data": "cifar10,digits", "lr": 0.1, "seed": "0..6"})
    plan = forecast(grid.trials, tmp_path, "cpu", pack_size=4, measure=true_step)
    assert [(pack.key.data, pack.trials) for pack in plan.packs] == [
        ("cifar10", 4), ("cifar10", 3), ("digits", 4), ("digits", 3),
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="pack_size 0 is not allowed"):
        forecast(grid.trials, tmp_path, "cpu", pack_size=0)


def test_the_command_says_packs_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(forecasting, "measure_run", lambda config, device: Step(0.01))
    command = ["sweep", "wrn16_2", "--data", "cifar10", "--lr", "2^-3..2^0", "--seed", "0..6"]
    command += ["--out", str(tmp_path / "out"), "--device", "cpu", "--pack-size", "8", "--dry-run"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "28 trials, 5,600 epochs, 280,000,000 training images" in printed
    assert "  lr: 0.125, 0.25, 0.5, 1.0\n" in printed
    rows = [line.split() for line in printed.splitlines()]
    # 200 epochs of 781 steps and scores worth 52 of them, 10 ms each: 1,666 s for each trial.
    assert ["3", "8", "cifar10", "64", "200", "0", "11", "h", "6", "min", "−"] in rows
    assert ["1", "4", "cifar10", "64", "200", "0", "1", "h", "51", "min", "−"] in rows
    assert "about 12 h 57 min on cpu; estimated from a few training steps" in printed
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["trials"]) == 28
    assert [pack["trials"] for pack in found["packs"]] == [8, 8, 8, 4]
    assert found["seconds"] == pytest.approx(sum(pack["seconds"] for pack in found["packs"]))
    assert not (tmp_path / "out").exists()


def test_values_are_shown_as_they_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(forecasting, "measure_run", lambda config, device: Step(0.01))
    command = ["sweep", "wrn10_1", "--data", "digits", "--lr", "1", "--scheme", "fixup", "--device", "cpu"]
    command += ["--out", str(tmp_path / "out"), "--augment", "true,false", "--fixup-components", "1+2,3"]
    assert main([*command, "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "  augment: true, false\n" in printed
    assert "  fixup_components: 1+2, 3\n" in printed


def test_the_command_says_what_is_there_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(forecasting, "measure_run", lambda config, device: Step(0.01))
    command = ["sweep", "wrn10_1", "--data", "digits", "--epochs", "1", "--out", str(tmp_path)]
    command += ["--device", "cpu", "--lr", "0.01", "--batch-size"]
    assert main([*command, "512"]) == 0
    capsys.readouterr()
    assert main([*command, "512", "--dry-run"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == "with a result already: 1; resumed from a checkpoint: 0", "and no packs"
    assert main([*command, "256,512,721", "--dry-run"]) == 0
    assert capsys.readouterr().out.endswith("estimated from a few training steps\n")
    assert main([*command[:-1], "--lr", "0.01,0.02", "--batch-size", "512", "--dry-run"]) == 0
    assert capsys.readouterr().out.endswith("estimated from finished trials\n")
    assert main([*command[:-1], "--lr", "0.01,0.02", "--batch-size", "256,512", "--dry-run"]) == 0
    mixed = "estimated from finished trials for 1 of 3, a few training steps for the rest\n"
    assert capsys.readouterr().out.endswith(mixed)


def test_a_plan_is_whole_in_json_and_in_a_narrow_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(forecasting, "measure_run", lambda config, device: Step(0.01))
    monkeypatch.setenv("COLUMNS", "40")
    path = str(tmp_path / "photographs of a long journey.npz")
    images, labels = np.zeros((64, 1, 8, 8), np.uint8), np.arange(64) % 10
    np.savez(path, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    command = ["sweep", "wrn10_1", "--data", path, "--lr", "0.1,0.1", "--device", "cpu", "--dry-run"]
    assert main([*command, "--json"]) == 0
    printed = capsys.readouterr()
    assert [trial["data"] for trial in json.loads(printed.out)["trials"]] == [path]
    assert printed.err == "skipinit: 1 repeated trial left out\n"
    assert main(command) == 0
    (counts, header, row, estimate) = capsys.readouterr().out.splitlines()
    assert counts == "1 trial, 10 epochs, 640 training images"
    assert estimate.endswith(" on cpu; estimated from a few training steps")
    assert header.split("  ")[0] == "packs"
    assert path in row


def test_a_plan_of_new_trials_loads_neither_scikit_learn_nor_matplotlib_nor_torchs_compiler() -> None:
    code = """if True:
        import sys
        from pathlib import Path
        from skipinit.sweeping.forecast import forecast
        from skipinit.sweeping.grid import expand
        grid = expand({"model": "wrn10_1", "data": "digits", "lr": 0.1})
        forecast(grid.trials, Path("none"), "cpu")
        print(sorted({"sklearn", "matplotlib", "torch._dynamo"} & set(sys.modules)))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
