"""Measurements in the formats of other tools, read back by those tools."""

from __future__ import annotations

import csv
import sys

import pytest

from skipinit.callbacks.writers import CsvWriter, TensorBoardWriter, WandbWriter
from skipinit.errors import ConfigError, DataError
from skipinit.probing.history import CSV_COLUMNS, Measurement, WatchReport, WatchRow


def measured(step):
    return Measurement(step, tuple(WatchRow(f"b{i}", i, 1.0, 0.25 * step, scale=0.5) for i in (1, 2)))


def steps(path):
    with path.open(newline="") as file:
        return [int(row["step"]) for row in csv.DictReader(file)]


def test_csv_grows_and_equals_the_reports(tmp_path):
    path = tmp_path / "new" / "balance.csv"
    writer = CsvWriter(path)
    for step in (0, 10, 20):
        writer(measured(step))
        assert steps(path)[-1] == step
    assert path.read_text() == WatchReport("", tuple(map(measured, (0, 10, 20)))).to_csv()


def test_csv_of_a_resumed_run_has_each_step_once(tmp_path):
    path = tmp_path / "balance.csv"
    for run in ((0, 10, 20, 30), (20, 30, 40)):
        writer = CsvWriter(path)
        for step in run:
            writer(measured(step))
    assert steps(path) == [0, 0, 10, 10, 20, 20, 30, 30, 40, 40]


def test_a_foreign_file_is_left_alone(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"mine.csv has other columns"):
        CsvWriter(path)(measured(0))
    assert path.read_text() == "a,b\n1,2\n"


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_reads_them_back(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writer = TensorBoardWriter(tmp_path)
    for step in (0, 10):
        writer(measured(step))
    writer.log.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("branch_variance/b2")] == [(0, 0.0), (10, 2.5)]
    assert {tag.split("/")[0] for tag in events.Tags()["scalars"]} == {
        "branch_share", "skip_variance", "branch_variance", "scale"
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_keeps_them_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with pytest.raises(ConfigError, match=r"call wandb.init\(\) first"):
        WandbWriter()
    run = wandb.init(mode="offline", dir=tmp_path, project="test")
    writer = WandbWriter()
    writer(measured(0))
    writer(measured(10))
    assert run.summary["balance/branch_variance/b2"] == 2.5
    assert run.summary["balance/step"] == 10
    run.finish()


def test_weights_and_biases_gets_each_number_at_its_step():
    class Run:
        def __init__(self):
            self.metrics, self.logged = [], []

        def define_metric(self, name, step_metric):
            self.metrics.append((name, step_metric))

        def log(self, values):
            self.logged.append(values)

    run = Run()
    writer = WandbWriter(run)
    writer(measured(0))
    writer(measured(10))
    assert run.metrics == [("balance/*", "balance/step")]
    assert [values["balance/step"] for values in run.logged] == [0, 10]
    assert run.logged[1]["balance/branch_variance/b2"] == 2.5


COMPLETE = "0,b1" + "," * (len(CSV_COLUMNS) - 2)


@pytest.mark.parametrize("line", ["?" + COMPLETE[1:], COMPLETE[:-1], COMPLETE + ","])
def test_a_damaged_csv_file_is_left_alone(tmp_path, line):
    """No step, and too few or too many values: the file of a full disk, or one that was edited."""
    path = tmp_path / "balance.csv"
    CsvWriter(path)(measured(0))
    path.write_text(damaged := path.read_text() + f"{line}\n")
    with pytest.raises(DataError, match=r"balance.csv is damaged in line 4"):
        CsvWriter(path)(measured(10))
    assert path.read_text() == damaged


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_takes_any_writer_of_scalars(monkeypatch):
    """That of tensorboardX is another class with the same methods, and needs no TensorBoard."""
    monkeypatch.setitem(sys.modules, "tensorboard", None)

    class Log:
        def __init__(self):
            self.tags = []

        def add_scalar(self, tag, value, step):
            self.tags.append(tag)

        def flush(self):
            pass

    log = Log()
    TensorBoardWriter(log)(measured(0))
    assert "branch_share/b1" in log.tags


@pytest.mark.parametrize(
    ("extra", "make"), [("tensorboard", lambda: TensorBoardWriter("runs")), ("wandb", lambda: WandbWriter())]
)
def test_a_writer_without_its_tool_names_the_extra(monkeypatch, extra, make):
    monkeypatch.setitem(sys.modules, extra, None)
    with pytest.raises(ImportError, match=rf"Writer needs {extra}; pip install 'skipinit\[{extra}\]'"):
        make()
