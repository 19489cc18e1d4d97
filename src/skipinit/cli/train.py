"""`skipinit train`, `skipinit evaluate`, `skipinit export`."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import tyro

from ..config import CropPadding, Precision, Schedule, identity
from ..data.catalog import describe
from ..training.protocol import make_train_config
from ..training.records import TrainResult
from .flags import Json, NetworkFlags, given, rate_of


def train(
    model: str,
    data: str,
    out: Annotated[Path | None, given("DIR")] = None,
    network: Annotated[NetworkFlags, tyro.conf.arg(name="")] = NetworkFlags(),
    lr: Annotated[str | None, given("NUMBER")] = None,
    batch_size: Annotated[int | None, given("INT")] = None,
    epochs: Annotated[int | None, given("INT")] = None,
    seed: int = 0,
    momentum: float = 0.9,
    dampening: float = 0.0,
    l2: Annotated[float | None, given("NUMBER")] = None,
    schedule: Annotated[Schedule | None, given("{cifar,imagenet,constant}")] = None,
    precision: Precision = "float32",
    crop_padding: CropPadding = "zero",
    augment: Annotated[bool | None, given("{True,False}")] = None,
    clean_train_loss: bool = False,
    device: str = "auto",
    micro_batch: Annotated[int | None, given("INT")] = None,
    tensorboard: bool = False,
    json_: Json = False,
) -> int:
    """Train a network by the paper's protocol.

    Everything of the run lies in one folder; the same command goes on where it stopped. What is not given
    is the protocol's choice for the data set. Under torchrun, the processes share each batch.

    Args:
        model: Name of the network: see `skipinit models`.
        data: digits, cifar10, cifar100, imagenet, gaussian, or a folder with train/ and val/ inside.
        out: Folder of the run; runs/MODEL-SCHEME-DATA-IDENTITY if not given.
        network: The network's scheme and options.
        lr: Learning rate: 0.25, or 2^-2.
        batch_size: Examples per update, over all processes.
        epochs: Passes over the training set; the schedule scales with it.
        seed: Of weights, data order, augmentation and dropout.
        momentum: Of the heavy ball.
        dampening: v <- momentum v + (1 - dampening) g; the paper's learning rates go with 0.9.
        l2: Coefficient of half the squared weights.
        schedule: Of the learning rate.
        precision: Of the arithmetic; parameters are float32.
        crop_padding: What random crops see beyond the image's edge.
        augment: Crop and mirror training images at random.
        clean_train_loss: Also evaluate the loss on the unaugmented training set after each epoch.
        device: auto, cpu, cuda or cuda:N.
        micro_batch: Examples on the device at once.
        tensorboard: Write TensorBoard events into the folder.
    """
    from ..training.api import train as train_run

    entry = describe(data)
    config = make_train_config(
        network.config(model, in_channels=entry.shape[0], num_classes=entry.num_classes),
        data,
        lr=None if lr is None else rate_of(lr),
        batch_size=batch_size,
        epochs=epochs,
        seed=seed,
        momentum=momentum,
        dampening=dampening,
        l2=l2,
        schedule=schedule,
        precision=precision,
        crop_padding=crop_padding,
        augment=augment,
        clean_train_loss=clean_train_loss,
    )
    out = out or Path("runs", f"{model}-{network.scheme}-{Path(data).name}-{identity(config)}")
    result = train_run(config, out, device=device, micro_batch=micro_batch, tensorboard=tensorboard)
    if int(os.environ.get("RANK", "0")) == 0:
        _show(result, out, json_)
    return 128 + signal.SIGINT if result.state == "stopped" else 0


def _show(result: TrainResult, out: Path, as_json: bool) -> None:
    if as_json:
        epochs = [asdict(record) for record in result.records]
        print(json.dumps({"state": result.state, "step": result.step, "out": str(out), "epochs": epochs}))
        return
    if result.state == "diverged":
        print(f"diverged at step {result.step}: the loss was not finite; recorded in {out}")
    elif result.state == "stopped":
        print(f"stopped after {result.step} steps; run the same command to go on")
    if result.final:
        print(
            f"epoch {result.final.epoch}: test accuracy {result.final.test_accuracy:.2f} %, "
            f"test loss {result.final.test_loss:.4f}, training loss {result.final.train_loss:.4f}; "
            f"all epochs in {out / 'metrics.jsonl'}"
        )


def evaluate(run: tyro.conf.Positional[Path], device: str = "auto", json_: Json = False) -> None:
    """Measure a run's newest checkpoint on the test set.

    Args:
        run: Folder of the run.
        device: auto, cpu, cuda or cuda:N.
    """
    from ..training.checkpoint import evaluate_run

    accuracy, loss = evaluate_run(run, device)
    if json_:
        print(json.dumps({"test_accuracy": accuracy, "test_loss": loss}))
    else:
        print(f"test accuracy {accuracy:.2f} %, test loss {loss:.4f}")


def export(run: tyro.conf.Positional[Path], out: Path, onnx: bool = False) -> None:
    """Turn a run's newest checkpoint into a folder that `skipinit.from_pretrained` loads.

    Args:
        run: Folder of the run.
        out: Folder to write.
        onnx: Also write model.onnx (extra `onnx`).
    """
    from ..training.checkpoint import export_run

    export_run(run, out, onnx)
    print(out)
