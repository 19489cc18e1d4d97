"""The folder of a run: whose it is, what may not harm it, what is said when something is wrong with it."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import io
import json
import math
import os
import pickle
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from skipinit.cli import main
from skipinit.config import ModelConfig, TrainConfig
from skipinit.errors import ConfigError, DataError, SkipinitError
from skipinit.files import writer_lock
from skipinit.sweeping.engine import run_sweep
from skipinit.sweeping.exchange import entries, merge
from skipinit.sweeping.grid import make_grid
from skipinit.sweeping.single import _lost_processes_explained, train
from skipinit.sweeping.store import open_store, open_writer
from skipinit.sweeping.trained import evaluate, export
from skipinit.sweeping.trainer import Workplace
from skipinit.training.checkpoint import Checkpoints, restoring, unpack_if_whole
from skipinit.training.control import Stop
from skipinit.training.protocol import identity, make_train_config, settle
from skipinit.training.records import TrainResult
from skipinit.training.run import Run
from skipinit.training.world import World
from support.permissions import bound_by_permissions
from support.runs import FILES, SMALL_BATCHNORM, StopAfter, checkpoint

_CONFIG = TrainConfig(
    ModelConfig("wrn10_1", "skipinit", num_classes=10, in_channels=1),
    "digits",
    lr=0.025,
    batch_size=256,
    epochs=1,
)


def _train(config: TrainConfig, out: Path, **options: object) -> TrainResult:
    return train(config, out, device="cpu", progress=False, **options)


class _AtOnce(Stop):
    @property
    def requested(self) -> bool:
        return True


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "finished"
    assert _train(_CONFIG, out).state == "finished"
    return out


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    out = tmp_path / "stopped"
    assert _train(_CONFIG, out, stop=_AtOnce()).state == "stopped"
    return out


def _contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_a_folder_holds_the_whole_run(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    assert names == FILES
    (line,) = (finished / "metrics.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert set(record) == {
        "epoch", "train_loss", "test_accuracy", "test_loss", "lr", "images_per_second", "clean_train_loss",
    }  # fmt: skip
    assert json.loads((finished / "result.json").read_text()) == {
        "state": "finished", "step": 5, "final": record,
    }  # fmt: skip
    with open_store(finished) as store:
        (trial,) = store.trials()
    assert trial.config == settle(_CONFIG)
    assert (trial.state, trial.step, dataclasses.asdict(trial.last)) == ("finished", 5, record)
    assert json.loads((finished / "config.json").read_text())["config"]["lr"] == 0.025


def test_a_finished_run_is_only_read(finished: Path) -> None:
    before = _contents(finished)
    began = time.monotonic()
    result = _train(_CONFIG, finished)
    assert time.monotonic() - began < 0.5
    assert _contents(finished) == before
    assert dataclasses.asdict(result.final) == json.loads((finished / "metrics.jsonl").read_text())


def test_a_micro_batch_is_a_whole_number() -> None:
    with pytest.raises(ConfigError, match=r"^micro_batch 16.0 is not allowed; it must be a whole number"):
        train(_CONFIG, device="cpu", micro_batch=32 / 2)


@pytest.mark.parametrize("seconds", ["a", None, True, -1, math.nan, -math.inf, [30]])
def test_time_between_checkpoints_is_checked_before_anything_starts(tmp_path: Path, seconds: Any) -> None:
    with pytest.raises(ConfigError) as error:
        train(_CONFIG, tmp_path / "run", device="cpu", checkpoint_seconds=seconds)
    allowed = "a finite number of seconds, 0 or more, or infinity"
    assert str(error.value) == f"checkpoint_seconds {seconds!r} is not allowed; it must be {allowed}"
    assert not list(tmp_path.iterdir())


def test_the_guide_says_how_old_a_checkpoint_can_be() -> None:
    seconds = inspect.signature(train).parameters["checkpoint_seconds"].default
    guide = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    assert f"if the last one is at least {seconds:g} seconds old" in " ".join(guide.split())


@pytest.mark.parametrize("never", [math.inf, np.float64(math.inf)])
def test_infinitely_long_between_checkpoints_leaves_the_last_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, never: float
) -> None:
    saved: list[str] = []
    save = Checkpoints.save
    monkeypatch.setattr(Checkpoints, "save", lambda self, *kept: (saved.append(kept[0]), save(self, *kept)))
    config = replace(_CONFIG, epochs=2)
    result = train(config, tmp_path, device="cpu", checkpoint_seconds=never, progress=False)
    assert (result.state, len(saved)) == ("finished", 1)


def test_a_micro_batch_that_batch_norm_makes_larger_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    batchnorm = replace(_CONFIG, model=SMALL_BATCHNORM)
    ghosts = replace(_CONFIG, model=replace(SMALL_BATCHNORM, ghost_batch=32))
    for config, said in (
        (batchnorm, "micro_batch 24 becomes 256, the examples over which batch norm takes its statistics"),
        (ghosts, "micro_batch 24 becomes 32, the examples over which batch norm takes its statistics"),
        (_CONFIG, ""),
    ):
        train(config, device="cpu", micro_batch=24, progress=False, stop=_AtOnce())
        assert capsys.readouterr().err == (f"skipinit: {said}\n" if said else "")


@pytest.mark.parametrize(
    "words",
    [
        "DataLoader worker (pid(s) 7, 8) exited unexpectedly",
        "Too many open files. Communication with the workers is no longer possible.",
    ],
)
def test_what_torch_says_of_decoders_that_are_lost_is_one_line(words: str) -> None:
    with pytest.raises(SkipinitError) as raised, _lost_processes_explained(World(torch.device("cpu"))):
        raise RuntimeError(f"{words} ")
    assert str(raised.value) == f"{words.rstrip('.')}; run the command again to resume"


def test_without_a_folder_the_numbers_are_the_same(finished: Path) -> None:
    (alone,), (kept,) = (
        train(_CONFIG, device="cpu", progress=False).records,
        _train(_CONFIG, finished).records,
    )
    assert replace(alone, images_per_second=0) == replace(kept, images_per_second=0)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


_OWN = ModelConfig("support.own_models:plain_blocks", "own", num_classes=10, in_channels=1)


# A script may have set a GPU. The meta device stands for it; there, nothing has any value.
@pytest.mark.parametrize(
    ("caller", "model"),
    [
        (lambda: torch.device("meta"), replace(_CONFIG.model, scheme="regularized-skipinit")),
        (lambda: torch.device("meta"), _OWN),
        (lambda: _default_dtype(torch.float64), replace(_CONFIG.model, scheme="regularized-skipinit")),
        (lambda: _default_dtype(torch.bfloat16), _OWN),
        (torch.no_grad, _CONFIG.model),
        (torch.inference_mode, _OWN),
    ],
    ids=["device", "device, own model", "float64", "bfloat16, own model", "no_grad", "inference, own model"],
)
def test_what_the_caller_has_set_in_torch_changes_no_number(
    tmp_path: Path, caller: Callable[[], AbstractContextManager[Any]], model: ModelConfig
) -> None:
    config = replace(_CONFIG, model=model)
    plain = train(config, tmp_path / "plain", device="cpu", progress=False).final
    export(tmp_path / "plain", tmp_path / "exported")
    with caller():
        before = torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_default_device()
        found = train(config, tmp_path / "found", device="cpu", progress=False).final
        run_sweep(make_grid([config]), tmp_path / "sweep", device="cpu", progress=False)
        export(tmp_path / "found", tmp_path / "exported within")
        after = torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_default_device()
    assert after == before
    assert plain is not None
    assert found is not None
    with open_store(tmp_path / "sweep") as store:
        (trial,) = store.trials()
    assert trial.last is not None
    assert trial.last.train_loss == found.train_loss == plain.train_loss
    weights = [tmp_path / name / "model.safetensors" for name in ("exported", "exported within")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lr": 0.05}, "its lr is 0.025, not 0.05"),
        ({"seed": 1}, "its seed is 0, not 1"),
        ({"epochs": 2}, "its epochs is 1, not 2"),
        ({"model": replace(_CONFIG.model, scheme="none")}, "its scheme is skipinit, not none"),
    ],
)
def test_another_run_is_refused_by_the_field_that_differs(
    finished: Path, stopped: Path, change: dict[str, object], words: str
) -> None:
    for folder in (finished, stopped):
        before = _contents(folder)
        with pytest.raises(ConfigError, match=words):
            _train(replace(_CONFIG, **change), folder)
        assert _contents(folder) == before


def test_a_config_that_cannot_be_built_leaves_no_folder(tmp_path: Path) -> None:
    hopeless = [
        replace(_CONFIG, model=replace(_CONFIG.model, name="wrn11_1")),
        replace(_CONFIG, model=replace(_CONFIG.model, scheme="skipnit")),
        replace(_CONFIG, model=replace(_CONFIG.model, num_classes=9)),
        replace(_CONFIG, model=replace(_CONFIG.model, in_channels=3)),
        replace(_CONFIG, batch_size=1443),
        replace(_CONFIG, data="digit"),
    ]
    for config in hopeless:
        with pytest.raises(ConfigError):
            _train(config, tmp_path / "run")
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("size", [0, 100, 50_000])
def test_a_damaged_checkpoint_is_named(stopped: Path, size: int) -> None:
    path = checkpoint(stopped)
    os.truncate(path, size)
    with pytest.raises(DataError, match=rf"{path}: is damaged .*; remove it to start the run anew"):
        _train(_CONFIG, stopped)
    path.unlink()
    assert _train(_CONFIG, stopped).state == "finished"


def test_a_checkpoint_of_other_data_or_another_model_is_not_taken_for_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one batch per epoch and a layer of width 1, torch would broadcast everything."""
    monkeypatch.syspath_prepend(tmp_path)
    layers = "nn.Flatten(), nn.Linear(64, {0}{1}), nn.Linear({0}, 2)"
    code = f"from torch import nn\ndef make():\n    return nn.Sequential({layers})\n"
    module, file = tmp_path / "shrinking.py", tmp_path / "data.npz"

    def write(images: int, width: int, more: str = "") -> None:
        pixels, labels = np.zeros((images, 1, 8, 8), np.uint8), np.arange(images) % 2
        np.savez(file, train_images=pixels, train_labels=labels, test_images=pixels, test_labels=labels)
        module.write_text(code.format(width, more))
        importlib.invalidate_caches()
        sys.modules.pop("shrinking", None)

    write(100, 1)
    config = make_train_config(ModelConfig("shrinking:make"), file, batch_size=100, epochs=3)
    assert _train(config, tmp_path / "run", stop=StopAfter(2)).state == "stopped"
    for images, width, more, why in [
        (300, 1, "", rf"batches per epoch: 1 in the checkpoint, 3 in {file}"),
        (100, 12, "", r"1.weight has shape \(1, 64\) in the checkpoint, \(12, 64\) in the model"),
        (100, 1, ", bias=False", r"only the checkpoint has 1.bias"),
    ]:
        write(images, width, more)
        with pytest.raises(DataError, match=rf"\.pt: does not fit \({why}\); .* choose another folder"):
            _train(config, tmp_path / "run")
        assert run_sweep(make_grid([config]), tmp_path / "run", device="cpu", progress=False).failures == 1
        with open_store(tmp_path / "run") as store:
            (reason,) = store.failure_reasons()
        assert re.match(rf"its file in checkpoints: does not fit \({why}\); .* choose another folder", reason)
    write(100, 1)
    assert _train(config, tmp_path / "run").state == "finished"


def test_memory_that_runs_out_is_no_fault_of_the_checkpoint() -> None:
    """A sweep would not try the pack again with fewer trials."""
    with pytest.raises(torch.OutOfMemoryError), restoring("a file"):
        raise torch.OutOfMemoryError("CUDA out of memory")


class _Trap:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("writer", [torch.save, lambda trap, path: path.write_bytes(pickle.dumps(trap))])
def test_a_checkpoint_that_hides_code_is_refused_and_not_run(
    stopped: Path, tmp_path: Path, writer: object
) -> None:
    mark = tmp_path / "mark"
    path = checkpoint(stopped)
    writer({"format": "skipinit checkpoint", "version": 2, "run": _Trap(mark)}, path)
    with pytest.raises(DataError, match=str(path)):
        _train(_CONFIG, stopped)
    with pytest.raises(DataError, match=str(path)):
        evaluate(stopped, device="cpu")
    content = path.read_bytes()
    assert unpack_if_whole(io.BytesIO(content)) == (None, 0.0), "as `store merge` and workers read it"
    assert not mark.exists()
    pickle.loads(pickle.dumps(_Trap(mark)))
    assert mark.exists()  # the trap works


def test_what_people_read_is_made_anew_from_the_store(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    (folder / "result.json").unlink()
    assert _train(_CONFIG, folder).state == "finished"
    assert json.loads((folder / "result.json").read_text()) == json.loads(
        (finished / "result.json").read_text()
    )


@pytest.mark.parametrize("end", ["-wal", "-journal"])
def test_what_sqlite_left_of_a_process_killed_at_the_end_is_removed(
    finished: Path, tmp_path: Path, end: str
) -> None:
    """An empty journal is not one to roll back, so SQLite leaves it until the next write."""
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / f"sweep.sqlite{end}").write_bytes(b"")
    assert _train(_CONFIG, folder).state == "finished"
    assert {path.name for path in folder.iterdir()} == FILES


def test_a_damaged_store_is_named(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    (folder / "sweep.sqlite").write_bytes(b"no database, but long enough to look like one" * 100)
    with pytest.raises(DataError, match=r"sweep\.sqlite: not a sweep store"):
        _train(_CONFIG, folder)


def test_a_run_of_an_earlier_version_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"config": {}}')
    (tmp_path / "checkpoint.pt").write_bytes(b"")
    with pytest.raises(DataError, match=r"not a run that this version can resume .*; choose another folder"):
        _train(_CONFIG, tmp_path)


def test_the_folder_of_a_sweep_is_refused(tmp_path: Path) -> None:
    run_sweep(make_grid([_CONFIG, replace(_CONFIG, seed=1)]), tmp_path, device="cpu", progress=False)
    with pytest.raises(ConfigError, match="holds a sweep of 2 trials; choose another folder"):
        _train(_CONFIG, tmp_path)


def test_two_ways_to_write_a_run_are_the_same_run(finished: Path) -> None:
    written = replace(_CONFIG, model=ModelConfig("wrn10_1", "skipinit", alpha=0, biases=False))
    before = _contents(finished)
    assert _train(written, finished).state == "finished"
    assert _contents(finished) == before


def test_a_checkpoint_of_another_format_is_refused_in_one_line(stopped: Path) -> None:
    path = checkpoint(stopped)
    for content, words in (
        ({"tensors": [], "records": []}, "format 1"),
        ({"format": "skipinit checkpoint", "version": 3}, "format 3"),
    ):
        torch.save(content, path)
        with pytest.raises(DataError, match=f"{words}, and this version reads 2; remove it"):
            _train(_CONFIG, stopped)


def test_a_folder_in_use_says_by_whom(stopped: Path) -> None:
    with (
        writer_lock(stopped / "sweep.lock"),
        pytest.raises(SkipinitError, match=f"process {os.getpid()} on "),
    ):
        _train(_CONFIG, stopped)
    assert _train(_CONFIG, stopped).state == "finished"


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(SkipinitError, match=f"{out}: cannot be made"):
            _train(_CONFIG, out)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.fixture
def read_only(finished: Path) -> Iterator[Path]:
    """A folder where nothing can be written, with a finished run inside."""
    folder = Path(tempfile.mkdtemp())
    for path in (*shutil.copytree(finished, folder / "run").iterdir(), folder / "run", folder):
        path.chmod(0o555)
    yield folder
    for path in (folder, folder / "run"):
        path.chmod(0o755)
    shutil.rmtree(folder)


def test_a_read_only_folder_is_refused_with_a_way_out(read_only: Path) -> None:
    with bound_by_permissions():
        with pytest.raises(SkipinitError, match=r"cannot be written \(Permission denied\); .*another path"):
            _train(_CONFIG, read_only)
        with pytest.raises(SkipinitError, match=r"cannot be made \(Permission denied\); .*another path"):
            _train(_CONFIG, read_only / "new")


def test_a_finished_run_can_be_read_where_nothing_can_be_written(read_only: Path) -> None:
    with bound_by_permissions():
        assert _train(_CONFIG, read_only / "run").state == "finished"


def test_drafts_of_a_killed_process_are_cleared_away(stopped: Path) -> None:
    path = checkpoint(stopped)
    draft, notes = path.with_name(f".{path.name}.4711"), path.with_name(".notes.txt.1")
    draft.write_bytes(b"half")
    notes.write_text("the user's own")
    assert _train(_CONFIG, stopped).state == "finished"
    assert not draft.exists()
    assert notes.exists()


def test_a_checkpoint_from_a_gpu_can_be_measured_and_exported_here(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    path = checkpoint(folder)
    saved = torch.load(path, weights_only=True)
    # A CUDA generator's state: seed and offset.
    saved["run"]["generator"] = {"device": "cuda", "state": torch.zeros(16, dtype=torch.uint8)}
    torch.save(saved, path)
    assert evaluate(folder, device="cpu") == evaluate(finished, device="cpu")
    export(folder, tmp_path / "exported")


@pytest.mark.parametrize("scheme", ["skipinit", "regularized-skipinit"])
def test_a_run_from_a_gpu_goes_on_here_unless_it_draws_random_numbers(tmp_path: Path, scheme: str) -> None:
    """Of the two only `regularized-skipinit` has dropout."""
    config = replace(_CONFIG, model=ModelConfig("wrn10_1", scheme, in_channels=1))
    _train(config, tmp_path, stop=_AtOnce())
    saved = torch.load(checkpoint(tmp_path), weights_only=True)
    saved["run"]["generator"] = {"device": "cuda", "state": torch.zeros(16, dtype=torch.uint8)}
    torch.save(saved, checkpoint(tmp_path))
    if scheme == "skipinit":
        assert _train(config, tmp_path).state == "finished"
        return
    words = (
        "this run has dropout and was started on cuda; cpu cannot continue its random numbers: use --device"
    )
    with pytest.raises(ConfigError, match=words):
        _train(config, tmp_path)
    assert torch.load(checkpoint(tmp_path), weights_only=True)["run"]["step"] == saved["run"]["step"]


def test_a_run_that_diverges_is_a_result_and_not_repeated(tmp_path: Path) -> None:
    config = replace(_CONFIG, model=replace(_CONFIG.model, scheme="none"), lr=1e6)
    result = _train(config, tmp_path)
    assert (result.state, result.records) == ("diverged", ())
    assert json.loads((tmp_path / "result.json").read_text()) == {
        "state": "diverged", "step": result.step, "final": None,
    }  # fmt: skip
    assert 0 < result.step < 5
    before = _contents(tmp_path)
    assert _train(config, tmp_path) == result
    assert _contents(tmp_path) == before
    with pytest.raises(DataError, match=rf"this run has no checkpoint; it diverged at step {result.step}$"):
        evaluate(tmp_path, device="cpu")


def test_a_copy_of_a_run_goes_on_and_has_its_network_in_the_end(
    finished: Path, stopped: Path, tmp_path: Path
) -> None:
    resumed, copy = tmp_path / "resumed", tmp_path / "copy"
    for target in (resumed, copy):
        assert main(["store", "merge", str(target), str(stopped)]) == 0
    assert _train(_CONFIG, resumed).state == "finished"
    assert evaluate(resumed, device="cpu") == evaluate(finished, device="cpu")
    assert main(["store", "merge", str(copy), str(resumed)]) == 0
    assert evaluate(copy, device="cpu") == evaluate(finished, device="cpu")
    before = checkpoint(copy).read_bytes()
    assert main(["store", "merge", str(copy), str(resumed)]) == 0
    assert checkpoint(copy).read_bytes() == before


def test_other_trials_cannot_join_a_run(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else neither `train` nor `evaluate` could use its folder again."""
    folder = shutil.copytree(finished, tmp_path / "run")
    other, file = tmp_path / "other", tmp_path / "results.jsonl"
    others = make_grid([replace(_CONFIG, seed=1)])
    run_sweep(others, other, device="cpu", progress=False)
    (other / "checkpoints").mkdir(exist_ok=True)
    shutil.copy(checkpoint(finished), other / "checkpoints" / f"{identity(others.trials[0])}.pt")
    assert main(["store", "export", str(other), str(file)]) == 0
    for words in (["merge", str(folder), str(other)], ["import", str(folder), str(file)]):
        assert main(["store", *words]) == 2
        assert capsys.readouterr().err == (
            f"skipinit: {folder} is the folder of a single run; choose another folder\n"
        )
    assert evaluate(folder, device="cpu") == evaluate(finished, device="cpu")


def test_a_result_from_elsewhere_takes_the_checkpoint_of_the_unfinished_run_with_it(
    finished: Path, stopped: Path, tmp_path: Path
) -> None:
    """Else the folder would have the accuracy of one network and the weights of another."""
    before = _contents(finished)
    with open_store(finished) as store, open_writer(stopped) as writer:
        assert merge(writer, entries(store)).updated == 1
    with open_store(stopped) as store, open_writer(finished) as writer:
        assert merge(writer, entries(store)).kept == 1
    assert _train(_CONFIG, stopped).records == _train(_CONFIG, finished).records
    for use in (lambda: evaluate(stopped, device="cpu"), lambda: export(stopped, tmp_path / "model")):
        with pytest.raises(DataError, match="no checkpoint; its result is here but not its network"):
            use()
    assert not (tmp_path / "model").exists()
    assert _contents(finished)[checkpoint(finished).name] == before[checkpoint(finished).name]


def test_the_same_command_twice_gives_one_result_whoever_is_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first ends while the second builds its network."""
    make_run, results = Workplace.make_run, []

    def make_run_late(place: Workplace, *given: Any) -> Run:
        monkeypatch.setattr(Workplace, "make_run", make_run)
        results.append(_train(_CONFIG, tmp_path))
        results.append(_contents(tmp_path)["result.json"])
        return make_run(place, *given)

    monkeypatch.setattr(Workplace, "make_run", make_run_late)
    second = _train(_CONFIG, tmp_path)
    assert [second, _contents(tmp_path)["result.json"]] == results
    assert second.state == "finished"
