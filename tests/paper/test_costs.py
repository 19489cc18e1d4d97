"""What `skipinit reproduce --list` says of time, on machines of known speed and against counted work."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from skipinit.cli import main
from skipinit.config import ModelConfig, TrainConfig
from skipinit.nets.describe import describe
from skipinit.paper import costs
from skipinit.paper.cells import grid_of, plan_cells
from skipinit.paper.costs import (
    count_trials,
    count_work,
    ends_at_once,
    estimate_costs,
    estimate_step,
    measure_step,
)
from skipinit.paper.exhibits import EXHIBITS, Exhibit
from skipinit.paper.presets import PRESETS

CPU = torch.device("cpu")
RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize(
    "name", ["wrn16_1", "wrn100_2", "wrn16_4", "wrn28_10", "resnet50_v2", "resnet152_v1"]
)
def test_work_is_counted_as_arithmetic(name: str) -> None:
    """Counted on the networks themselves."""
    data = "imagenet" if name.startswith("resnet") else "cifar10"
    config = TrainConfig(ModelConfig(name, "skipinit"), data, lr=0.1, batch_size=64, epochs=1)
    blocks, batch = count_work(config, "cuda")
    timed = describe(ModelConfig("wrn28_2", "skipinit")).macs
    assert 0.75 < blocks * batch * timed / (config.batch_size * describe(config.model).macs) < 1.25


def test_work_scales_with_depth_batch_width_and_pixels() -> None:
    config = TrainConfig(ModelConfig("wrn100_2", "batchnorm"), "cifar10", 0.1, 64, 1, precision="bfloat16")
    assert count_work(config, "cpu") == (48 / 12, 64 * 2**2 * (32 // 8) ** 2)
    digits = replace(config, model=ModelConfig("wrn28_1", in_channels=1), data="digits", batch_size=3)
    assert count_work(digits, "cpu") == (1, 3)


@pytest.mark.parametrize("preset", ["smoke", "demo", "quick", "reduced"])
@pytest.mark.parametrize("exhibit", EXHIBITS.values(), ids=EXHIBITS)
def test_trials_are_counted_as_they_are_run(exhibit: Exhibit, preset: str) -> None:
    planned = plan_cells(exhibit, PRESETS[preset])
    assert sum(count_trials(planned).values()) == len(grid_of(planned).trials)


def test_costs_are_those_of_the_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where 12 blocks take 58 s for 32 examples and as much as 26 more, WRN-16's 6 take 45 s for 64."""
    monkeypatch.setattr(costs, "workers_at_once", lambda: 3)
    found = estimate_costs(CPU, lambda precision: 58.0)
    # One epoch of 22 batches of 64 digits, a third of a step for each batch of the 355 test images, six
    # methods on three cores; and one network at initialization.
    assert found["table1"]["smoke"] == pytest.approx(3 + 6 / 3 * 45 * (22 + 355 / 192))
    assert found["table3"]["smoke"] == pytest.approx(6 / 3 * 45 * (22 + 355 / 192))
    assert found["figure2"]["demo"] == 9, "three networks"
    assert list(found["figure3"]) == ["smoke", "quick", "reduced", "paper"], "the demo has none"
    assert set(found) == {*EXHIBITS, "all"}
    for preset in PRESETS:
        alone = [found[name].get(preset, 0.0) for name in EXHIBITS]
        assert max(alone) < found["all"][preset] <= sum(alone)
    shared = found["figure6"]["reduced"]  # read from the trials of Figure 4
    assert found["all"]["reduced"] <= sum(found[name].get("reduced", 0.0) for name in EXHIBITS) - shared
    assert list(found["table7"]) == ["smoke", "quick", "paper"], "what it says takes more than one epoch"


def test_a_preset_is_timed_at_its_own_precision() -> None:
    """A CPU computes in bfloat16, too: half as long with AVX-512, longer where it is emulated."""
    seconds = {"float32": 1.0, "tf32": 1.0, "bfloat16": 10.0}
    alike, apart = (estimate_costs(CPU, timed) for timed in (lambda precision: 1.0, seconds.__getitem__))
    for preset, ratio in (("quick", 1), ("brief", 10), ("reduced", 10), ("paper", 1)):
        assert apart["table1"][preset] == pytest.approx(ratio * alike["table1"][preset], rel=1e-3)


H200_STEP = 5.45e-3
"""Seconds of the timed step on an idle H200."""


def test_steps_in_packs_are_estimated_within_a_factor_of_two() -> None:
    """Against measured packs, all others of which are smaller."""
    rows = json.loads((RESULTS / "sweep-speed.json").read_text())["rows"]
    packs = {"wrn16_2": 8, "wrn28_10": 2, "wrn100_2": 4, "wrn1000_2": 4}
    measured = {
        (row["network"], row["scheme"]): row["ms_per_step"] / 1e3 / packs[row["network"]]
        for row in rows
        if row["way"] == f"pack of {packs[row['network']]}"
    }
    assert len(measured) == 8
    for (network, scheme), seconds in measured.items():
        config = TrainConfig(ModelConfig(network, scheme), "cifar10", lr=0.1, batch_size=64, epochs=1)
        assert 0.5 < estimate_step(config, H200_STEP, "cuda") / seconds < 2


def test_everything_reduced_takes_an_h200_three_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "usable_cores", lambda: 16)
    found = estimate_costs(torch.device("cuda"), lambda precision: H200_STEP)
    assert 2 * 3600 < found["all"]["reduced"] < 3 * 3600
    # Table 2 reads ImageNet eight times, faster than 16 cores decode it: 3650 photographs a second.
    assert found["table2"]["reduced"] == pytest.approx(8 * (1_281_167 + 50_000) / 3650, rel=0.01)


def test_runs_that_explode_at_once_take_no_time() -> None:
    planned = plan_cells(EXHIBITS["table1"], PRESETS["paper"])
    assert {(cell.method.name, cell.at) for cell in planned if ends_at_once(cell)} == {
        ("skipinit alpha=1", 100),
        ("skipinit alpha=1", 1000),
    }


def test_the_list_loads_no_compiler() -> None:
    code = """if True:
        import sys
        from skipinit.cli import main
        main(["reproduce", "--list", "--device", "cpu"])
        print(sorted({"sklearn", "torch._dynamo", "matplotlib"} & set(sys.modules)))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.stdout.splitlines()[-1], done.stderr) == ("[]", "")


def test_a_timed_step_leaves_torch_as_it_was() -> None:
    torch.manual_seed(5)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    seconds = measure_step("float32", CPU)
    assert math.isfinite(seconds)
    assert seconds > 0
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(("speed", "offered"), [(1e-9, True), (1e3, False)])
def test_the_list_fits_80_columns_and_says_what_needs_a_gpu(
    speed: float, offered: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(costs, "measure_step", lambda precision, device: speed)
    assert main(["reproduce", "--list", "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    rows = {name: [line for line in lines if line.startswith(f"{name} ")] for name in EXHIBITS}
    assert all(len(found) == 2 for found in rows.values()), "what it is, and what it takes"
    times = {name: found[1] for name, found in rows.items()}
    assert ("needs a GPU" in times["table1"]) != offered
    assert "needs a GPU" not in times["figure2"], "nothing is trained for it"
    assert not any(line.rstrip().endswith(" d") for line in times.values())
    assert all(preset in "".join(lines) for preset in PRESETS)
