"""Networks as folders: what is written comes back, and what is damaged or foreign is refused by name."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from skipinit import (
    ConfigError,
    DataError,
    DivideSqrt2,
    ResidualNet,
    SkipinitError,
    create_model,
    from_pretrained,
)

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def assert_same(model: torch.nn.Module, other: torch.nn.Module) -> None:
    ours, theirs = model.state_dict(), other.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    assert all(tensor.dtype == theirs[name].dtype for name, tensor in ours.items())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    create_model("wrn10_1", scheme="skipinit", seed=0).save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("wrn10_1", {"scheme": "batchnorm", "ghost_batch": 2}),
        ("wrn10_1", {"scheme": "fixup", "fixup_components": (1, 3)}),
        ("wrn10_1", {"scheme": "skipinit", "alpha": "1/sqrt(d)", "dropout": 0.25}),
        ("resnet50_v1", {"scheme": "regularized-skipinit", "scalar_bias": True, "num_classes": 2}),
        ("fc_linear_bn", {"blocks": 2, "width": 5, "in_channels": 3}),
        ("conv_relu_bn", {"blocks": 2, "width": 5}),
    ],
)
def test_round_trip(name: str, options: dict[str, object], tmp_path: Path) -> None:
    model = create_model(name, seed=0, **options)
    model.train()(torch.randn(4, model.in_channels, *() if name.startswith("fc") else (32, 32)))
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(tmp_path)
    assert loaded.config == model.config
    assert_same(model, loaded)
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    assert not [name for name, tensor in loaded.state_dict().items() if tensor.is_meta]
    x = torch.randn(2, model.in_channels, *() if name.startswith("fc") else (32, 32))
    assert torch.equal(model.eval()(x), loaded.eval()(x))


def test_a_folder_is_two_files_without_pickle(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {CONFIG, WEIGHTS}
    assert json.loads((folder / CONFIG).read_text())["model"]["name"] == "wrn10_1"
    assert set(load_file(folder / WEIGHTS)) == set(from_pretrained(folder).state_dict())


def test_text_paths_and_new_parents(tmp_path: Path) -> None:
    model = create_model("wrn10_1", seed=0)
    model.save_pretrained(str(tmp_path / "a" / "b"))
    assert_same(model, from_pretrained(str(tmp_path / "a" / "b")))


def test_saving_again_replaces(folder: Path) -> None:
    other = create_model("wrn10_1", scheme="none", num_classes=3, seed=5)
    other.save_pretrained(folder)
    assert_same(other, from_pretrained(folder))
    assert {path.name for path in folder.iterdir()} == {CONFIG, WEIGHTS}


def test_channels_last_networks_save_too(tmp_path: Path) -> None:
    model = create_model("wrn10_1", seed=0).to(memory_format=torch.channels_last)
    model.save_pretrained(tmp_path)
    assert_same(model, from_pretrained(tmp_path))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_type_of_the_weights_is_kept(dtype: torch.dtype, tmp_path: Path) -> None:
    model = create_model("wrn10_1", scheme="skipinit", seed=0).to(dtype)
    model.save_pretrained(tmp_path)
    assert_same(model, from_pretrained(tmp_path))


def test_loading_leaves_the_generator_alone(folder: Path) -> None:
    before = torch.get_rng_state()
    from_pretrained(folder)
    assert torch.equal(torch.get_rng_state(), before)


def other_classifier(model: ResidualNet) -> None:
    model.head.dense = nn.Linear(64, 100)


def other_activation(model: ResidualNet) -> None:
    model.blocks[1].preactivation.relu1 = nn.GELU()


def other_merge(model: ResidualNet) -> None:
    model.blocks[1].merge = DivideSqrt2()


def other_stride(model: ResidualNet) -> None:
    model.blocks[0].branch.conv1.stride = (2, 2)


def no_pooling(model: ResidualNet) -> None:
    del model.head.pool


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (other_classifier, "head.dense.weight is (100, 64), was (10, 64)"),
        (other_activation, "blocks.1.preactivation.relu1 is GELU(approximate='none'), was ReLU()"),
        (other_merge, "blocks.1.merge is DivideSqrt2(), was Add()"),
        (other_stride, "stride=(2, 2)"),
        (no_pooling, "head.pool is missing, was AdaptiveAvgPool2d"),
    ],
)
def test_a_network_that_its_config_would_not_build_is_not_saved(
    change: Callable[[ResidualNet], None], says: str, tmp_path: Path
) -> None:
    """Loading would refuse the folder, or give a network that computes something else."""
    model = create_model("wrn10_1", scheme="none", seed=0)
    change(model)
    with pytest.raises(ConfigError) as caught:
        model.save_pretrained(tmp_path / "saved")
    assert says in str(caught.value)
    assert "save its state_dict with torch.save" in str(caught.value)
    assert not (tmp_path / "saved").exists()


# --- damage --------------------------------------------------------------------------------------------


def edit(change: Callable[[dict], None]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        content = json.loads((folder / CONFIG).read_text())
        change(content)
        (folder / CONFIG).write_text(json.dumps(content))

    return apply


def edit_model(**fields: object) -> Callable[[Path], None]:
    return edit(lambda content: content["model"].update(fields))


def write(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content)


def cut(name: str, keep: float) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * keep)])

    return apply


def edit_tensors(change: Callable[[dict], None]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS)

    return apply


def to_folder(name: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return apply


DENSE = "head.dense.weight"
FOREIGN = json.dumps({"architectures": ["BertModel"], "hidden_size": 768}).encode()
DAMAGE: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "no folder": (shutil.rmtree, CONFIG, WEIGHTS),
    "no config": (lambda folder: (folder / CONFIG).unlink(), CONFIG, "a saved model has"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), WEIGHTS, "a saved model has"),
    "config is a folder": (to_folder(CONFIG), CONFIG, "cannot be read"),
    "weights are a folder": (to_folder(WEIGHTS), WEIGHTS, "a saved model has"),
    "config empty": (write(CONFIG, b""), CONFIG, "damaged"),
    "config nested too deep": (write(CONFIG, b"[" * 200_000), CONFIG, "damaged"),
    "config cut": (cut(CONFIG, 0.5), CONFIG, "damaged"),
    "config is not text": (write(CONFIG, b"\xff\xfe\x00"), CONFIG, "damaged"),
    "config of another tool": (write(CONFIG, FOREIGN), CONFIG, "give a folder that save_pretrained or"),
    "config is a list": (write(CONFIG, b"[1, 2]"), CONFIG, "give a folder that save_pretrained or"),
    "config of another version": (
        edit(lambda content: content.update(format="skipinit-model-99")), CONFIG, "skipinit-model-1"),
    "config of no kind": (edit(lambda content: content.pop("kind")), CONFIG, "kind"),
    "config of another kind": (edit(lambda content: content.update(kind="video")), CONFIG, "video"),
    "config without model": (edit(lambda content: content.pop("model")), CONFIG, "model"),
    "model is text": (edit(lambda content: content.update(model="wrn10_1")), CONFIG, "model"),
    "model without a name": (edit(lambda content: content["model"].pop("name")), CONFIG, "name"),
    "unknown option": (edit_model(depth=10), CONFIG, "depth"),
    "unknown model": (edit_model(name="wrn17_2"), "saved", "wrn16_2"),
    "unknown scheme": (edit_model(scheme="skipinitt"), "saved", "skipinit"),
    "name is a number": (edit_model(name=5), "saved", "5"),
    "classes are text": (edit_model(num_classes="10"), "saved", "1 or more"),
    "classes are a fraction": (edit_model(num_classes=2.5), "saved", "1 or more"),
    "components are a number": (edit_model(scheme="fixup", fixup_components=5), "saved", ""),
    "unknown theory network": (
        edit(lambda content: content.update(kind="theory", model={"name": "fc_x"})), "saved", "fc_linear"),
    "weights empty": (write(WEIGHTS, b""), WEIGHTS, "damaged"),
    "weights cut in the header": (cut(WEIGHTS, 0.001), WEIGHTS, "damaged"),
    "weights cut in the middle": (cut(WEIGHTS, 0.5), WEIGHTS, "damaged"),
    "weights cut at the end": (cut(WEIGHTS, 0.999), WEIGHTS, "damaged"),
    "weights are noise": (write(WEIGHTS, bytes(range(256)) * 50), WEIGHTS, "damaged"),
    "tensor missing": (edit_tensors(lambda tensors: tensors.pop(DENSE)), DENSE, "missing"),
    "tensor too many": (edit_tensors(lambda t: t.update(extra=torch.ones(2))), "extra", "expected none"),
    "tensor of another shape": (
        edit_tensors(lambda t: t.update({DENSE: torch.ones(7, 64)})), DENSE, "(7, 64), expected (10, 64)"),
    "tensor of another type": (
        edit_tensors(lambda t: t.update({DENSE: torch.ones(10, 64, dtype=torch.int64)})), DENSE, "int64"),
    "weights of another model": (edit_model(name="wrn16_2"), WEIGHTS, "expected"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_and_foreign_folders_are_refused_in_one_line(damage: str, folder: Path) -> None:
    harm, where, why = DAMAGE[damage]
    harm(folder)
    with pytest.raises(DataError) as caught:
        from_pretrained(folder)
    message = str(caught.value)
    assert message.startswith(str(folder))
    assert "\n" not in message
    assert where in message
    assert why in message


# --- writing whole or not at all -----------------------------------------------------------------------


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SkipinitError, match="cannot be written"):
        create_model("wrn10_1", seed=0).save_pretrained(tmp_path / "file" / "model")
    assert (tmp_path / "file").read_text() == "in the way"


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let the system refuse to write more than that into one file, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_disk_that_fills_up_leaves_what_was_there(folder: Path) -> None:
    before = contents(folder)
    with largest_file(100_000), pytest.raises(SkipinitError, match="cannot be written"):
        create_model("wrn10_1", seed=1).save_pretrained(folder)
    assert contents(folder) == before


def test_a_disk_that_fills_up_leaves_nothing_in_a_new_folder(tmp_path: Path) -> None:
    with largest_file(100_000), pytest.raises(SkipinitError, match="cannot be written"):
        create_model("wrn10_1", seed=1).save_pretrained(tmp_path / "new")
    assert contents(tmp_path / "new") == {}
