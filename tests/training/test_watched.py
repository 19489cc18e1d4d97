"""`train` and `sweep` under watch: numbers unchanged, measurements kept with the run, shown in the report."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import skipinit
from skipinit.cli import main
from skipinit.config import TrainConfig, to_dict
from skipinit.data import epoch_plan, load, standardize
from skipinit.data.images import mix
from skipinit.errors import ConfigError, DataError
from skipinit.nets.create import build
from skipinit.probing.history import Measurement
from skipinit.sweeping.dispatch import Keeper
from skipinit.sweeping.engine import Outcome, run_sweep
from skipinit.sweeping.exchange import entries, merge, merge_sweep
from skipinit.sweeping.grid import expand, read_grid
from skipinit.sweeping.results import results
from skipinit.sweeping.single import train
from skipinit.sweeping.store import FILE, open_store, open_writer
from skipinit.training.protocol import identity, settle
from skipinit.training.records import Event, Kept, TrainResult
from support.runs import DIVERGING, SMALL, SMALL_BATCHNORM, StopAfter, state, tensors

_WATCHED = replace(SMALL, watch=2)
"""Five steps an epoch, two epochs: steps 0, 2, 4, 6 and 8."""


def _train(config: TrainConfig, out: Path, **options: Any) -> TrainResult:
    return train(config, out, device="cpu", progress=False, **options)


def _measurements(folder: Path) -> list[list[Measurement]]:
    with open_store(folder) as store:
        return [store.measurements(trial.id) for trial in store.trials()]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "watched"
    assert _train(_WATCHED, out).state == "finished"
    return out


def test_no_number_of_the_training_changes(watched: Path, tmp_path: Path) -> None:
    _train(SMALL, tmp_path / "plain")
    plain, seen = state(tmp_path / "plain"), state(watched)
    assert all(torch.equal(value, tensors(seen)[name]) for name, value in tensors(plain).items())
    timeless = [[{**each, "images_per_second": 0} for each in run["records"]] for run in (plain, seen)]
    assert timeless[0] == timeless[1]
    assert not (tmp_path / "plain" / "balance.csv").exists()
    assert _measurements(tmp_path / "plain") == [[]]


def test_the_first_measurement_is_a_probe_of_the_first_batch(tmp_path: Path) -> None:
    config = settle(replace(SMALL, model=SMALL_BATCHNORM, epochs=1, watch=3))
    _train(config, tmp_path)
    [[first, *rest]] = _measurements(tmp_path)
    assert [first.step, *(each.step for each in rest)] == [0, 3]
    data, rows = load("digits"), epoch_plan(config.seed, 0, 1442).order[: config.batch_size]
    model = build(config.model, seed=mix("weights", config.seed)).train()
    probed = skipinit.probe(model, standardize(data.train_images[rows])).rows
    assert [row.name for row in first.rows] == [row.name for row in probed]
    for ours, theirs in zip(first.rows, probed, strict=True):
        assert ours.branch_share == pytest.approx(theirs.branch_share, rel=1e-5)
        assert ours.update_ratio is not None
        assert ours.gradient_norm is not None


def test_the_file_for_people_is_what_the_store_holds(watched: Path) -> None:
    [report] = skipinit.watched(watched).values()
    assert (watched / "balance.csv").read_text() == report.to_csv()
    assert report.steps == (0, 2, 4, 6, 8)
    assert report.model == "wrn10_1, skipinit, digits, lr 0.05, seed 0"
    assert report.series(report.blocks[0], "scale")[0] == 0.0
    assert report.series(report.blocks[0], "scale")[-1] != 0.0


def test_a_measurement_that_was_not_written_so_is_damage(watched: Path, tmp_path: Path) -> None:
    shutil.copytree(watched, tmp_path / "run")
    with closing(sqlite3.connect(tmp_path / "run" / FILE)) as connection, connection:
        connection.execute("UPDATE measurements SET blocks = replace(blocks, '1', '2') WHERE step = 4")
    with pytest.raises(DataError, match="the file is damaged"):
        skipinit.watched(tmp_path / "run")


def test_stopped_and_resumed_has_the_same_measurements(watched: Path, tmp_path: Path) -> None:
    out = tmp_path / "halting"
    for steps in (1, 3, 2):
        assert _train(_WATCHED, out, stop=StopAfter(steps)).state == "stopped"
    assert _train(_WATCHED, out).state == "finished"
    assert _measurements(out) == _measurements(watched)
    assert (out / "balance.csv").read_bytes() == (watched / "balance.csv").read_bytes()


def test_killed_between_measurement_and_checkpoint(
    watched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, out = Keeper.take, tmp_path / "killed"

    def killed(self: Keeper, event: Event) -> None:
        if isinstance(event, Kept):
            raise KeyboardInterrupt
        take(self, event)

    with monkeypatch.context() as patch:
        patch.setattr(Keeper, "take", killed)
        with pytest.raises(KeyboardInterrupt):
            _train(_WATCHED, out, checkpoint_seconds=0)
    assert [each.step for each in _measurements(out)[0]] == [0, 2, 4]
    assert _train(_WATCHED, out).state == "finished"
    assert _measurements(out) == _measurements(watched)
    assert (out / "balance.csv").read_bytes() == (watched / "balance.csv").read_bytes()


def test_a_copy_of_a_stopped_run_is_resumed_with_all_measurements(watched: Path, tmp_path: Path) -> None:
    """Between the two copies the run has a new checkpoint, but no new epoch."""
    machine, copy = tmp_path / "machine", tmp_path / "copy"
    for steps in (1, 2):
        assert _train(_WATCHED, machine, stop=StopAfter(steps)).state == "stopped"
        with open_store(machine) as store, open_writer(copy) as writer:
            assert merge_sweep(writer, store).checkpoints == 1
    assert _measurements(copy) == _measurements(machine) != [[]]
    assert _train(_WATCHED, copy).state == "finished"
    assert _measurements(copy) == _measurements(watched)
    assert (copy / "balance.csv").read_bytes() == (watched / "balance.csv").read_bytes()


def test_what_goes_wrong_is_seen(tmp_path: Path) -> None:
    assert _train(replace(DIVERGING, watch=1), tmp_path).state == "diverged"
    [[only]] = _measurements(tmp_path)
    assert not all(torch.tensor(row.branch_variance).isfinite() for row in only.rows)


def test_watching_is_no_part_of_a_trial(watched: Path) -> None:
    assert identity(_WATCHED) == identity(SMALL)
    assert settle(_WATCHED) == settle(SMALL)
    assert "watch" not in to_dict(_WATCHED)
    assert _train(replace(_WATCHED, watch=None), watched).state == "finished"
    axes = {"model": "wrn10_1", "data": "digits", "lr": 0.1, "watch": "5,10"}
    assert (len(expand(axes).trials), expand(axes).duplicates) == (1, 1)
    assert "watch" not in results(watched)["trials"][0]


def test_a_sweep_is_watched_by_the_command_that_runs_it(
    watched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "axes.toml"
    axes = {key: value for key, value in asdict(SMALL).items() if key in ("lr", "batch_size", "epochs")}
    lines = [f"{key} = {json.dumps(value)}" for key, value in {**axes, "seed": [0, 1]}.items()]
    file.write_text("\n".join(['model = "wrn10_1"', 'scheme = "skipinit"', 'data = "digits"', *lines]))
    unwatched = read_grid(file)
    file.write_text(f"{file.read_text()}\nwatch = 2\n")
    grid = read_grid(file)
    assert [trial.watch for trial in grid.trials] == [2, 2]
    monkeypatch.setattr("skipinit.sweeping.workers.usable_cores", lambda: 1)
    with open_writer(tmp_path / "sweep") as writer:
        writer.add(unwatched.trials)  # who watches is the command, not what was recorded of the trials
    assert run_sweep(grid, tmp_path / "sweep", device="cpu", progress=False) == Outcome(2, 0, 0)
    first, second = _measurements(tmp_path / "sweep")
    assert first == _measurements(watched)[0]
    assert [each.step for each in second] == [0, 2, 4, 6, 8]
    with open_store(tmp_path / "sweep") as store, open_writer(tmp_path / "merged") as writer:
        merge(writer, entries(store), store)
    assert _measurements(tmp_path / "merged") == [first, second]


def test_the_report_has_one_heat_map_of_share_and_one_of_alpha(watched: Path, tmp_path: Path) -> None:
    page = skipinit.report(watched, tmp_path / "page.html").read_text()
    section = page[page.index('<h2 id="watched">') : page.index('<h2 id="claims">')]
    assert section.count("<svg") == section.count("data:image/png;base64") // 2 == 2
    assert "blocks.0.merge" in section
    assert "learned scale of the branch, α" in section
    assert "5 measurements of 3 blocks, steps 0 to 8" in section
    assert "<script" not in page
    addresses = re.findall(r'(?:href|src)="([^"#][^"]*)"', page)
    assert all(address.startswith("data:") for address in addresses)


def test_the_report_shows_each_training_once_as_far_as_it_was_measured(watched: Path, tmp_path: Path) -> None:
    with open_writer(tmp_path / "early") as writer, open_store(watched) as store:
        [trial] = store.trials()
        writer.put([(trial, store.curve(trial.id))], lambda id: store.measurements(id)[:2])
    page = skipinit.report([tmp_path / "early", watched, watched], tmp_path / "page.html").read_text()
    assert re.findall(r"\d+ measurements of \d+ blocks", page) == ["5 measurements of 3 blocks"]


def test_nothing_to_watch_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "support.own_models:straight", "--data", "digits", "--epochs", "1", "--watch", "5"]
    assert main([*command, "--device", "cpu", "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().err
    assert said.startswith("skipinit: support.own_models:straight: nothing to watch. ")
    assert said.count("\n") == 1
    assert _measurements(tmp_path / "run") == [[]]


def test_wrong_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "wrn10_1", "--data", "digits", "--watch", "0", "--out", str(tmp_path / "a")]) == 2
    said = capsys.readouterr().err
    assert said == "skipinit: watch 0 is not allowed; it must be a whole number, 1 or more\n"
    with pytest.raises(ConfigError, match="what is watched needs a folder; give out as well"):
        train(_WATCHED)
    assert not (tmp_path / "a").exists()
