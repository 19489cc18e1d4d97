"""Trials side by side on the CPU: the numbers of one at a time, and what a lost worker costs."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch

from skipinit.config import ModelConfig, TrainConfig
from skipinit.errors import DataError, SkipinitError
from skipinit.provenance import Provenance, usable_cores
from skipinit.sweeping import workers
from skipinit.sweeping.dispatch import Dispatcher, Keeper, Lost
from skipinit.sweeping.engine import Outcome, run_sweep
from skipinit.sweeping.forecast import Step, forecast
from skipinit.sweeping.grid import Grid
from skipinit.sweeping.store import open_store, open_writer
from skipinit.sweeping.trainer import Options, Share
from skipinit.training.checkpoint import Checkpoints, unpack_if_whole
from skipinit.training.control import Stop, steps_bar
from skipinit.training.protocol import identity
from skipinit.training.records import EpochRecord, Event, Failed, Finished, Recorded, Started
from skipinit.training.world import World, cpu_threads, open_device
from support.runs import DIVERGING, RAISING, SMALL, StopAfter

_CPU = torch.device("cpu")
_EPOCH = EpochRecord(1, 2.0, 10.0, 2.0, 0.1, 100.0)
_TRIALS = (*(replace(SMALL, seed=seed) for seed in range(3)), DIVERGING, RAISING)


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the fixture `one_thread` takes from all other tests."""
    monkeypatch.setattr("skipinit.sweeping.workers.usable_cores", lambda: 2)


def _numbers(out: Path) -> dict[str, Any]:
    """All that was measured but speed and cost."""
    with open_store(out) as store:
        return {
            trial.id: (
                trial.state,
                trial.reason,
                [replace(epoch, images_per_second=0.0) for epoch in store.curve(trial.id)],
            )
            for trial in store.trials()
        }


def _children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_two_at_once_give_the_numbers_of_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, before, heard = Grid(_TRIALS), _children(), Counter[str]()
    run_sweep(grid, tmp_path / "alone", device="cpu", progress=False)
    monkeypatch.setattr(sys, "path", [Path(), *sys.path])  # which Python ignores
    monkeypatch.setattr("skipinit.sweeping.workers.usable_cores", lambda: 2)

    def observer(event: Event) -> None:
        heard[type(event).__name__] += 1
        heard["workers"] = max(heard["workers"], len(_children() - before))

    outcome = run_sweep(grid, tmp_path / "beside", device="cpu", progress=False, observer=observer)
    assert outcome == Outcome(results=4, failures=1, left=0)
    assert _numbers(tmp_path / "beside") == _numbers(tmp_path / "alone")
    assert heard == {"Started": 5, "Recorded": 3, "Finished": 3, "Diverged": 1, "Failed": 1, "workers": 2}
    assert _children() == before, "no worker outlives its sweep"


@pytest.mark.parametrize("cores", [1, 2])
def test_data_that_is_not_there_is_said_before_anything_is_written(
    cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skipinit.sweeping.workers.usable_cores", lambda: cores)
    monkeypatch.setenv("SKIPINIT_DATA", str(tmp_path / "empty"))
    monkeypatch.setattr("skipinit.data.cifar.find", lambda *names: None)
    monkeypatch.setattr("skipinit.data.cifar.fetch", lambda *_: _raise(DataError("no connection")))
    model = ModelConfig("wrn10_1", "skipinit", num_classes=10)
    trials = tuple(TrainConfig(model, "cifar10", lr=lr, batch_size=64, epochs=1) for lr in (0.1, 0.2))
    with pytest.raises(DataError, match="no connection"):
        run_sweep(Grid(trials), tmp_path / "out", device="cpu", progress=False)
    assert not (tmp_path / "out").exists()

    digits = Grid((SMALL,))
    run_sweep(digits, tmp_path / "other", device="cpu", progress=False)
    with pytest.raises(DataError, match="no connection"):
        run_sweep(Grid(trials), tmp_path / "other", device="cpu", progress=False)
    monkeypatch.setattr("skipinit.sweeping.engine.open_data", lambda *_: _raise(DataError("not needed")))
    assert run_sweep(digits, tmp_path / "other", device="cpu", progress=False) == Outcome(1, 0, 0)
    with open_store(tmp_path / "other") as store:
        assert [trial.state for trial in store.trials()] == ["finished"]


def _raise(error: Exception) -> None:
    raise error


class _Mortal:
    """A pool of one worker that follows a script: at each share it sends some events, then is lost or not."""

    device, grace = "cpu", 1.0

    def __init__(self, *script: tuple[list[str], bool]) -> None:
        self.script = list(script)
        self.shares: list[list[int]] = []

    def room(self) -> int:
        return 1

    def start(self, share: Share) -> int:
        self.share = share
        self.shares.append([config.seed for config in share.configs])
        return len(self.shares)

    def receive(self, tasks: Collection[int]) -> Iterator[tuple[int, Event | Lost | None]]:
        (task,) = tasks
        kinds, dies = self.script.pop(0)
        ids = [identity(config) for config in self.share.configs]
        for kind in kinds:
            ids = ids[:1] if "first" in kind else ids
            if "start" in kind:
                yield from ((task, Started(id, Provenance.here("cpu"), 10)) for id in ids)
            else:
                yield task, Recorded(tuple((id, _EPOCH) for id in ids))
        yield task, Lost("a worker", "killed") if dies else None

    def ask_to_stop(self) -> None:
        pass


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    configs = [replace(SMALL, seed=seed) for seed in range(2)]
    with open_writer(tmp_path) as writer, steps_bar(0, shown=False) as bar:
        writer.add(configs)
        yield Keeper(writer, Checkpoints(tmp_path), bar, configs)


def _dispatch(pool: _Mortal, keeper: Keeper) -> None:
    configs = [replace(SMALL, seed=seed) for seed in range(2)]
    Dispatcher(pool, Options(None, 60.0), keeper).train([configs], Stop())


@pytest.mark.parametrize(("cores", "threads", "count"), [(5, None, 5), (5, "2", 2), (1, "2", 1)])
def test_as_many_trials_at_once_as_the_usable_cores_have_room_for(
    monkeypatch: pytest.MonkeyPatch, cores: int, threads: str | None, count: int
) -> None:
    monkeypatch.setattr(workers, "usable_cores", lambda: cores)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if threads:
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
    assert workers.workers_at_once() == count


def test_no_epoch_of_a_failed_trial_is_left_on_the_bar(keeper: Keeper) -> None:
    id = identity(SMALL)
    keeper.take(Started(id, Provenance("a machine", "cpu", {}, None), 10))
    keeper.take(Recorded(((id, _EPOCH),)))
    keeper.take(Failed(id, "it raised", "Traceback", 1.0))
    (task,) = keeper.bar.progress.tasks
    assert task.completed == SMALL.epochs


def test_a_log_names_a_trial_that_is_training(keeper: Keeper) -> None:
    first, second = identity(SMALL), identity(replace(SMALL, seed=1))
    here = Provenance("a machine", "cpu", {}, None)
    said = [keeper.bar.note]
    for event in (
        Started(first, here, 10),
        Started(second, here, 10),
        Recorded(((first, _EPOCH),)),
        Finished(first, _EPOCH, 3, 1.0),
        Failed(second, "it raised", "Traceback", 1.0),
    ):
        keeper.take(event)
        said.append(keeper.bar.note)
    name = "; training wrn10_1, skipinit, digits, lr 0.05, seed"
    both = f"{name} 0 and 1 more"
    assert said == ["", f"{name} 0", both, both, f"{name} 1", ""]


def test_trials_whose_worker_dies_again_and_again_are_tried_alone_then_fail(
    keeper: Keeper, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = (["start"], True)
    pool = _Mortal(lost, lost, lost, lost)
    _dispatch(pool, keeper)
    assert pool.shares == [[0, 1], [0, 1], [1], [0]], "together twice, then one by one"
    trials = keeper.writer.trials()
    assert [trial.reason for trial in trials] == ["its worker died 3 times without finishing an epoch"] * 2
    assert capsys.readouterr().err == "skipinit: a worker is lost; its trials resume on another\n" * 4


def test_an_epoch_in_between_forgives_a_loss(keeper: Keeper) -> None:
    lost_later = (["start", "epoch"], True)
    pool = _Mortal(*[lost_later] * 5, (["start"], False))
    _dispatch(pool, keeper)
    assert pool.shares == [[0, 1]] * 6
    assert all(trial.state == "running" for trial in keeper.writer.trials())


def test_a_loss_counts_only_for_trials_that_had_begun_and_stood_still(keeper: Keeper) -> None:
    """A share can be many packs: the second has no part in what happens while the first trains."""
    first_trains = (["start first", "first epoch"], True)
    first_stands_still, second_stands_still = (["start first"], True), (["start"], True)
    pool = _Mortal(*[first_trains] * 5, *[first_stands_still] * 3, *[second_stands_still] * 2, ([], False))
    _dispatch(pool, keeper)
    assert pool.shares == [[0, 1]] * 7 + [[0], [1], [1], [1]], "only who is under suspicion goes alone"
    assert [trial.state for trial in keeper.writer.trials()] == ["failed", "running"]


def test_losses_before_anything_begins_must_follow_each_other_to_be_an_error(keeper: Keeper) -> None:
    at_once, trains = ([], True), (["start first", "first epoch"], True)
    pool = _Mortal(at_once, trains, at_once, trains, at_once, trains, ([], False))
    _dispatch(pool, keeper)
    assert pool.shares == [[0, 1]] * 7


def test_long_shares_go_out_first_and_equal_ones_in_their_order(keeper: Keeper) -> None:
    shares = [[replace(SMALL, seed=seed, epochs=epochs)] for seed, epochs in enumerate((1, 3, 3, 16, 1))]
    pool = _Mortal(*[([], False)] * len(shares))
    Dispatcher(pool, Options(None, 60.0), keeper).train(shares, Stop())
    assert pool.shares == [[3], [1], [2], [0], [4]]


def test_workers_that_never_begin_are_an_error_and_not_a_failed_trial(keeper: Keeper) -> None:
    with pytest.raises(SkipinitError, match=r"workers die before they train anything \(killed\)"):
        _dispatch(_Mortal(([], True), ([], True), ([], True)), keeper)
    assert all(trial.state == "pending" for trial in keeper.writer.trials())


def test_a_checkpoint_that_came_with_a_share_is_one_of_the_same_value(tmp_path: Path) -> None:
    run_sweep(Grid((SMALL,)), tmp_path, device="cpu", progress=False, stop=StopAfter(8))
    (file,) = (tmp_path / "checkpoints").glob("*.pt")
    content = file.read_bytes()
    (sent, seconds), (kept, expected) = (
        unpack_if_whole(BytesIO(content)),
        unpack_if_whole(file),
    )
    assert sent is not None
    assert (sent["step"], seconds) == (kept["step"], expected)
    assert unpack_if_whole(BytesIO(content[:1000])) == (None, 0.0), "it costs the head start only"


def test_one_thread_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for given in ("", "3", "many", "0"):
        monkeypatch.setenv("OMP_NUM_THREADS", given)
        with open_device(_CPU) as world:
            found[given] = cpu_threads(), torch.get_num_threads(), world.device_name
        assert torch.get_num_threads() == 1, "as it was before"
    alone = (1, 1, "cpu")
    assert found == {"": alone, "3": (3, 3, "cpu, 3 threads"), "many": alone, "0": alone}
    assert World(_CPU).device_name == "cpu"


@pytest.mark.parametrize(("content", "cores"), [("max 100000", 3), ("250000 100000", 2), ("50000 100000", 1)])
def test_cores_are_those_of_the_affinity_and_of_the_quota(
    monkeypatch: pytest.MonkeyPatch, content: str, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 5})
    monkeypatch.setattr(Path, "read_text", lambda _: content)
    assert usable_cores() == cores


def test_a_forecast_counts_what_runs_at_once(tmp_path: Path, two_cores: None) -> None:
    trials = [replace(SMALL, seed=seed) for seed in range(3)]
    plan = forecast(trials, tmp_path, "cpu", measure=lambda _: Step(0.1))
    first, second, third = (pack.seconds for pack in plan.packs)
    assert plan.at_once == 2
    assert plan.seconds == pytest.approx(first + third) == pytest.approx(second + third)
    assert forecast(trials, tmp_path, "cpu", pack_size=3, measure=lambda _: Step(0.1)).at_once == 1
