"""`skipinit train`, `skipinit evaluate`, `skipinit export`."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import tyro

from ..config import ModelConfig, TrainConfig
from ..notation import count_text
from ..training.protocol import identity, make_train_config
from ..training.records import TrainResult
from . import INTERRUPTED
from .flags import Count, Flag, Json, Model, RunFlags, given


def train(
    model: Model,
    data: str,
    out: Annotated[Path | None, given("DIR")] = None,
    options: Annotated[RunFlags, tyro.conf.arg(name="")] = RunFlags(),
    device: str = "auto",
    micro_batch: Count = None,
    tensorboard: Flag = False,
    json_: Json = False,
) -> int:
    """Train a network by the paper's protocol.

    MODEL is a name of `skipinit models`, or package.module:factory for your own.
    - The latter imports the module and calls the factory without arguments: it runs
      that code, so name only code that you trust.
    - Each run has its own folder. Run the same command again to resume.
    - Options that are not given have the protocol's value for the data set.
    - Under torchrun, the processes share each batch.

    Args:
        model: What to train.
        data: digits, cifar10, cifar100, imagenet, gaussian, an .npz file, or a folder with train/ and val/.
        out: Folder of the run; runs/MODEL-SCHEME-DATA-IDENTITY if not given.
        options: What to train, and how.
        device: auto, cpu, cuda or cuda:N; auto is the GPU if there is one.
        micro_batch: Examples per forward pass, to save memory; gradients are accumulated.
        tensorboard: Also write TensorBoard events into the folder (extra `tensorboard`).
    """
    from ..sweeping.single import train as train_run

    config = make_train_config(ModelConfig(model, **options.of(ModelConfig)), data, **options.of(TrainConfig))
    scheme = config.convert or config.model.scheme
    name = f"{model}-{scheme}-{Path(data).name}-{identity(config)}".replace(":", ".")
    out = out or Path("runs", name)
    result = train_run(config, out, device=device, micro_batch=micro_batch, tensorboard=tensorboard)
    alone = os.environ.get("WORLD_SIZE", "1") in ("", "1")  # some schedulers set RANK for every job
    if alone or os.environ["RANK"] == "0":
        _show(result, out, json_)
    return INTERRUPTED if result.state == "stopped" else 0


def _show(result: TrainResult, out: Path, as_json: bool) -> None:
    if as_json:
        epochs = [asdict(record) for record in result.records]
        print(json.dumps({"state": result.state, "step": result.step, "out": str(out), "epochs": epochs}))
        return
    if result.state == "diverged":
        print(f"diverged at step {result.step}: the loss was not finite; recorded in {out}")
    elif result.state == "stopped":
        print(f"stopped after {count_text(result.step, 'step')}; run the same command again to resume")
    if result.final:
        print(
            f"epoch {result.final.epoch}: test accuracy {result.final.test_accuracy:.2f} %, "
            f"test loss {result.final.test_loss:.4f}, training loss {result.final.train_loss:.4f}; "
            f"all epochs in {out / 'metrics.jsonl'}"
        )


def evaluate(run: tyro.conf.Positional[Path], device: str = "auto", json_: Json = False) -> None:
    """Measure the newest checkpoint of a run on the test set.

    Args:
        run: Folder of the run.
        device: auto, cpu, cuda or cuda:N; auto is the GPU if there is one.
    """
    from ..sweeping.trained import evaluate as evaluate_run

    found = evaluate_run(run, device=device)
    if json_:
        print(json.dumps(asdict(found)))
    else:
        print(f"test accuracy {found.test_accuracy:.2f} %, test loss {found.test_loss:.4f}")


def export(run: tyro.conf.Positional[Path], out: Path, onnx: Flag = False) -> None:
    """Write the newest checkpoint of a run as a folder for `from_pretrained`.

    Args:
        run: Folder of the run.
        out: Folder to write.
        onnx: Also write model.onnx (extra `onnx`).
    """
    from ..sweeping.trained import export as export_run

    export_run(run, out, onnx=onnx)
    print(out)
