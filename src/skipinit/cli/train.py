"""`skipinit train`, `evaluate` and `export` for a single run, `skipinit sweep` for many."""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from ..config import ModelConfig, TrainConfig
from ..data.catalog import describe
from ..errors import ConfigError
from ..files import check_folder
from ..notation import bytes_text, count_text, duration_text, read_seconds, value_text
from ..sweeping.grid import Grid, PackKey, expand, flatten, read_grid
from ..training.protocol import identity, make_train_config
from ..training.records import TrainResult
from . import INTERRUPTED
from .flags import AxisFlags, Count, Flag, Json, Model, RunFlags, given
from .store import Folder, exit_code, in_columns, print_outcome

if TYPE_CHECKING:
    from ..sweeping.forecast import Forecast, Pack


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
    - The defaults of learning rate, batch size, epochs, L2 and schedule depend on
      the data set.
    - Under torchrun, the processes share each batch.

    Example: skipinit train wrn16_2 --scheme skipinit --data digits --epochs 5

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
        _print_run(result, out, json_)
    return INTERRUPTED if result.state == "stopped" else 0


def _print_run(result: TrainResult, out: Path, as_json: bool) -> None:
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


def evaluate(run: Folder, device: str = "auto", json_: Json = False) -> None:
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


def export(run: Folder, out: Path, onnx: Flag = False) -> None:
    """Write the newest checkpoint of a run as a folder for `from_pretrained`.

    Args:
        run: Folder of the run.
        out: Folder to write.
        onnx: Also write model.onnx (extra `onnx`).
    """
    from ..sweeping.trained import export as export_run

    export_run(run, out, onnx=onnx)
    print(out)


def sweep(
    model: Annotated[str | None, tyro.conf.Positional, given("MODEL")] = None,
    out: Annotated[Path | None, given("DIR")] = None,
    axes: Annotated[AxisFlags, tyro.conf.arg(name="")] = AxisFlags(),
    file: Annotated[Path | None, given("FILE")] = None,
    device: str = "auto",
    engine: Literal["local", "ray"] = "local",
    pack_size: Count = None,
    time_limit: Annotated[str | None, given("TIME")] = None,
    dry_run: Flag = False,
    json_: Json = False,
) -> int:
    """Train every combination of the given values.

    VALUES is a list (a,b,c) or a range of powers (2^-6..2^0) or integers (0..6).
    - Many trials train together on a GPU; on the CPU, one trial per core.
    - Run the same command again to resume; trials with a result are skipped.
    - `skipinit status` shows the progress, `skipinit results` the results.

    Example: skipinit sweep wrn10_1 --lr 2^-6..2^0 --seed 0..2 --data digits

    Args:
        model: Networks: see `skipinit models`; or package.module:factory for your own model.
        out: Folder of the sweep; runs/sweep-IDENTITY if not given.
        axes: What to vary.
        file: TOML file with the axes, instead of flags.
        device: auto, cpu, cuda or cuda:N; auto is the GPU if there is one.
        engine: local: train on this machine; ray: on the Ray cluster at RAY_ADDRESS.
        pack_size: Trials that train together on a GPU; measured if not given.
        time_limit: Stop after this time, with everything saved for a resume: 90s, 9m, 2h.
        dry_run: Train nothing; show the trials, their packs and the estimated time.
    """
    chosen = axes.texts() if model is None else {"model": model, **axes.texts()}
    if file is not None and chosen:
        raise ConfigError(f"give the axes in {file} or as flags, not both: {', '.join(chosen)}")
    grid = read_grid(file) if file else expand(chosen)
    limit = None if time_limit is None else read_seconds(time_limit)
    out = out or Path("runs", f"sweep-{grid.identity}")
    if grid.duplicates:
        print(f"skipinit: {count_text(grid.duplicates, 'repeated trial')} left out", file=sys.stderr)
    if dry_run:
        check_folder(out)
        _print_plan(grid, out, device, pack_size, json_)
        return 0
    from ..sweeping.engine import run_sweep

    outcome = run_sweep(grid, out, device=device, engine=engine, pack_size=pack_size, time_limit=limit)
    if json_:
        print(json.dumps(asdict(outcome)))
    else:
        print_outcome(outcome, out)
    return exit_code(outcome)


def _print_plan(grid: Grid, out: Path, device: str, pack_size: int | None, as_json: bool) -> None:
    from ..sweeping.forecast import forecast

    plan = forecast(grid.trials, out, device, pack_size)
    rows = [flatten(trial) for trial in grid.trials]
    if as_json:
        print(json.dumps({"trials": rows, **asdict(plan), "seconds": plan.seconds}))
        return
    epochs = sum(trial.epochs for trial in grid.trials)
    sizes = {data: describe(data).train_size for data in {trial.data for trial in grid.trials}}
    images = sum(trial.epochs * sizes[trial.data] for trial in grid.trials)
    counts = {"trial": len(grid.trials), "epoch": epochs, "training image": images}
    print(", ".join(count_text(number, what) for what, number in counts.items()))
    for name in rows[0]:
        values = list(dict.fromkeys(row[name] for row in rows))
        if len(values) > 1:
            print(f"  {name}: {', '.join(map(value_text, values))}")
    _print_packs(plan)


def _print_packs(plan: Forecast) -> None:
    """One row for equal packs, with the largest memory among them."""
    if plan.results or plan.resumed:
        print(f"with a result already: {plan.results}; resumed from a checkpoint: {plan.resumed}")
    if not plan.packs:
        return
    alike: defaultdict[tuple[PackKey, int], list[Pack]] = defaultdict(list)
    for pack in plan.packs:
        alike[pack.key, pack.trials].append(pack)
    header = ("packs", "trials in each", "data", "batch", "epochs", "from step", "time", "memory of each")
    rows = []
    for (key, trials), packs in alike.items():
        seconds = sum(pack.seconds for pack in packs)
        memory = max(pack.memory or 0 for pack in packs)
        shared = (key.data, key.batch_size, key.epochs, key.position)
        known = bytes_text(round(memory)) if memory else "−"
        rows.append([*map(str, (len(packs), trials, *shared)), duration_text(seconds), known])
    print(in_columns(header, rows))
    basis = "finished trials" if plan.measured else "a few training steps"
    if 0 < plan.measured < plan.trials:
        basis = f"finished trials for {plan.measured} of {plan.trials}, a few training steps for the rest"
    beside = f", {plan.at_once} packs at once" if plan.at_once > 1 else ""
    print(f"about {duration_text(plan.seconds)} on {plan.device}{beside}; estimated from {basis}")
