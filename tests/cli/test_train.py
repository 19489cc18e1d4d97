"""`skipinit train`, `evaluate`, `export`: what a user types, sees and gets back."""

from __future__ import annotations

import errno
import importlib.util
import json
import logging
import math
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from skipinit import ModelConfig, create_model, from_pretrained, make_train_config, sweep, train
from skipinit.cli import main
from skipinit.errors import ConfigError
from support.runs import state, tensors

Result = tuple[int, str, str]
Cli = Callable[..., Result]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    def call(*arguments: object) -> Result:
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as left:  # tyro leaves by itself where the arguments do not parse
            code = int(left.code or 0)
        return code, *capsys.readouterr()

    return call


_SMALL = ("wrn10_1", "--data", "digits", "--epochs", 1, "--batch-size", 256, "--device", "cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cli") / "run"
    assert main([str(a) for a in ("train", *_SMALL, "--scheme", "batchnorm", "--out", out)]) == 0
    return out


def _last(run: Path) -> dict[str, float]:
    return json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])


def test_train_tells_the_last_epoch_and_where_the_rest_is(cli: Cli, trained: Path) -> None:
    code, out, err = cli("train", *_SMALL, "--scheme", "batchnorm", "--out", trained)
    assert (code, err) == (0, "")
    assert f"epoch 1: test accuracy {_last(trained)['test_accuracy']:.2f} %" in out.replace("\n", " ")


def test_a_process_that_trains_alone_says_so_whatever_its_rank(
    cli: Cli, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("train", *_SMALL, "--scheme", "batchnorm", "--out", trained)
    said = cli(*command)
    for rank in ("1", "none"):
        monkeypatch.setenv("RANK", rank)
        assert cli(*command) == said


def test_train_in_json(cli: Cli, trained: Path) -> None:
    code, out, err = cli("train", *_SMALL, "--scheme", "batchnorm", "--out", trained, "--json")
    assert (code, err) == (0, "")
    expected = {"state": "finished", "step": 5, "out": str(trained), "epochs": [_last(trained)]}
    assert json.loads(out) == expected


def test_a_diverged_run_is_a_result(cli: Cli, tmp_path: Path) -> None:
    """Section 2.3: without downscaling, the activations of a deep network explode (2^d)."""
    command = ("train", "wrn100_1", "--scheme", "skipinit", "--alpha", 1, "--data", "digits")
    command += ("--epochs", 1, "--out", tmp_path / "run", "--device", "cpu")
    code, out, err = cli(*command)
    assert (code, err) == (0, "")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["state"] == "diverged"
    assert f"diverged at step {result['step']}: the loss was not finite" in out
    again = cli(*command, "--json")
    expected = {"state": "diverged", "step": result["step"], "out": str(tmp_path / "run"), "epochs": []}
    assert json.loads(again[1]) == expected


def test_evaluate_equals_the_last_record(cli: Cli, trained: Path) -> None:
    code, out, err = cli("evaluate", trained, "--device", "cpu", "--json")
    assert (code, err) == (0, "")
    measured, record = json.loads(out), _last(trained)
    assert measured == {name: record[name] for name in ("test_accuracy", "test_loss")}
    _, words, _ = cli("evaluate", trained, "--device", "cpu")
    assert words == f"test accuracy {record['test_accuracy']:.2f} %, test loss {record['test_loss']:.4f}\n"


def test_an_export_has_the_same_logits_and_needs_no_data(
    cli: Cli, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skipinit.sweeping.trainer.open_data", lambda *_: pytest.fail("opened the data"))
    assert cli("export", trained, "--out", tmp_path / "model") == (0, f"{tmp_path / 'model'}\n", "")
    images = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    exported, kept = from_pretrained(tmp_path / "model").eval(), create_model("wrn10_1", in_channels=1).eval()
    kept.load_state_dict(state(trained)["model"])
    with torch.no_grad():
        assert torch.equal(exported(images), kept(images))


def test_an_export_does_not_overwrite_a_run(cli: Cli, trained: Path) -> None:
    code, _, err = cli("export", trained, "--out", trained)
    assert (code, err) == (
        2, f"skipinit: {trained} is the folder of a run and would lose its config.json; choose another\n",
    )  # fmt: skip
    assert cli("evaluate", trained, "--device", "cpu")[0] == 0


def test_onnx_without_its_packages_says_what_to_install(
    cli: Cli, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("onnx", "onnxscript"):
        monkeypatch.setitem(sys.modules, package, None)
    code, _, err = cli("export", trained, "--out", tmp_path / "model", "--onnx")
    assert code == 2
    assert err == "skipinit: ONNX export needs onnx, onnxscript; pip install 'skipinit[onnx]'\n"
    assert not (tmp_path / "model").exists()


def test_onnx_that_fails_leaves_nothing(
    cli: Cli, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("skipinit.sweeping.trained.need", lambda *_: None)
    monkeypatch.setattr("torch.onnx.export", fail)
    code, _, err = cli("export", trained, "--out", tmp_path / "model", "--onnx")
    assert code == 1
    assert err.count("\n") == 1
    assert not (tmp_path / "model").exists()


def test_onnx_repeats_nothing_that_torch_says_to_its_developers(
    cli: Cli, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chatter(*_: object, **__: object) -> SimpleNamespace:
        warnings.warn("`isinstance(treespec, LeafSpec)` is deprecated", FutureWarning, stacklevel=2)
        logging.getLogger("torch.onnx.exporter").warning("torchvision is not installed. Skipping")
        print("def forward(self, arg0_1):", file=sys.stderr)
        return SimpleNamespace(model_proto=SimpleNamespace(SerializeToString=lambda: b"a graph"))

    monkeypatch.setattr("skipinit.sweeping.trained.need", lambda *_: None)
    monkeypatch.setattr("torch.onnx.export", chatter)
    out = tmp_path / "model"
    assert cli("export", trained, "--out", out, "--onnx") == (0, f"{out}\n", "")
    assert (out / "model.onnx").read_bytes() == b"a graph"


def test_a_model_that_torch_cannot_export_as_onnx_is_one_line(
    cli: Cli, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        cause = ValueError("Could not guard on data-dependent expression zuf0 > 0.0\n\nconsider using")
        raise torch.onnx.OnnxExporterError("Failed to export the model\n\x1b[96mThis is step 1/3") from cause

    monkeypatch.setattr("skipinit.sweeping.trained.need", lambda *_: None)
    monkeypatch.setattr("torch.onnx.export", refuse)
    code, _, err = cli("export", trained, "--out", tmp_path / "model", "--onnx")
    reason = "Could not guard on data-dependent expression zuf0 > 0.0"
    says = f"wrn10_1: its model cannot be exported as ONNX ({reason}); export its weights alone, without ONNX"
    assert (code, err) == (2, f"skipinit: {says}\n")
    assert not (tmp_path / "model").exists()


@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("onnx", "onnxscript", "onnxruntime"))),
    reason="needs onnx, onnxscript and onnxruntime",
)
def test_onnx_gives_the_same_logits(cli: Cli, trained: Path, tmp_path: Path) -> None:
    import onnxruntime

    assert cli("export", trained, "--out", tmp_path / "model", "--onnx")[0] == 0
    images = np.random.default_rng(0).standard_normal((5, 1, 8, 8), dtype=np.float32)
    session = onnxruntime.InferenceSession(tmp_path / "model" / "model.onnx")
    (logits,) = session.run(None, {session.get_inputs()[0].name: images})
    with torch.no_grad():
        expected = from_pretrained(tmp_path / "model").eval()(torch.from_numpy(images))
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("--data", "digit"),
            "no folder 'digit' is here, and data set 'digit' is not known; did you mean digits or digits16?",
        ),
        (("--scheme", "skipnit"), "scheme 'skipnit' is not known; did you mean skipinit"),
        (("--device", "gpu"), "device 'gpu' is not known; it is auto, cpu, cuda or cuda:N"),
        (("--device", "mps"), "device 'mps' is not supported; it is auto, cpu, cuda or cuda:N"),
        (("--device", "cuda:99"), "device 'cuda:99' is not there; this machine has"),
        (
            ("--batch-size", 5000),
            "batch_size 5000 is larger than the 1442 training examples of digits; it must be 1442 or less",
        ),
        (("--batch-size", 0), "batch_size 0 is not allowed; it must be a whole number, 1 or more"),
        (("--micro-batch", 0), "micro_batch 0 is not allowed; it must be 1 or more"),
        (("--micro-batch", -3), "micro_batch -3 is not allowed; it must be 1 or more"),
        (("--epochs", 0), "epochs 0 is not allowed; it must be a whole number, 1 or more"),
        (("--lr", -1), "lr -1.0 is not allowed; it must be a finite number above 0"),
        (("--lr", ""), "--lr '' is not allowed; it must be a finite number"),
        (("--scheme", ""), "--scheme '' is not allowed; it must be text"),
        (("--lr", "fast"), "--lr 'fast' is not allowed; it must be a finite number"),
        (("--lr", "2^5000"), "--lr '2^5000' is not allowed; it must be a finite number"),
        (("--lr", "nan"), "--lr 'nan' is not allowed; it must be a finite number"),
        (("--dampening", 1), "dampening 1.0 is not allowed; it must be a finite number in [0, 1)"),
        (("--seed", -1), "seed -1 is not allowed; it must be a whole number, 0 or more"),
        (("--ghost-batch", 5), "ghost_batch 5 does not divide the 256 examples of each process"),
        (("--num-classes", 3), "num_classes 3 is too few for digits; it must be 10 or more"),
        (("--in-channels", 3), "in_channels 3 does not fit digits; it must be 1"),
        (("--precision", "float16"), "--precision 'float16' is not allowed; it must be one of float32, tf32"),
        (("--epochs", "1.5"), "--epochs '1.5' is not allowed; it must be a whole number"),
        (("--augment", "--no-augment"), "--augment and --no-augment exclude each other; give one"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    cli: Cli, tmp_path: Path, arguments: tuple[object, ...], line: str
) -> None:
    code, out, err = cli("train", *_SMALL, "--out", tmp_path / "run", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"skipinit: {line}")
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_network_that_does_not_exist_is_refused(cli: Cli) -> None:
    code, _, err = cli("train", "wrn17_2", "--data", "digits")
    assert code == 2
    assert err == "skipinit: wrn17_2: depth 17 is not 6m + 4; the nearest are wrn16_2 and wrn22_2\n"


@pytest.mark.parametrize(
    ("given", "augment"), [((), False), (("--no-augment",), False), (("--augment",), True)]
)
def test_an_option_can_be_switched_off(
    cli: Cli, tmp_path: Path, given: tuple[str, ...], augment: bool
) -> None:
    code, _, _ = cli("train", *_SMALL, "--out", tmp_path, *given)
    assert code == 0
    assert json.loads((tmp_path / "config.json").read_text())["config"]["augment"] is augment


def test_a_sweep_is_one_file_or_flags(cli: Cli, tmp_path: Path) -> None:
    command = ("sweep", "wrn10_1", "--file", tmp_path / "a.toml", "--lr", 1, "--out", tmp_path / "out")
    line = f"skipinit: give the axes in {tmp_path / 'a.toml'} or as flags, not both: model, lr\n"
    assert cli(*command) == (2, "", line)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", [("sweep", "wrn10_1", "--data", "digits", "--lr", 1), ("demo",)])
def test_what_trains_many_trials_is_not_started_by_torchrun(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[object, ...]
) -> None:
    """Each process took the folder for that of a stranger, and torchrun ended all of them."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    line = f"skipinit: torchrun shares one training between processes; run {command[0]} without it\n"
    assert cli(*command, "--out", tmp_path / "out") == (2, "", line)
    assert not (tmp_path / "out").exists()


def test_an_engine_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    axes = {"model": "wrn10_1", "data": "digits", "lr": 1}
    with pytest.raises(ConfigError, match=r"engine 'rya' is not known; did you mean ray\?"):
        sweep(axes, tmp_path / "out", engine="rya")
    assert not (tmp_path / "out").exists()


def test_tensorboard_needs_a_folder() -> None:
    config = make_train_config(ModelConfig("wrn10_1", in_channels=1), "digits", epochs=1)
    with pytest.raises(ConfigError, match="TensorBoard events need a folder; give out as well"):
        train(config, tensorboard=True)


def test_what_does_not_parse_is_refused_without_a_traceback(cli: Cli, tmp_path: Path) -> None:
    code, out, err = cli("train", *_SMALL, "--out", tmp_path / "run", "--colour", "red")
    assert (code, out) == (2, "")
    assert "--colour" in err
    assert "Traceback" not in err
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_no_run_is_said_to_be_none(cli: Cli, tmp_path: Path) -> None:
    for command in (("evaluate", tmp_path), ("export", tmp_path, "--out", tmp_path / "model")):
        code, out, err = cli(*command)
        assert (code, out) == (1, "")
        assert err == (
            f"skipinit: {tmp_path}: no sweep is there (no sweep.sqlite); give the folder of a run or sweep\n"
        )


def test_another_run_in_the_folder_is_refused(cli: Cli, trained: Path) -> None:
    code, _, err = cli("train", *_SMALL, "--scheme", "batchnorm", "--out", trained, "--seed", 1)
    assert code == 2
    assert err == f"skipinit: {trained} holds another run: its seed is 0, not 1; choose another folder\n"
    _, _, err = cli("train", *_SMALL, "--scheme", "batchnorm", "--out", trained, "--ghost-batch", 32)
    assert "its ghost_batch is none, not 32; choose another folder" in err


def test_help_explains_every_flag_without_importing_torch() -> None:
    code = (
        "import sys, skipinit.cli\n"
        "try: skipinit.cli.main(['train', '--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit('torch' in sys.modules)"
    )
    plain = os.environ | {"COLUMNS": "200", "NO_COLOR": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=plain, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    flags = "data out scheme alpha ghost-batch dropout lr batch-size epochs seed momentum dampening l2"
    flags += " schedule precision crop-padding augment clean-train-loss device micro-batch tensorboard json"
    lines = [line.strip("│ ") for line in done.stdout.splitlines()]
    for flag in flags.split():
        (place,) = (number for number, line in enumerate(lines) if f"{line} ".startswith(f"--{flag} "))
        words = lines[place].split()[1:] + (
            [] if lines[place + 1].startswith("--") else lines[place + 1].split()
        )
        assert len(words) >= 2, f"--{flag} is not explained"


def test_a_rate_may_be_written_as_in_the_paper(cli: Cli, tmp_path: Path) -> None:
    assert cli("train", *_SMALL, "--scheme", "skipinit", "--lr", "2^-3", "--out", tmp_path / "run")[0] == 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["config"]["lr"] == 0.125


def test_tensorboard_has_a_curve_for_every_number(cli: Cli, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    command = ("train", *_SMALL, "--scheme", "skipinit", "--out", tmp_path / "run", "--tensorboard")
    threads = threading.active_count()
    assert cli(*command)[0] == 0
    assert threading.active_count() == threads, "the writer of events has ended"
    events = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    for name, value in _last(tmp_path / "run").items():
        if name != "epoch" and value is not None:
            (point,) = events.Scalars(name)
            assert point.step == 1
            assert math.isclose(point.value, value, rel_tol=1e-6)


def test_bfloat16_stays_near_float32_and_keeps_float32_weights(cli: Cli, tmp_path: Path) -> None:
    common = ("train", *_SMALL, "--scheme", "skipinit")
    assert cli(*common, "--out", tmp_path / "a", "--precision", "bfloat16")[0] == 0
    assert cli(*common, "--out", tmp_path / "b")[0] == 0
    losses = [_last(tmp_path / name)["train_loss"] for name in "ab"]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    saved = state(tmp_path / "a")
    assert {tensor.dtype for tensor in tensors(saved).values()} == {torch.float32}
