"""Merging stores, and results as a text file and back."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from skipinit.config import ModelConfig, TrainConfig
from skipinit.errors import DataError, SkipinitError
from skipinit.probing.history import Measurement
from skipinit.provenance import Provenance
from skipinit.sweeping.exchange import (
    Entry,
    Merged,
    entries,
    export_results,
    merge,
    merge_sweep,
    read_results,
)
from skipinit.sweeping.grid import expand
from skipinit.sweeping.store import open_store, open_writer
from skipinit.training.checkpoint import Checkpoints
from skipinit.training.protocol import identity, settle
from skipinit.training.records import EpochRecord

HERE = Provenance("a machine", "cpu", {"skipinit": "0.1.0", "torch": "2.13.0"}, "0123abcd")
AXES = {"model": "wrn16_2", "data": "digits", "batch_size": 64, "epochs": 3}
FIRST, SECOND, THIRD, FOURTH = expand({**AXES, "lr": "0.1,2^-3", "seed": "0..1"}).trials


def measured(epoch: int, accuracy: float = 50.0, speed: float = 1e5 / 3) -> EpochRecord:
    return EpochRecord(epoch, 0.1 / epoch, accuracy, 0.7, 0.25, speed)


def run(folder: Path, config: TrainConfig, upto: str, accuracy: float = 50.0, speed: float = 1.0) -> None:
    """Take a trial to that state."""
    id = identity(config)
    with open_writer(folder) as writer:
        writer.add([config])
        if upto == "pending":
            return
        writer.start(id, HERE, classes=10)
        if upto == "diverged at once":
            writer.diverge(id, None, step=0, seconds=0.1)
            return
        writer.record([(id, measured(1, accuracy, speed)), (id, measured(2, accuracy, speed))])
        if upto == "failed":
            writer.fail(id, "RuntimeError: no", "Traceback …", seconds=1.0)
        elif upto == "finished":
            writer.finish(id, measured(3, accuracy, speed), step=10, seconds=1 / 3)
        elif upto == "diverged":
            last = replace(measured(3, 10.0), clean_train_loss=float("nan"))
            writer.diverge(id, last, step=7, seconds=0.1)


def contents(folder: Path) -> list[Entry]:
    with open_store(folder) as store:
        return [(trial, store.curve(trial.id)) for trial in store.trials()]


def merged(target: Path, source: Path) -> Merged:
    with open_store(source) as store, open_writer(target) as writer:
        return merge(writer, entries(store))


STRENGTH = ["pending", "running", "failed", "finished"]


@pytest.mark.parametrize("theirs", STRENGTH)
@pytest.mark.parametrize("mine", STRENGTH)
def test_the_further_state_wins(tmp_path: Path, mine: str, theirs: str) -> None:
    run(tmp_path / "mine", FIRST, mine)
    run(tmp_path / "theirs", FIRST, theirs)
    before = contents(tmp_path / "theirs")
    outcome = merged(tmp_path / "mine", tmp_path / "theirs")
    ((trial, curve),) = contents(tmp_path / "mine")
    strongest = max(mine, theirs, key=STRENGTH.index)
    # What ran elsewhere does not run here: it waits, with its epochs.
    assert trial.state == ("pending" if strongest == "running" else strongest)
    assert [epoch.epoch for epoch in curve] == {"pending": [], "finished": [1, 2, 3]}.get(strongest, [1, 2])
    better = STRENGTH.index(theirs) > STRENGTH.index(mine)
    assert outcome == (Merged(updated=1) if better else Merged(kept=1))
    assert contents(tmp_path / "theirs") == before


def test_pieces_become_one(tmp_path: Path) -> None:
    run(tmp_path / "a", FIRST, "finished")
    run(tmp_path / "a", SECOND, "diverged")
    run(tmp_path / "b", SECOND, "pending")
    run(tmp_path / "b", THIRD, "finished", accuracy=60.0)
    a, b = contents(tmp_path / "a"), contents(tmp_path / "b")
    assert merged(tmp_path / "all", tmp_path / "a") == Merged(added=2)
    assert merged(tmp_path / "all", tmp_path / "b") == Merged(added=1, kept=1)
    assert merged(tmp_path / "all", tmp_path / "b") == Merged(kept=2)
    assert contents(tmp_path / "all") == [*a, b[1]]


@pytest.mark.parametrize("order", [("early", "late"), ("late", "early")])
def test_measurements_up_to_the_further_checkpoint_stay(tmp_path: Path, order: tuple[str, str]) -> None:
    """The early copy is of a failure, which beats the trial that was tried again since."""
    for folder, steps, state in [("early", (0, 5), "failed"), ("late", (0, 5, 10), "running")]:
        with open_writer(tmp_path / folder) as writer:
            writer.add([FIRST])
            writer.start(identity(FIRST), HERE, classes=10)
            writer.measure(identity(FIRST), [Measurement(step, ()) for step in steps])
        run(tmp_path / folder, FIRST, state)
    for folder in order:
        with open_store(tmp_path / folder) as store, open_writer(tmp_path / "copy") as writer:
            merge_sweep(writer, store)
    with open_store(tmp_path / "copy") as store:
        assert store.states() == {identity(FIRST): "failed"}
        assert [each.step for each in store.measurements(identity(FIRST))] == [0, 5, 10]


@pytest.mark.parametrize(("accuracy", "steps"), [(50.0, [0, 5]), (60.0, [])])
def test_of_equal_results_the_one_that_was_watched_brings_its_measurements(
    tmp_path: Path, accuracy: float, steps: list[int]
) -> None:
    """Those of a result that disagrees are of another training."""
    run(tmp_path / "plain", FIRST, "finished")
    with open_writer(tmp_path / "watched") as writer:
        writer.add([FIRST])
        writer.start(identity(FIRST), HERE, classes=10)
        writer.measure(identity(FIRST), [Measurement(step, ()) for step in (0, 5)])
    run(tmp_path / "watched", FIRST, "finished", accuracy)
    before = contents(tmp_path / "plain")
    for _ in range(2):
        with open_store(tmp_path / "watched") as store, open_writer(tmp_path / "plain") as writer:
            merge_sweep(writer, store)
    assert contents(tmp_path / "plain") == before
    with open_store(tmp_path / "plain") as store:
        assert [each.step for each in store.measurements(identity(FIRST))] == steps


def checkpoint(folder: Path, config: TrainConfig, step: int) -> Path:
    """A checkpoint file with only what a merge reads."""
    path = Checkpoints(folder).path(identity(config))
    path.parent.mkdir(parents=True, exist_ok=True)
    run = {"step": step, "records": []}
    torch.save({"format": "skipinit checkpoint", "version": 2, "run": run, "seconds": 0.0}, path)
    return path


def test_a_sweep_brings_the_checkpoints_of_unfinished_trials_that_are_further(tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    for folder, states in [(mine, ("pending", "running", "finished")), (theirs, ("running",) * 4)]:
        for config, state in zip((FIRST, SECOND, THIRD, FOURTH), states, strict=False):
            run(folder, config, state)
    kept = checkpoint(mine, FIRST, step=30)
    checkpoint(mine, SECOND, step=10)
    for config in (FIRST, SECOND, THIRD, FOURTH):
        checkpoint(theirs, config, step=20)

    def merged_sweep() -> Merged:
        with open_store(theirs) as store, open_writer(mine) as writer:
            return merge_sweep(writer, store)

    assert merged_sweep() == Merged(added=1, updated=1, kept=2, checkpoints=2)
    ours = Checkpoints(mine)
    assert [ours.position(identity(config)) for config in (FIRST, SECOND, THIRD, FOURTH)] == [30, 20, 0, 20]
    assert merged_sweep() == Merged(kept=4)
    kept.write_bytes(kept.read_bytes()[:-100])  # a damaged one is no further than none
    assert merged_sweep() == Merged(kept=4, checkpoints=1)


def test_a_trial_that_finishes_while_it_is_copied_leaves_no_checkpoint(tmp_path: Path) -> None:
    """Its checkpoint was copied, then the sweep recorded its result."""
    checkpoint(tmp_path / "copy", FIRST, step=20)
    run(tmp_path / "a", FIRST, "finished")
    assert merged(tmp_path / "copy", tmp_path / "a") == Merged(added=1)
    assert not list((tmp_path / "copy/checkpoints").iterdir())


def test_results_that_disagree_are_named_and_the_first_stays(tmp_path: Path) -> None:
    run(tmp_path / "a", FIRST, "finished", accuracy=50.0)
    run(tmp_path / "b", FIRST, "finished", accuracy=51.0)
    run(tmp_path / "c", FIRST, "finished", accuracy=50.0, speed=9.0)
    before = contents(tmp_path / "a")
    assert merged(tmp_path / "a", tmp_path / "b") == Merged(conflicts=(identity(FIRST),))
    assert merged(tmp_path / "a", tmp_path / "c") == Merged(kept=1)  # faster, but the same result
    assert contents(tmp_path / "a") == before


def test_the_round_trip_is_exact(tmp_path: Path) -> None:
    fixup = settle(replace(FIRST, model=ModelConfig("wrn16_2", "fixup", fixup_components=(1, 2))))
    for config, state in [
        (THIRD, "finished"),
        (FIRST, "diverged"),
        (fixup, "finished"),
        (FOURTH, "failed"),
        (SECOND, "diverged at once"),
    ]:
        run(tmp_path / "a", config, state, accuracy=100 / 3)
    for curves, file in [(True, tmp_path / "curves.jsonl"), (False, tmp_path / "last.jsonl")]:
        with open_store(tmp_path / "a") as store:
            assert export_results(store, file, curves) == 4
        with open_writer(tmp_path / file.stem) as writer:
            assert merge(writer, read_results(file)).added == 4
        found = {trial.id: (trial, curve) for trial, curve in contents(tmp_path / file.stem)}
        for trial, curve in contents(tmp_path / "a"):
            if trial.state == "failed":
                assert trial.id not in found
            else:
                assert found[trial.id] == (trial, curve if curves else curve[-1:])
        with open_store(tmp_path / file.stem) as store:
            export_results(store, tmp_path / "again.jsonl", curves)
        assert (tmp_path / "again.jsonl").read_bytes() == file.read_bytes()
    # Whoever has the last epochs and is offered the curves takes them.
    assert merged(tmp_path / "last", tmp_path / "curves") == Merged(updated=3, kept=1)


def test_the_file_is_sorted_and_plain_json(tmp_path: Path) -> None:
    for config in (FOURTH, SECOND, FIRST):
        run(tmp_path, config, "finished")
    with open_store(tmp_path) as store:
        export_results(store, tmp_path / "results.jsonl")
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    assert lines[1:] == sorted(lines[1:])
    results = [json.loads(line) for line in lines[1:]]
    assert [(row["config"]["lr"], row["config"]["seed"]) for row in results] == [
        (0.1, 0),
        (0.125, 0),
        (0.125, 1),
    ]
    assert results[0]["last"]["test_accuracy"] == 50.0
    assert results[0]["provenance"]["commit"] == "0123abcd"


def test_a_line_that_comes_twice_meets_itself(tmp_path: Path) -> None:
    """As after two branches of a repository were joined by hand."""
    run(tmp_path / "a", FIRST, "finished")
    file = tmp_path / "results.jsonl"
    with open_store(tmp_path / "a") as store:
        export_results(store, file)
    header, line = file.read_text().splitlines()
    header = json.dumps({name: value for name, value in json.loads(header).items() if name != "sha256"})
    file.write_text(
        "\n".join([header, line, line, line.replace('"test_accuracy": 50.0', '"test_accuracy": 9.0')])
    )
    with open_writer(tmp_path / "b") as writer:
        assert merge(writer, read_results(file)) == Merged(added=1, kept=1, conflicts=(identity(FIRST),))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("skipinit results", "other", "not a file that"),
        ('"version": 1', '"version": 2', "format 2 is not known"),
        ('"lr": 0.1', '"lr": -1', r"line 2: not a result \(lr -1 is not allowed"),
        ('"lr": 0.1', '"lrr": 0.1', "line 2: not a result"),
        ('"state": "finished"', '"state": "pending"', "line 2: a trial that is pending"),
        ('"classes": 10', '"classes": null', "line 2"),
        ('"reason"', '"reason', "line 2: not a result"),
    ],
)
def test_a_damaged_file_is_named_with_its_line_and_nothing_is_made(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    run(tmp_path / "a", FIRST, "finished")
    file = tmp_path / "results.jsonl"
    with open_store(tmp_path / "a") as store:
        export_results(store, file)
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(DataError, match=message) as error:
        read_results(file)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"epochs": 3', '"epochs": 4', "epochs are not those of a training over 4"),
        ('"last": {.*?}', '"last": null', "epochs are not those of a training over 3"),
        (r'"epoch": \[1, 2\]', '"epoch": [1, 1]', "epochs are not those of a training over 3"),
        ('"test_accuracy": 50.0', '"test_accuracy": "high"', "test_accuracy 'high' is not allowed"),
        (r'"test_loss": \[0.7,', '"test_loss": [null,', "test_loss None is not allowed"),
        ('"seconds": [0-9.]+', '"seconds": "long"', "seconds 'long' is not allowed"),
        ('"step": 10', '"step": "ten"', "step 'ten' is not allowed"),
        ('"classes": 10', '"classes": 0', "not a result"),
        ('"classes": 10', '"classes": -3', "not a result"),
    ],
)
def test_an_edited_result_that_no_training_leaves_is_refused_with_its_line(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    """Taken in, it would make all of the store unreadable."""
    run(tmp_path / "a", FIRST, "finished")
    file = tmp_path / "results.jsonl"
    with open_store(tmp_path / "a") as store:
        export_results(store, file, curves=True)
    text = re.sub(', "sha256": "[0-9a-f]+"', "", file.read_text())
    edited = re.sub(old, new, text)
    assert edited != text
    file.write_text(edited)
    with pytest.raises(DataError, match=f"line 2: .*{message}") as error:
        read_results(file)
    assert "\n" not in str(error.value)


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_results(tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not a file that"):
        read_results(tmp_path / "bytes")
    (tmp_path / "empty").touch()
    with pytest.raises(DataError, match="not a file that"):
        read_results(tmp_path / "empty")
    run(tmp_path / "a", FIRST, "finished")
    with open_store(tmp_path / "a") as store, pytest.raises(SkipinitError, match="cannot be written"):
        export_results(store, tmp_path / "a")
