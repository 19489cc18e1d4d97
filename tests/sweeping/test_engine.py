"""Training what a sweep lacks: packs change nothing, every trial gets one result or one failure."""

from __future__ import annotations

import io
import itertools
import json
import math
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import skipinit
from skipinit.cli import main
from skipinit.config import TrainConfig
from skipinit.errors import ConfigError, SkipinitError
from skipinit.sweeping import engine, trainer
from skipinit.sweeping.engine import Outcome, run_sweep
from skipinit.sweeping.exchange import entries, merge
from skipinit.sweeping.grid import Grid
from skipinit.sweeping.single import train
from skipinit.sweeping.store import Writer, open_store, open_writer
from skipinit.training import control
from skipinit.training.checkpoint import Checkpoints, curve_in, unpack_state
from skipinit.training.control import Stop
from skipinit.training.protocol import identity
from skipinit.training.records import Event, Recorded, Trial
from skipinit.training.run import Run
from support.runs import DIVERGING, SMALL, SMALL_BATCHNORM, StopAfter


def _sweep(configs: list[TrainConfig], out: Path, **options: Any) -> Outcome:
    return run_sweep(Grid(tuple(configs)), out, device="cpu", progress=False, **options)


def _trials(out: Path) -> dict[str, Trial]:
    with open_store(out) as store:
        return {trial.id: trial for trial in store.trials()}


def _curve(out: Path, config: TrainConfig) -> list[dict[str, Any]]:
    with open_store(out) as store:
        epochs = store.curve(identity(config))
    return [{k: v for k, v in vars(epoch).items() if k != "images_per_second"} for epoch in epochs]


def test_a_trial_in_a_pack_of_sixteen_equals_the_lone_run_bit_for_bit(tmp_path: Path) -> None:
    others = [replace(SMALL, lr=2.0**-n, seed=n) for n in range(3, 10)]
    others += [replace(SMALL, model=SMALL_BATCHNORM, lr=2.0**-n) for n in range(3, 10)]
    pack = [*others[:7], SMALL, DIVERGING, *others[7:]]
    assert len(pack) == 16
    assert _sweep(pack, tmp_path, pack_size=16) == Outcome(results=16, failures=0, left=0)
    alone = train(SMALL, device="cpu", progress=False)
    expected = [
        {k: v for k, v in vars(record).items() if k != "images_per_second"} for record in alone.records
    ]
    assert _curve(tmp_path, SMALL) == expected
    broken = _trials(tmp_path)[identity(DIVERGING)]
    assert (broken.state, broken.reason) == ("diverged", "the loss was not finite at step 0")


def test_at_no_instant_is_a_checkpoint_ahead_of_the_store_or_gone_before_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int]] = []

    def observed(change: str) -> None:
        method = getattr(Checkpoints, change)

        def look_first(self: Checkpoints, id: str, *content: bytes) -> None:
            with open_store(tmp_path) as store:  # a reader of its own: it sees what is committed
                epochs, trial = len(store.curve(id)), store.trial(id)
            assert trial is not None
            if change == "save":
                state, _ = unpack_state(io.BytesIO(*content))
                assert len(curve_in(state)) == epochs
            else:
                assert trial.state == "finished"
            seen.append((change, epochs))
            method(self, id, *content)

        monkeypatch.setattr(Checkpoints, change, look_first)

    observed("save")
    observed("drop")
    assert _sweep([replace(SMALL, epochs=3)], tmp_path, checkpoint_seconds=0).results == 1
    assert seen == [("save", 1), ("save", 2), ("drop", 3)]


def test_a_result_is_never_trained_again_and_new_trials_join(tmp_path: Path) -> None:
    _sweep([SMALL], tmp_path)
    before = _trials(tmp_path)[identity(SMALL)]
    second = replace(SMALL, seed=1)
    assert _sweep([SMALL, second], tmp_path) == Outcome(2, 0, 0)
    after = _trials(tmp_path)
    assert after[identity(SMALL)] == before
    assert after[identity(second)].state == "finished"
    assert not list((tmp_path / "checkpoints").glob("*"))


def test_a_trial_that_raises_is_a_failure_with_its_traceback_and_disturbs_nobody(tmp_path: Path) -> None:
    bad = replace(SMALL, model=replace(SMALL_BATCHNORM, ghost_batch=48))
    assert _sweep([SMALL, bad], tmp_path, pack_size=2) == Outcome(results=1, failures=1, left=0)
    failed = _trials(tmp_path)[identity(bad)]
    assert failed.state == "failed"
    assert failed.reason is not None
    assert "ghost_batch 48 does not divide" in failed.reason
    assert failed.traceback is not None
    assert "ConfigError" in failed.traceback
    reference = tmp_path / "alone"
    _sweep([SMALL], reference)
    assert _curve(tmp_path, SMALL) == _curve(reference, SMALL)


def test_a_pack_that_runs_out_of_memory_goes_on_as_smaller_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device holds two runs; more of them fail within the second epoch."""
    trials = [replace(SMALL, batch_size=512, seed=seed) for seed in range(5)]
    _sweep(trials, tmp_path / "alone", pack_size=1)
    sizes: list[int] = []
    together, step = trainer.train_together, Run.train_step

    def train_together(runs: list[Run], *rest: Any) -> None:
        sizes.append(len(runs))
        together(runs, *rest)

    def train_step(run: Run) -> None:
        if sizes[-1] > 2 and run.records:
            raise torch.OutOfMemoryError("CUDA out of memory")
        step(run)

    monkeypatch.setattr(trainer, "train_together", train_together)
    monkeypatch.setattr(Run, "train_step", train_step)
    assert _sweep(trials, tmp_path, pack_size=5, checkpoint_seconds=0) == Outcome(5, 0, 0)
    assert sizes == [5, 2, 2, 1]
    for config in trials:
        assert _curve(tmp_path, config) == _curve(tmp_path / "alone", config)


@pytest.fixture
def second_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that only training steps move: seed 1 goes non-finite at step 7, seed 2 raises at step 3."""
    step, steps = Run.train_step, [0]

    def train_step(run: Run) -> None:
        if (run.config.seed, run.position) == (2, 3):
            raise RuntimeError("no")
        if (run.config.seed, run.position) == (1, 7):
            for weights in run.model.parameters():
                weights.data.fill_(math.nan)
        step(run)
        steps[0] += 1

    monkeypatch.setattr(Run, "train_step", train_step)
    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: float(steps[0])))


def test_trials_of_a_pack_cost_what_their_steps_do_however_they_end(
    tmp_path: Path, second_a_step: None
) -> None:
    pack = [replace(SMALL, seed=seed) for seed in (0, 1, 3, 4)]
    assert _sweep(pack, tmp_path, pack_size=4) == Outcome(4, 0, 0)
    costs = {trial.config.seed: (trial.state, trial.seconds) for trial in _trials(tmp_path).values()}
    finished = ("finished", pytest.approx(10))
    assert costs == {0: finished, 1: ("diverged", pytest.approx(8)), 3: finished, 4: finished}


def test_a_trial_that_raises_has_cost_its_steps(tmp_path: Path, second_a_step: None) -> None:
    assert _sweep([replace(SMALL, seed=2)], tmp_path) == Outcome(0, 1, 0)
    (failed,) = _trials(tmp_path).values()
    assert (failed.state, failed.seconds) == ("failed", 3.0)


def test_a_failure_that_was_not_tried_again_is_still_told(tmp_path: Path, second_a_step: None) -> None:
    fails, works = replace(SMALL, seed=2), SMALL
    assert _sweep([fails, works], tmp_path) == Outcome(1, 1, 0)
    before = _trials(tmp_path)
    assert _sweep([fails, works], tmp_path, stop=StopAfter(0)) == Outcome(1, 1, 0)
    assert _trials(tmp_path) == before
    with open_writer(tmp_path) as writer:
        writer.add([fails])
        assert writer.tally()["pending"].trials == 1  # the time left counts it
        with open_store(tmp_path) as store:
            assert not store.failure_reasons()
    with open_store(tmp_path) as store:
        assert store.failure_reasons() == {"no": 1}


@pytest.mark.parametrize("questions", [0, 3, 8])
def test_a_stopped_sweep_goes_on_from_within_the_epoch(tmp_path: Path, questions: int) -> None:
    configs = [SMALL, replace(SMALL, seed=1)]
    stopped = _sweep(configs, tmp_path / "stopped", pack_size=2, stop=StopAfter(questions))
    assert stopped == Outcome(0, 0, 2)
    assert _sweep(configs, tmp_path / "stopped", pack_size=2) == Outcome(2, 0, 0)
    _sweep(configs, tmp_path / "whole", pack_size=2)
    for config in configs:
        assert _curve(tmp_path / "stopped", config) == _curve(tmp_path / "whole", config)


@pytest.mark.parametrize("continued", ["by train", "by sweep"])
def test_a_run_killed_between_its_last_checkpoint_and_its_result_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, continued: str
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "finish", killed)
        with pytest.raises(KeyboardInterrupt):
            train(SMALL, tmp_path, device="cpu", progress=False)
    assert not any(trial.has_result for trial in _trials(tmp_path).values())
    monkeypatch.setattr(Run, "train_step", killed)
    if continued == "by train":
        assert train(SMALL, tmp_path, device="cpu", progress=False).state == "finished"
    else:
        assert _sweep([SMALL], tmp_path) == Outcome(1, 0, 0)
    assert [epoch["epoch"] for epoch in _curve(tmp_path, SMALL)] == [1, 2]


def test_a_checkpoint_that_is_ahead_of_the_store_brings_its_epochs(tmp_path: Path) -> None:
    """As in a copy of the folder whose files were read one after the other while the sweep ran."""
    config, copy = replace(SMALL, batch_size=512, epochs=4), tmp_path / "copy"
    stop = Stop()

    def watch(event: Event) -> None:
        if isinstance(event, Recorded):
            ((_, epoch),) = event.epochs
            if epoch.epoch == 1:
                with open_store(tmp_path / "a") as store, open_writer(copy) as writer:
                    merge(writer, entries(store))
            stop.signal = signal.SIGTERM if epoch.epoch == 3 else None

    _sweep([config], tmp_path / "a", checkpoint_seconds=0, stop=stop, observer=watch)
    shutil.copytree(tmp_path / "a/checkpoints", copy / "checkpoints")
    assert len(_curve(copy, config)) == 1
    assert _sweep([config], copy) == Outcome(1, 0, 0)
    assert _sweep([config], tmp_path / "undisturbed") == Outcome(1, 0, 0)
    assert _curve(copy, config) == _curve(tmp_path / "undisturbed", config)


def test_a_damaged_checkpoint_costs_the_head_start_only(tmp_path: Path) -> None:
    _sweep([SMALL], tmp_path, stop=StopAfter(8))
    (checkpoint,) = (tmp_path / "checkpoints").glob("*.pt")
    checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
    assert _sweep([SMALL], tmp_path) == Outcome(1, 0, 0)
    assert [epoch["epoch"] for epoch in _curve(tmp_path, SMALL)] == [1, 2]


def test_two_sweeps_on_one_store_the_second_says_who_holds_it(tmp_path: Path) -> None:
    with open_writer(tmp_path), pytest.raises(SkipinitError, match=r"is being written by process \d+"):
        _sweep([SMALL], tmp_path)
    assert _trials(tmp_path) == {}


def test_the_command_trains_shows_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "sweep",
        "wrn10_1",
        "--scheme",
        "skipinit,batchnorm",
        "--lr",
        "2^-4",
        "--epochs",
        "1",
    ]
    command += ["--data", "digits", "--batch-size", "256", "--out", str(tmp_path), "--device", "cpu"]
    assert main([*command, "--dry-run"]) == 0
    assert "2 trials, 2 epochs" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    assert main([*command, "--json"]) == 0
    assert Outcome(**json.loads(capsys.readouterr().out)) == Outcome(2, 0, 0)
    assert main(["results", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [trial["state"] for trial in found["trials"]] == ["finished", "finished"]
    assert all(math.isfinite(trial["train_loss"]) for trial in found["trials"])
    assert main([*command, "--ghost-batch", "7"]) == 2  # skipinit has no norm: refused before anything runs
    assert "ghost_batch is not defined" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--lr", "fast"], "axis lr: 'fast' is not allowed; it must be a finite number"),
        (["--lr", ","], "empty place"),
        (["--lr", "0.1", "--time-limit", "soon"], "write it as 90s, 9m or 2h"),
        (["--lr", "0.1", "--pack-size", "0"], "pack_size 0 is not allowed"),
        ([], "lr is not given"),
        (["--lr", "0.1", "--ghost-batch", "48,16"], "ghost_batch 48 does not divide batch_size 64"),
        (["--lr", "0.1", "--batch-size", "64,5000"], "batch_size 5000 is larger than the 1442 training"),
        (["--lr", "0.1", "--num-classes", "3"], "num_classes 3 is too few for digits; it must be 10 or more"),
        (["--lr", "0.1", "--in-channels", "3"], "in_channels 3 does not fit digits; it must be 1"),
    ],
)
def test_a_wrong_flag_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], says: str
) -> None:
    command = ["sweep", "wrn10_1", "--data", "digits", "--out", str(tmp_path / "sweep"), *flags]
    assert main(command) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert printed.err.count("\n") == 1
    assert not (tmp_path / "sweep").exists()


def test_the_folder_of_a_run_takes_no_other_trials(tmp_path: Path) -> None:
    train(SMALL, tmp_path, device="cpu", progress=False)
    with pytest.raises(ConfigError, match="is the folder of a single run; choose another"):
        _sweep([SMALL, replace(SMALL, seed=1)], tmp_path)
    assert _sweep([SMALL], tmp_path) == Outcome(1, 0, 0), "the run itself is one"
    assert train(SMALL, tmp_path, device="cpu", progress=False).state == "finished"


@pytest.mark.parametrize("cores", [1, 2])
def test_a_log_gets_lines_within_an_epoch(
    tmp_path: Path, cores: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    minutes = itertools.count(step=61)
    monkeypatch.setattr(control, "time", SimpleNamespace(monotonic=lambda: float(next(minutes))))
    monkeypatch.setattr("skipinit.sweeping.workers.usable_cores", lambda: cores)
    trials = tuple(replace(SMALL, epochs=1, seed=seed) for seed in range(cores))
    run_sweep(Grid(trials), tmp_path, device="cpu")
    lines = capsys.readouterr().err.splitlines()
    before_an_epoch = [line for line in lines if line.startswith(f"epochs of all trials, 0/{cores}")]
    assert len(before_an_epoch) > 2
    assert any("; training wrn10_1, skipinit, digits, " in line for line in before_an_epoch)


def test_a_failed_trial_makes_the_exit_code_three(tmp_path: Path, second_a_step: None) -> None:
    command = ["sweep", "wrn10_1", "--scheme", "batchnorm", "--lr", "0.1", "--epochs", "1", "--seed", "2"]
    command += ["--data", "digits", "--batch-size", "256", "--device", "cpu"]
    assert main([*command, "--out", str(tmp_path)]) == 3


@pytest.mark.parametrize("limit", [(), ("--time-limit", "9m")])
@pytest.mark.parametrize("seeds", ["0,1", "2,0"])  # seed 2 fails before the interrupt
def test_an_interrupt_makes_the_exit_code_130(
    tmp_path: Path, second_a_step: None, monkeypatch: pytest.MonkeyPatch, limit: tuple[str], seeds: str
) -> None:
    step = Run.train_step

    def interrupted(run: Run) -> None:
        if run.config.seed == 0:
            signal.raise_signal(signal.SIGINT)
        step(run)

    monkeypatch.setattr(Run, "train_step", interrupted)
    monkeypatch.setattr(engine, "workers_at_once", lambda: 1)
    command = ["sweep", "wrn10_1", "--lr", "0.1", "--epochs", "1", "--seed", seeds, "--data", "digits"]
    assert main([*command, "--batch-size", "256", "--device", "cpu", "--out", str(tmp_path), *limit]) == 130


def test_time_that_is_up_is_no_interrupt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["sweep", "wrn10_1", "--lr", "0.1", "--data", "digits", "--device", "cpu", "--json"]
    assert main([*command, "--time-limit", "0s", "--out", str(tmp_path)]) == 0
    assert Outcome(**json.loads(capsys.readouterr().out)) == Outcome(0, 0, 1)


_SECONDS = "a finite number of seconds, 0 or more, or infinity"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pack_size": 0}, "pack_size 0 is not allowed; it must be 1 or more"),
        ({"pack_size": 8 / 2}, "pack_size 4.0 is not allowed; it must be a whole number, 1 or more"),
        ({"time_limit": "9m"}, f"time_limit '9m' is not allowed; it must be {_SECONDS}"),
        ({"time_limit": -1}, f"time_limit -1 is not allowed; it must be {_SECONDS}"),
        ({"checkpoint_seconds": "a"}, f"checkpoint_seconds 'a' is not allowed; it must be {_SECONDS}"),
        ({"device": None}, "device None is not known; it is auto, cpu, cuda or cuda:N"),
    ],
)
def test_wrong_options_from_python_are_one_line(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        run_sweep(Grid((SMALL,)), tmp_path, **{"device": "cpu", "progress": False, **options})
    assert str(error.value) == message
    assert not list(tmp_path.iterdir())


def test_python_a_file_and_the_command_line_are_one_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    axes = {"model": "wrn10_1", "data": "digits", "epochs": 1, "batch_size": 256, "lr": "2^-4,2^-3"}
    file = tmp_path / "axes.toml"
    file.write_text("\n".join(f"{name} = {json.dumps(value)}" for name, value in axes.items()))
    first = skipinit.sweep(axes, str(tmp_path / "out"), device="cpu")
    assert (first.results, first.left) == (2, 0)
    before = skipinit.results(tmp_path / "out")
    flags = [text for name, value in axes.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    flags.remove("--model")
    skipinit.sweep(file, tmp_path / "out", device="cpu")
    assert main(["sweep", *flags, "--out", str(tmp_path / "out"), "--device", "cpu"]) == 0
    assert skipinit.results(tmp_path / "out") == before, "nothing was trained again, nothing joined"
    capsys.readouterr()
    assert main(["results", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == before
    accuracy = next(cell for cell in before["cells"] if cell["metric"] == "test_accuracy")
    assert accuracy["mean"] == max(trial["test_accuracy"] for trial in before["trials"])
    with pytest.raises(ConfigError, match="belong together"):
        skipinit.results(tmp_path / "out", best=5)
