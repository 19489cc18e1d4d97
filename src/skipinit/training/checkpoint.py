"""What can be done with a run's newest checkpoint: measure it, hand it on."""

from __future__ import annotations

from pathlib import Path

import torch

from ..data.catalog import describe
from ..errors import ConfigError, DataError
from .folder import RunFolder
from .run import Run
from .sources import Data, open_data
from .world import World, find_device


def open_run(path: Path, device: str = "cpu") -> tuple[Run, Data]:
    """The run in a folder, as its checkpoint left it, and its data."""
    folder = RunFolder(path)
    config = folder.config()
    if not folder.has_checkpoint:
        raise DataError(f"{path}: this run has no checkpoint; a run writes one as it goes and when it ends")
    world = World(find_device(device))
    data = open_data(config.data, world.device)
    run = Run(config, data.source(config, world), world, data.micro_batch)
    folder.restore_network(run)
    return run, data


def evaluate_run(path: Path, device: str = "auto") -> tuple[float, float]:
    """Test accuracy in percent, and test loss."""
    run, data = open_run(path, device)
    run.model.eval()
    loss, right = data.score_test(run).tolist()
    return 100 * right / data.test_size, loss / data.test_size


def export_run(path: Path, out: Path, onnx: bool = False) -> None:
    """Write the network as a folder for `from_pretrained`, and as model.onnx if asked for (extra `onnx`)."""
    if (out / "checkpoint.pt").exists():
        raise ConfigError(f"{out} is the folder of a run and would lose its config.json; choose another")
    run, _ = open_run(path)
    model = run.model.eval()
    model.save_pretrained(out)
    if not onnx:
        return
    example = torch.zeros(2, *describe(run.config.data).shape)
    try:
        torch.onnx.export(
            model, (example,), out / "model.onnx", dynamo=True, dynamic_shapes=({0: "batch"},), verbose=False
        )
    except ImportError as error:
        raise ConfigError(
            f"ONNX export needs more packages ({error}); pip install 'skipinit[onnx]'"
        ) from error
