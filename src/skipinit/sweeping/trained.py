"""Evaluates and exports the network of a run."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path

import torch

from ..config import TrainConfig
from ..data.catalog import describe
from ..errors import ConfigError, DataError, need, system_errors_explained
from ..files import write_whole
from ..nets.create import WEIGHTS, ResidualNet, build, weights_of
from ..nets.own import is_own
from ..training.checkpoint import Checkpoints, RunState, restore_network, restoring
from ..training.own_models import build_own
from ..training.protocol import identity
from ..training.world import find_device, open_device, torch_as_new
from .store import FILE, open_store
from .trainer import Workplace


@dataclass(frozen=True)
class Evaluation:
    """Accuracy and loss on the test set."""

    test_accuracy: float
    """Percent."""
    test_loss: float


@system_errors_explained()
def evaluate(folder: str | Path, *, device: str = "auto") -> Evaluation:
    """Evaluate the newest checkpoint of the run in a folder on the test set."""
    config, state = _newest(Path(folder))
    with open_device(find_device(device)) as world:
        place = Workplace(world)
        run, data = place.make_run(config), place.data(config.data)
        _restore(run.model, Path(folder), config, state)
        run.model.eval()
        loss, right = data.score_test(run).tolist()
    return Evaluation(100 * right / data.test_size, loss / data.test_size)


@system_errors_explained()
def export(folder: str | Path, out: str | Path, *, onnx: bool = False) -> None:
    """Write a run's network as a folder for `from_pretrained`; with `onnx` also model.onnx (extra `onnx`).

    For a model of your own, the folder only holds its `state_dict`, as model.safetensors.
    """
    out = Path(out)
    if (out / FILE).exists():
        raise ConfigError(f"{out} is the folder of a run and would lose its config.json; choose another")
    if onnx:
        need("onnx", "ONNX export")
    config, state = _newest(Path(folder))
    own = is_own(config.model.name)
    with torch_as_new():
        model = build_own(config, describe(config.data).shape) if own else build(config.model, config.seed)
    _restore(model.eval(), Path(folder), config, state)
    graph = _as_onnx(model, config) if onnx else b""  # first: it may fail
    if isinstance(model, ResidualNet) and not own:
        model.save_pretrained(out)
    else:
        write_whole(out / WEIGHTS, lambda file: file.write(weights_of(model)))
    if onnx:
        write_whole(out / "model.onnx", lambda file: file.write(graph))


def _as_onnx(model: torch.nn.Module, config: TrainConfig) -> bytes:
    """The network as ONNX, for batches of any size."""
    images = torch.zeros(2, *describe(config.data).shape)
    try:
        with _remarks_silenced("torch.onnx"):
            program = torch.onnx.export(
                model, (images,), dynamo=True, dynamic_shapes=({0: "batch"},), verbose=False
            )
    except torch.onnx.OnnxExporterError as error:
        reason = str(error.__cause__ or error).partition("\n")[0]
        raise ConfigError(
            f"{config.model.name}: its model cannot be exported as ONNX ({reason}); export its weights "
            "alone, without ONNX"
        ) from error
    assert program is not None, "dynamo returns the program"
    return bytes(program.model_proto.SerializeToString())


@contextmanager
def _remarks_silenced(name: str) -> Iterator[None]:
    """Silence what torch's logger of that name, its warnings and its traces say to torch's developers."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        ignored = warnings.catch_warnings(action="ignore", category=FutureWarning)
        with ignored, redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(before)


def _newest(folder: Path) -> tuple[TrainConfig, RunState]:
    """The config of the run in a folder, and the state in its newest checkpoint."""
    with open_store(folder) as store:
        trials = store.trials()
    if len(trials) != 1:
        raise DataError(f"{folder}: {len(trials)} trials are there; give the folder of one run")
    state, _ = Checkpoints(folder).load(trials[0].id)
    if state is None:
        reasons = {
            "finished": "its result is here but not its network, which neither a sweep nor an import keeps",
            "diverged": f"it diverged at step {trials[0].step}",
        }
        reason = reasons.get(trials[0].state, "a run writes one as it goes and when it ends")
        raise DataError(f"{folder}: this run has no checkpoint; {reason}")
    return trials[0].config, state


def _restore(model: torch.nn.Module, folder: Path, config: TrainConfig, state: RunState) -> None:
    with restoring(Checkpoints(folder).path(identity(config))):
        restore_network(model, state)
