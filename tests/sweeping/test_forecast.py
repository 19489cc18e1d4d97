"""What a sweep is said to take, against networks that are built, tensors that are kept, sweeps that ran."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from skipinit.cli import main
from skipinit.config import ModelConfig, TrainConfig
from skipinit.data.catalog import DATA_SETS
from skipinit.errors import ConfigError
from skipinit.nets.create import build
from skipinit.nets.describe import describe
from skipinit.nets.schemes import SCHEMES, list_schemes
from skipinit.sweeping.engine import run_sweep
from skipinit.sweeping.forecast import forecast, plan_packs, rough_time
from skipinit.sweeping.grid import Grid, expand_protocol
from skipinit.sweeping.memory import WORKSPACE, examples_at_once, kept_bytes, pack_memory
from skipinit.sweeping.pace import Pace, estimate_epoch
from skipinit.sweeping.packs import choose_size
from skipinit.sweeping.speed import Speed
from skipinit.sweeping.workload import count_work
from skipinit.training.control import Stop
from skipinit.training.run import Run
from skipinit.training.world import World

ROOT = Path(__file__).parents[2]
CIFAR = TrainConfig(ModelConfig("wrn16_2", "batchnorm"), "cifar10", lr=0.1, batch_size=64, epochs=200)
FAST = Speed(macs_per_second=1e14, seconds_per_layer=1e-5)
DIGITS = TrainConfig(
    ModelConfig("wrn10_1", "skipinit", in_channels=1), "digits", lr=0.01, batch_size=128, epochs=2
)


def schemes_of(name: str) -> list[ModelConfig]:
    """The network under every scheme that is defined for it."""
    configs = [ModelConfig(name, scheme) for scheme in list_schemes()]
    return [config for config in configs if SCHEMES[config.scheme].post_activation or "v1" not in name]


NETWORKS = [
    *(config for name in ("wrn16_2", "resnet50_v2", "resnet50_v1") for config in schemes_of(name)),
    ModelConfig("resnet50_v1", "skipinit", scalar_bias=True),
    ModelConfig("wrn16_2", "fixup", fixup_components=(1, 3)),
    ModelConfig("wrn10_1", "batchnorm", ghost_batch=2, num_classes=100, in_channels=1),
]
for_each_network = pytest.mark.parametrize(
    "config", NETWORKS, ids=lambda config: f"{config.name}-{config.scheme}"
)


@for_each_network
def test_counts_are_those_of_the_network_that_is_built(config: ModelConfig) -> None:
    built = describe(config)
    counted = count_work(config, built.input_shape[1])
    assert (counted.macs, counted.parameters) == (built.macs, built.parameters)


def bytes_kept(config: ModelConfig, images: torch.Tensor) -> int:
    """What autograd saves in a forward pass, each storage once, weights left out."""
    model = build(config, seed=0).train()
    own = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}
    storages: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor  # the tensor, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(images)
    return sum(tensor.untyped_storage().nbytes() for place, tensor in storages.items() if place not in own)


@for_each_network
def test_kept_activations_are_those_that_autograd_saves(config: ModelConfig) -> None:
    side = 32 if config.name.startswith("wrn") else 64
    counted = 4 * 4 * count_work(config, side).kept
    saved = bytes_kept(config, torch.randn(4, config.in_channels, side, side))
    # Exactly, but for a few values per channel, which norms and dropout keep, too.
    assert 0.95 * saved <= counted <= saved


def test_memory_is_near_what_a_gpu_measured() -> None:
    """What each run of a pack added, so that what earlier packs left to the allocator does not count."""
    rows = json.loads((ROOT / "results" / "sweep-speed.json").read_text())["rows"]
    held: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        if row["way"].startswith("pack of"):
            sizes = held.setdefault((row["network"], row["scheme"]), {})
            sizes[int(row["way"].split()[-1])] = row["held_memory_gib"]
    assert len(held) == 8
    for (name, scheme), sizes in held.items():
        config = replace(CIFAR, model=ModelConfig(name, scheme), precision="bfloat16")
        each = pack_memory([config] * 2, on_gpu=True) - pack_memory([config], on_gpu=True)
        fewest, most = min(sizes), max(sizes)
        measured = (sizes[most] - sizes[fewest]) / (most - fewest)
        # Workspaces come with a stream's first use: only the first packs of the benchmark show them.
        low = (each - WORKSPACE) / 2**30
        assert 0.9 * low < measured < 1.1 * each / 2**30, (name, scheme)


def test_memory_of_packs() -> None:
    weights = 3 * 4 * describe(CIFAR.model).parameters
    images = 60_000 * 3 * 32 * 32
    run = weights + kept_bytes(CIFAR)
    assert pack_memory([CIFAR], on_gpu=True) == run + WORKSPACE + images
    assert pack_memory([CIFAR] * 3, on_gpu=True) == 3 * (run + WORKSPACE) + images
    assert pack_memory([CIFAR] * 3, on_gpu=False) == 3 * weights + kept_bytes(CIFAR), "one steps at a time"
    rounded = replace(CIFAR, precision="bfloat16")
    assert kept_bytes(rounded) == kept_bytes(CIFAR) / 2
    more = pack_memory([rounded], on_gpu=True) - pack_memory([rounded], on_gpu=False)
    assert more == weights / 6 + WORKSPACE + images


@pytest.mark.parametrize(
    ("scheme", "ghost_batch", "batch_size"),
    [("skipinit", None, 4096), ("batchnorm", None, 1280), ("batchnorm", 96, 9600), ("skipinit", None, 64)],
)
def test_the_micro_batch_is_that_of_a_run(scheme: str, ghost_batch: int | None, batch_size: int) -> None:
    model = ModelConfig("wrn10_1", scheme, ghost_batch=ghost_batch)
    config = replace(CIFAR, model=model, batch_size=batch_size)

    class Source:
        steps_per_epoch = 1

    limit = DATA_SETS["cifar10"].micro_batch
    run = Run(config, Source(), World(torch.device("cpu")), limit)  # type: ignore[arg-type]
    assert examples_at_once(config) == run.micro_batch
    photographs = TrainConfig(ModelConfig("resnet50_v2", "skipinit"), "imagenet", 0.1, 256, 90)
    assert examples_at_once(photographs) == DATA_SETS["imagenet"].micro_batch == 128


def test_time_grows_as_the_work_does() -> None:
    speed = Speed(macs_per_second=1e12, seconds_per_layer=1e-5)
    cost = estimate_epoch(CIFAR, speed)
    assert cost.own == pytest.approx((3 * 50_000 + 10_000) * describe(CIFAR.model).macs / 1e12)
    # A stem, twelve convolutions of branches, three of skips, a classifier.
    assert cost.idle == pytest.approx(50_000 / 64 * 17 * 1e-5)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Pace:
    """The pace of a device of which only the numbers are there: 100 GiB, 100 TMAC/s, 10 us a layer."""
    memory = SimpleNamespace(total_memory=100 * 2**30)
    monkeypatch.setattr("skipinit.sweeping.pace.measure_speed", lambda *_: FAST)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: memory)
    pace = Pace(torch.device("cpu"))
    pace.on_gpu = True
    return pace


def test_runs_of_a_pack_wait_together_on_a_gpu(gpu: Pace) -> None:
    deep = replace(CIFAR, model=replace(CIFAR.model, name="wrn100_2"))
    costs = [estimate_epoch(config, FAST) for config in (CIFAR, deep)]
    assert gpu.epoch([CIFAR, deep]) == pytest.approx(costs[0].own + costs[1].own + costs[1].idle)
    gpu.on_gpu = False
    assert gpu.epoch([CIFAR, deep]) == pytest.approx(sum(cost.own + cost.idle for cost in costs))


def test_packs_for_a_gpu_are_as_large_as_pays_and_fits(gpu: Pace) -> None:
    def sizes(config: TrainConfig, count: int) -> list[int]:
        trials = [(replace(config, seed=seed), 0) for seed in range(count)]
        return [pack.trials for pack in plan_packs(trials, gpu)]

    assert sizes(DIGITS, 70) == [64, 6], "all overhead: the more the better"
    wide = replace(CIFAR, model=replace(CIFAR.model, name="wrn28_10"))
    assert sizes(wide, 3) == [1, 1, 1], "its arithmetic fills the device"
    # A thousand layers keep about 10 GiB for each run.
    deep = replace(CIFAR, model=replace(CIFAR.model, name="wrn1000_2"))
    largest = max(sizes(deep, 64))
    assert pack_memory([deep] * largest, on_gpu=True) <= 80 * 2**30 < pack_memory([deep] * 64, on_gpu=True)


@pytest.mark.parametrize(
    ("gain", "fits", "chosen"), [(1.9, 64, 64), (1.9, 5, 4), (1.02, 64, 1), (1.9, 0, 1), (1.06, 100, 64)]
)
def test_packs_are_doubled_while_that_pays_and_fits(gain: float, fits: int, chosen: int) -> None:
    sizes = []

    def speed(configs: object) -> float | None:
        sizes.append(len(configs))  # type: ignore[arg-type]
        return gain ** (sizes[-1].bit_length() - 1) if sizes[-1] <= fits else None

    assert choose_size([CIFAR] * 100, speed) == chosen
    assert sizes == [1, 2, 4, 8, 16, 32, 64][: len(sizes)]
    assert choose_size([CIFAR] * 3, lambda some: len(some)) == 3


def test_a_doubling_that_brings_nothing_is_looked_past_once() -> None:
    speeds = {1: 100, 2: 99, 4: 170, 8: 171, 16: 172}
    assert choose_size([CIFAR] * 100, lambda some: speeds[len(some)]) == 4
    assert choose_size([CIFAR] * 2, lambda some: speeds[len(some)]) == 1


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
    plan = forecast([done, half, new], tmp_path, "cpu")
    assert (plan.results, plan.resumed, plan.measured, plan.trials) == (1, 1, 2, 2)
    going_on, fresh = plan.packs
    assert 0 < going_on.key.position < 33, "11 batches of 128 an epoch"
    assert fresh.key.position == 0
    # The one that finished took its seconds for two epochs.
    left = 3 - going_on.key.position / 11
    assert going_on.seconds / fresh.seconds == pytest.approx(left / 2)
    assert plan.seconds == going_on.seconds + fresh.seconds


def test_a_forecast_without_results_is_of_the_right_size(tmp_path: Path) -> None:
    larger = replace(DIGITS, model=replace(DIGITS.model, name="wrn16_2"), epochs=1)
    said = forecast([larger], tmp_path / "nothing", "cpu").seconds
    run_sweep(Grid((larger,)), tmp_path, device="cpu", progress=False)
    took = forecast([replace(larger, seed=1)], tmp_path, "cpu")
    assert took.measured == 1
    assert took.seconds / 5 < said < took.seconds * 5


def test_pack_sizes_asked_for(tmp_path: Path) -> None:
    grid = expand_protocol({"model": "wrn16_2", "data": "cifar10,digits", "lr": 0.1, "seed": "0..6"})
    plan = forecast(grid.trials, tmp_path, "cpu", pack_size=4)
    assert [(pack.key.data, pack.trials) for pack in plan.packs] == [
        ("cifar10", 4), ("cifar10", 3), ("digits", 4), ("digits", 3),
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="pack_size 0 is not allowed"):
        forecast(grid.trials, tmp_path, "cpu", pack_size=0)


def test_the_command_says_packs_time_and_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["sweep", "wrn16_2", "--data", "cifar10", "--lr", "2^-3..2^0", "--seed", "0..6"]
    command += ["--out", str(tmp_path / "out"), "--device", "cpu", "--pack-size", "8", "--dry-run"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "28 trials, 5,600 epochs, 280,000,000 training images" in printed
    rows = [line.split() for line in printed.splitlines()]
    assert ["3", "8", "cifar10", "64", "200", "0"] in [row[:6] for row in rows]
    assert ["1", "4", "cifar10", "64", "200", "0"] in [row[:6] for row in rows]
    assert "MiB" in printed
    assert "estimates (0 of 28 trials timed by finished ones" in printed
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["trials"]) == 28
    assert [pack["trials"] for pack in found["packs"]] == [8, 8, 8, 4]
    assert found["seconds"] == pytest.approx(sum(pack["seconds"] for pack in found["packs"]))
    assert not (tmp_path / "out").exists()


def test_a_plan_of_new_trials_loads_neither_scikit_learn_nor_the_compiler() -> None:
    code = """if True:
        import sys
        from pathlib import Path
        from skipinit.sweeping.forecast import forecast
        from skipinit.sweeping.grid import expand_protocol
        grid = expand_protocol({"model": "wrn16_2", "data": "cifar10", "lr": 0.1})
        forecast(grid.trials, Path("none"), "cpu")
        print(sorted({"sklearn", "torch._dynamo", "matplotlib"} & set(sys.modules)))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0 s"), (59, "59 s"), (150, "2 min"), (7000, "2 h"), (1e7, "116 d")]
)
def test_times_in_the_unit_that_fits(seconds: float, words: str) -> None:
    assert rough_time(seconds) == words
