"""The store: what is recorded is there, once, whole, whoever dies; and its failures are one line each."""

from __future__ import annotations

import errno
import itertools
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from skipinit.config import ModelConfig, TrainConfig
from skipinit.errors import DataError, SkipinitError
from skipinit.probing.history import Measurement
from skipinit.provenance import Provenance
from skipinit.sweeping.database import CHECKSUM_OF_EPOCH, CHECKSUM_OF_TRIAL, create
from skipinit.sweeping.grid import expand
from skipinit.sweeping.results import progress
from skipinit.sweeping.store import FILE, LOCK, Store, open_store, open_writer
from skipinit.training.protocol import identity, settle
from skipinit.training.records import EpochRecord, Trial

HERE = Provenance("a machine", "cpu", {"skipinit": "0.1.0", "torch": "2.13.0"}, "0123abcd")


def configs(count: int, epochs: int = 3) -> tuple[TrainConfig, ...]:
    axes = {"model": "wrn16_2", "data": "digits", "batch_size": 64, "epochs": epochs, "lr": 0.5}
    return expand({**axes, "seed": range(count)}).trials


def measured(epoch: int, accuracy: float = 50.0) -> EpochRecord:
    return EpochRecord(epoch, 0.1 + epoch, accuracy + epoch / 3, 0.7, 0.25, 1e5 / 3)


def record_trial(folder: Path, config: TrainConfig, accuracy: float = 50.0) -> None:
    with open_writer(folder) as writer:
        writer.add([config])
        writer.start(identity(config), HERE, classes=10)
        epochs = [(identity(config), measured(epoch, accuracy)) for epoch in range(1, config.epochs)]
        writer.record(epochs)
        writer.finish(identity(config), measured(config.epochs, accuracy), step=10, seconds=1.5)


def test_a_trial_from_pending_to_finished(tmp_path: Path) -> None:
    first, second = configs(2)
    with open_writer(tmp_path) as writer:
        writer.add([first, second])
        writer.add([second])
    record_trial(tmp_path, first)
    with open_store(tmp_path) as store:
        done, waiting = store.trials()
        assert waiting == Trial(identity(second), second)
        assert (done.config, done.state, done.classes, done.seconds) == (first, "finished", 10, 1.5)
        assert done.provenance == HERE
        assert done.last == measured(3)
        assert store.curve(done.id) == [measured(1), measured(2), measured(3)]
        assert done == store.trial(done.id)
        assert store.trial("0" * 16) is None
        assert store.meta()["schema"] == 3


def test_the_last_epoch_and_the_result_are_one_commit_that_waits_for_the_disk(tmp_path: Path) -> None:
    (config,) = configs(1)
    said: list[str] = []
    with open_writer(tmp_path) as writer:
        writer.add([config])
        writer.start(identity(config), HERE, classes=10)
        connection = writer._connection
        # 2 is FULL: with a write-ahead log, NORMAL would lose the last commits when the power fails.
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        connection.set_trace_callback(said.append)
        writer.finish(identity(config), measured(3), step=10, seconds=1.5)
        connection.set_trace_callback(None)
    words = "BEGIN", "INSERT OR REPLACE INTO metrics", "\nUPDATE trials SET state", "COMMIT"
    changes = [word for line in said for word in words if line.startswith(word)]
    assert [word for word, _ in itertools.groupby(changes)] == [*words], "triggers repeat a statement"


@pytest.mark.parametrize(
    ("change", "read"),
    [
        ("UPDATE metrics SET test_accuracy = 99 WHERE epoch = 1", lambda store, id: store.curve(id)),
        ("UPDATE metrics SET test_accuracy = 99 WHERE epoch = 3", lambda store, id: store.trials()),
        ("UPDATE trials SET state = 'pending'", lambda store, id: store.states()),
        ("UPDATE trials SET state = 'pending'", lambda store, id: store.tally()),
        ("UPDATE trials SET seconds = 9", lambda store, id: store.trial(id)),
    ],
)
def test_a_number_that_was_not_written_so_is_damage(
    tmp_path: Path, change: str, read: Callable[[Store, str], object]
) -> None:
    (config,) = configs(1)
    record_trial(tmp_path, config)
    with open_store(tmp_path) as store:
        read(store, identity(config))
    with closing(sqlite3.connect(tmp_path / FILE)) as connection, connection:
        connection.execute(change)
    with open_store(tmp_path) as store, pytest.raises(DataError, match="the file is damaged"):
        read(store, identity(config))


def test_a_step_that_is_measured_again_has_its_last_measurement(tmp_path: Path) -> None:
    (config,) = configs(1)
    first, second = (Measurement.from_dict({"step": 5, "rows": [{"name": name}]}) for name in ("a", "b"))
    with open_writer(tmp_path) as writer:
        writer.add([config])
        writer.start(identity(config), HERE, classes=10)
        for measurement in (first, second):
            writer.measure(identity(config), [measurement])
        assert writer.measurements(identity(config)) == [second]


def test_an_epoch_recorded_again_is_there_once(tmp_path: Path) -> None:
    (config,) = configs(1)
    id = identity(config)
    with open_writer(tmp_path) as writer:
        writer.add([config])
        writer.start(id, HERE, classes=10)
        writer.record([(id, measured(1)), (id, measured(2))])
        writer.record([(id, measured(2, accuracy=60.0))])
        assert writer.curve(id) == [measured(1), measured(2, accuracy=60.0)]


def test_what_was_cut_off_waits_again_and_keeps_its_epochs(tmp_path: Path) -> None:
    (config,) = configs(1)
    id = identity(config)
    with open_writer(tmp_path) as writer:
        writer.add([config])
        writer.start(id, HERE, classes=10)
        writer.record([(id, measured(1)), (id, measured(2))])
    with open_writer(tmp_path) as writer:
        trial = writer.trial(id)
        assert trial is not None
        assert trial.last is not None
        assert (trial.state, trial.last.epoch) == ("pending", 2)
        writer.start(id, HERE, classes=10, curve=[measured(1)])  # where its checkpoint stands
        assert writer.curve(id) == [measured(1)]


def test_divergence_is_a_result_and_failure_is_not(tmp_path: Path) -> None:
    first, second = configs(2)
    with open_writer(tmp_path) as writer:
        writer.add([first, second])
        for config in (first, second):
            writer.start(identity(config), HERE, classes=10)
        broken = EpochRecord(1, 2.5, 10.0, 2.3, 0.25, 9.0, clean_train_loss=float("inf"))
        writer.diverge(identity(first), broken, step=7, seconds=0.5)
        writer.fail(identity(second), "RuntimeError: no", "Traceback …", seconds=0.1)
        diverged, failed = writer.trials()
        assert (diverged.state, diverged.reason) == ("diverged", "the loss was not finite at step 7")
        assert diverged.last == EpochRecord(1, 2.5, 10.0, 2.3, 0.25, 9.0, clean_train_loss=None)
        assert (failed.state, failed.reason, failed.traceback) == (
            "failed",
            "RuntimeError: no",
            "Traceback …",
        )
        assert (diverged.has_result, failed.has_result) == (True, False)
        writer.start(identity(second), HERE, classes=10)
        again = writer.trial(identity(second))
        assert again is not None
        assert (again.state, again.reason, again.traceback) == ("running", None, None)


def test_a_result_never_changes(tmp_path: Path) -> None:
    (config,) = configs(1)
    id = identity(config)
    record_trial(tmp_path, config)
    with open_writer(tmp_path) as writer:
        before = (writer.trials(), writer.curve(id))
        with pytest.raises(SkipinitError, match="is finished, not"):
            writer.start(id, HERE, classes=10)
        with pytest.raises(SkipinitError, match="is finished, not"):
            writer.record([(id, measured(3, 99.0))])
        with pytest.raises(SkipinitError, match="is finished, not"):
            writer.finish(id, measured(3, 99.0), step=10, seconds=9.0)
        with pytest.raises(SkipinitError, match="is not in"):
            writer.start("0" * 16, HERE, classes=10)
        assert (writer.trials(), writer.curve(id)) == before


def test_where_there_are_no_file_locks_a_sweep_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on some network disks, to which a folder was copied."""
    record_trial(tmp_path, configs(1)[0])

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("skipinit.files.fcntl.flock", refuse)
    with open_store(tmp_path) as store:
        assert progress(store).counts["finished"] == 1
        assert progress(store).writer is None
    with pytest.raises(SkipinitError, match="no file locks"), open_writer(tmp_path):
        pass


def test_an_error_takes_the_whole_commit_back(tmp_path: Path) -> None:
    (config,) = configs(1)
    id = identity(config)
    with open_writer(tmp_path) as writer:
        writer.add([config])
        writer.start(id, HERE, classes=10)
        with pytest.raises(SkipinitError, match="is not in"):
            writer.record([(id, measured(1)), ("0" * 16, measured(1))])
        assert writer.curve(id) == []


def test_time_left_follows_the_pace_of_this_writer(tmp_path: Path) -> None:
    trials = configs(4, epochs=10)
    record_trial(tmp_path, trials[0])
    with open_writer(tmp_path) as writer:
        writer.add(trials)
        id = identity(trials[1])
        writer.start(id, HERE, classes=10)
        with open_store(tmp_path) as store:
            assert progress(store).seconds_left is None
            writer.record([(id, measured(epoch)) for epoch in range(1, 6)])
            began = datetime.fromisoformat(writer.meta()["session_started"])
            assert progress(store, now=began - timedelta(days=1)).seconds_left is None  # a clock set back
            seen = progress(store, now=began + timedelta(seconds=50))
        assert (seen.epochs_done, seen.epochs_total, seen.trials) == (15, 40, 4)
        assert seen.seconds_left == pytest.approx(25 * 50 / 5)
        assert seen.counts == {"pending": 2, "running": 1, "failed": 0, "diverged": 0, "finished": 1}
        assert [trial.id for trial in seen.running] == [id]
        assert seen.writer is not None
        assert seen.writer.pid == os.getpid()
    with open_store(tmp_path) as store:
        assert progress(store, now=datetime.now(UTC)).writer is None


def test_a_store_has_a_progress_before_its_writer_has_written(tmp_path: Path) -> None:
    """`status` may come between the creation of a store and its first session."""
    create(tmp_path / FILE)
    with open_store(tmp_path) as store:
        seen = progress(store)
    assert (seen.trials, seen.epochs_done, seen.seconds_left) == (0, 0, None)


def test_time_left_counts_failed_trials_that_are_tried_again(tmp_path: Path) -> None:
    trials = configs(4, epochs=10)
    raising = [identity(config) for config in trials[:2]]
    with open_writer(tmp_path) as writer:
        writer.add(trials)
        for id in raising:
            writer.start(id, HERE, classes=10)
            writer.record([(id, measured(1))])
            writer.fail(id, "out of memory", "Traceback …", seconds=1.0)
        assert progress(writer).epochs_done == 20, "what raised is not tried again by itself"
    with open_writer(tmp_path) as writer:
        writer.add(trials)
        began = datetime.fromisoformat(writer.meta()["session_started"])
        assert [trial.state for trial in writer.trials()] == ["pending"] * 4
        assert [trial.reason for trial in writer.trials()][:2] == ["out of memory"] * 2, "until it starts"
        trained = 0
        for id in raising:
            writer.start(id, HERE, classes=10, curve=[measured(1)])
            for epoch in range(2, 10):
                writer.record([(id, measured(epoch))])
                trained += 1
                seen = progress(writer, now=began + timedelta(seconds=trained))
                assert seen.seconds_left == pytest.approx(40 - seen.epochs_done), "at a second an epoch"
            writer.finish(id, measured(10), step=10, seconds=1.0)
            trained += 1


CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_store import HERE, configs, identity, measured, open_writer
with open_writer(Path(sys.argv[1])) as writer:
    writer.add(configs(int(sys.argv[3])))
    print("open", flush=True)
    for trial in writer.trials():
        if not trial.has_result:
            writer.start(trial.id, HERE, classes=10)
            for epoch in (1, 2):
                writer.record([(trial.id, measured(epoch))])
            writer.finish(trial.id, measured(3), step=10, seconds=1.0)
            print(trial.id, flush=True)
    print("done", flush=True)
    sys.stdin.read()
"""


def child(folder: Path, trials: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, str(folder), str(Path(__file__).parent), str(trials)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_nothing_finished_is_lost_when_the_writer_is_killed(tmp_path: Path) -> None:
    chance = random.Random(0)
    acknowledged: list[str] = []
    for kill in range(1, 9):
        with child(tmp_path, trials=400) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"  # the dead writer's lock died with it
            time.sleep(chance.uniform(0.0, 0.25))
            process.send_signal(signal.SIGKILL)
            lines = process.stdout.read().split("\n")[:-1]
            acknowledged += [line for line in lines if line != "done"]
        with open_store(tmp_path) as store:
            finished = {trial.id for trial in store.trials() if trial.has_result}
            assert finished >= set(acknowledged)
            assert len(finished - set(acknowledged)) <= kill  # each died at most between commit and word
            for id in finished:
                assert store.curve(id) == [measured(1), measured(2), measured(3)]
    assert len(acknowledged) == len(set(acknowledged))  # a finished trial was never run again
    assert acknowledged
    with sqlite3.connect(tmp_path / FILE) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_a_second_writer_is_told_who_writes_and_changes_nothing(tmp_path: Path) -> None:
    with child(tmp_path, trials=5) as process:
        assert process.stdout is not None
        while process.stdout.readline() != "done\n":
            pass
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        with (
            pytest.raises(SkipinitError, match=rf"written by process {process.pid} on "),
            open_writer(tmp_path),
        ):
            pass
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
        with open_store(tmp_path) as store:  # readers may, at any time
            assert len(store.trials()) == 5
        process.communicate("")
    with open_writer(tmp_path) as writer:
        writer.add(configs(5))
        assert len(writer.trials()) == 5


FORKING = """
import os, sys
from pathlib import Path
from skipinit.sweeping.store import open_writer
with open_writer(Path(sys.argv[1])):
    if not os.fork():
        print("forked", flush=True)
        sys.stdin.read()
        os._exit(0)
    os.wait()
"""


def test_a_child_that_outlives_a_killed_writer_does_not_keep_its_lock(tmp_path: Path) -> None:
    """As processes do that decode photographs: they notice after seconds that nobody is there."""
    command = [sys.executable, "-c", FORKING, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "forked\n"
        with open_store(tmp_path) as store:
            assert store.writer() is not None, "a fork does not free it either"
        process.kill()
        process.wait()
        with open_writer(tmp_path):
            pass


def test_a_store_of_another_version_is_left_alone(tmp_path: Path) -> None:
    record_trial(tmp_path, configs(1)[0])
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute("UPDATE meta SET value = 4 WHERE name = 'schema'")
    connection.close()
    before = (tmp_path / FILE).read_bytes()
    for opened in (open_store, open_writer):
        with pytest.raises(DataError, match=r"store schema 4.*reads schemas up to 3"), opened(tmp_path):
            pass
    assert (tmp_path / FILE).read_bytes() == before


@pytest.fixture
def old_store(tmp_path: Path) -> Path:
    """A folder with a store of schema 1, as an earlier version wrote it."""
    dump = Path(__file__).with_name("store-schema-1.sql").read_text()
    with closing(sqlite3.connect(tmp_path / FILE)) as connection:
        connection.executescript(dump)
    return tmp_path


def test_an_old_store_is_read_as_it_is_and_brought_up_to_date_by_a_writer(old_store: Path) -> None:
    before = (old_store / FILE).read_bytes()
    with open_store(old_store) as store:
        read, curves = store.trials(), [store.curve(trial.id) for trial in store.trials()]
    assert (old_store / FILE).read_bytes() == before
    with open_writer(old_store) as writer:
        assert writer.trials() == read
        assert [writer.curve(trial.id) for trial in read] == curves
        assert writer.meta()["schema"] == 3
    finished, diverged, waiting = read
    # Written as alpha = 0 and with alpha left out, it was two trials; the one with the result stays.
    assert (finished.config.model.alpha, finished.state, finished.last.test_accuracy) == (
        0.0,
        "finished",
        90.5,
    )
    assert (diverged.state, diverged.step) == ("diverged", 7)
    assert (waiting.state, waiting.config.seed, len(curves[2])) == ("pending", 1, 1)
    assert [trial.id for trial in read] == [identity(trial.config) for trial in read]
    with open_store(old_store) as store:
        assert store.trials() == read


def test_an_old_trial_that_no_version_knows_is_one_line(old_store: Path) -> None:
    with closing(sqlite3.connect(old_store / FILE)) as connection, connection:
        connection.execute("UPDATE trials SET config = replace(config, 'wrn10_1', 'wrn11_1')")
    before = (old_store / FILE).read_bytes()
    for opened in (open_store, open_writer):
        with (
            pytest.raises(DataError, match=r"is not one that this version knows \(wrn11_1"),
            opened(old_store),
        ):
            pass
    assert (old_store / FILE).read_bytes() == before


def test_the_tables_have_the_fields_of_the_records(tmp_path: Path) -> None:
    """The tables are written down, not made from the records: a new field needs a new schema."""
    with open_writer(tmp_path):
        pass
    with closing(sqlite3.connect(tmp_path / FILE)) as connection:
        columns = {
            table: [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            for table in ("trials", "metrics", "measurements")
        }
    of_trials = [field.name for field in fields(Trial) if field.name != "last"]
    of_epochs = [field.name for field in fields(EpochRecord)]
    assert columns["trials"] == ["key", *of_trials, "checksum"]
    assert columns["metrics"] == ["trial", *of_epochs, "checksum"]
    assert columns["measurements"] == ["trial", "step", "blocks", "checksum"]
    assert f"crc({', '.join(of_trials)})" == CHECKSUM_OF_TRIAL
    assert f"crc({', '.join(of_epochs)})" == CHECKSUM_OF_EPOCH


def test_files_that_are_no_stores(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no sweep is there"), open_store(tmp_path):
        pass
    (tmp_path / FILE).write_text("this is a text file of some length, not a database\n" * 99)
    for opened in (open_store, open_writer):
        with pytest.raises(DataError, match="not a sweep store"), opened(tmp_path):
            pass
    (tmp_path / FILE).unlink()
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute("CREATE TABLE other (x)")
    connection.close()
    with pytest.raises(DataError, match="not a sweep store"), open_store(tmp_path):
        pass


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(SkipinitError, match=r"file/sweep: cannot be made"),
        open_writer(tmp_path / "file/sweep"),
    ):
        pass


@pytest.mark.parametrize("happens", ["moved", "removed", "replaced"])
def test_what_would_be_written_to_a_file_that_nobody_can_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, happens: str
) -> None:
    """As the folder of a sweep that runs is cleared away, or a copy is brought back over it."""
    first, second = configs(2)
    record_trial(tmp_path / "copy", first)
    monkeypatch.chdir(tmp_path)
    folder = Path("sweep")

    def write() -> None:
        with open_writer(folder) as writer:
            writer.add([second])
            monkeypatch.chdir("/")  # a path that was relative is that of the same file
            writer.start(identity(second), HERE, classes=10)
            monkeypatch.chdir(tmp_path)
            if happens == "removed":
                shutil.rmtree(folder)
            elif happens == "moved":
                folder.rename("elsewhere")
            else:
                os.replace("copy/sweep.sqlite", folder / FILE)
            writer.finish(identity(second), measured(3), step=10, seconds=1.0)

    with pytest.raises(DataError, match=r"sweep/sweep.sqlite: was moved, removed or replaced while"):
        write()
    if happens == "moved":
        with open_store(Path("elsewhere")) as store:
            assert store.states() == {identity(second): "running"}


def in_small_file_system(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run Python code as root of a private mount namespace, where it may mount what it likes."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("needs user and mount namespaces (unshare -rm)")
    preamble = f"""
import subprocess, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_store import *
folder = Path({str(folder)!r})
def mount(*arguments):
    subprocess.run(["mount", *arguments, str(folder)], check=True)
"""
    command = ["unshare", "-rm", sys.executable, "-c", preamble + code]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    code = """
mount("-t", "tmpfs", "-o", "size=512k", "none")
done = []
try:
    with open_writer(folder) as writer:
        writer.add(configs(200, epochs=50))
        for trial in writer.trials():
            writer.start(trial.id, HERE, classes=10)
            writer.record([(trial.id, measured(epoch)) for epoch in range(1, 50)])
            writer.finish(trial.id, measured(50), step=10, seconds=1.0)
            done.append(trial.id)
except SkipinitError as error:
    print(error)
with open_store(folder) as store:
    assert [trial.id for trial in store.trials() if trial.has_result] == done
    assert all(len(store.curve(id)) == 50 for id in done)
assert 3 < len(done) < 200
mount("-o", "remount,size=8m")
with open_writer(folder) as writer:
    writer.start(identity(configs(200, epochs=50)[150]), HERE, classes=10)
"""
    process = in_small_file_system(tmp_path, code)
    assert process.stderr == ""
    assert process.stdout == f"{tmp_path / FILE}: the disk is full; " \
        "what was recorded is safe: make room and run it again\n"  # fmt: skip


def test_a_disk_too_full_to_begin_leaves_no_store(tmp_path: Path) -> None:
    code = """
mount("-t", "tmpfs", "-o", "size=16k", "none")
try:
    with open_writer(folder):
        pass
except SkipinitError as error:
    print(error)
assert [path.name for path in folder.iterdir()] in ([], [LOCK])
"""
    process = in_small_file_system(tmp_path, code)
    assert process.stderr == ""
    assert "the disk is full" in process.stdout


def test_a_read_only_folder_can_be_read_and_not_written(tmp_path: Path) -> None:
    record_trial(tmp_path, configs(1)[0])
    (tmp_path / LOCK).unlink()
    code = """
mount("--bind", str(folder))
mount("-o", "remount,bind,ro")
try:
    with open_writer(folder):
        pass
except SkipinitError as error:
    print(error)
with open_store(folder) as store:
    assert progress(store).counts["finished"] == 1
"""
    process = in_small_file_system(tmp_path, code)
    assert process.stderr == ""
    assert re.fullmatch(r".*: cannot be written \(Read-only file system\); .*\n", process.stdout)


def test_importing_the_sweep_does_not_import_torch() -> None:
    modules = ["grid", "store", "results", "exchange"]
    imports = f"[__import__('skipinit.sweeping.' + m) for m in {modules}]"
    code = f"import sys; {imports}; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


def test_records_survive_as_they_are(tmp_path: Path) -> None:
    (config,) = configs(1)
    model = ModelConfig("wrn16_2", "fixup", fixup_components=(1, 3))
    config = settle(replace(config, model=model, lr=0.1 + 0.2))
    record_trial(tmp_path, config)
    with open_store(tmp_path) as store:
        (trial,) = store.trials()
    assert trial.config == config
    assert trial.id == identity(trial.config)
