"""A network as a folder: `config.json` says what it is, `model.safetensors` holds its weights. No pickle."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load
from safetensors.torch import save as serialize
from torch import Tensor, nn

from ..config import ModelConfig, TheoryConfig, model_from_dict, to_dict
from ..errors import DataError
from ..files import read_whole, write_whole

CONFIG, WEIGHTS = "config.json", "model.safetensors"
_FILES = f"a saved model has {CONFIG} and {WEIGHTS}"
_FORMAT = "skipinit-model-1"
_FROM_DICT: dict[str, Callable[[dict[str, Any]], ModelConfig | TheoryConfig]] = {
    "image": model_from_dict,
    "theory": lambda fields: TheoryConfig(**fields),
}


def save(model: nn.Module, config: ModelConfig | TheoryConfig, folder: Path) -> None:
    """Write both files, each complete or not at all."""
    kind = "image" if isinstance(config, ModelConfig) else "theory"
    text = json.dumps({"format": _FORMAT, "kind": kind, "model": to_dict(config)}, indent=2) + "\n"
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    write_whole(folder / WEIGHTS, lambda file: file.write(serialize(weights)))
    write_whole(folder / CONFIG, lambda file: file.write(text.encode()))


def read_config(folder: Path) -> ModelConfig | TheoryConfig:
    """The config in the folder, or one line that says why there is none."""
    path = folder / CONFIG
    try:
        content = json.loads(read_whole(path, _FILES))
    except ValueError as error:
        raise DataError(f"{path}: is not JSON, the file is damaged; {error}") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise DataError(f"{path}: was not written by skipinit; it does not say format {_FORMAT}")
    try:
        return _FROM_DICT[content["kind"]](content["model"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: does not describe a model of this version; {error}") from error


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The tensors in the folder, or one line that says what is wrong with them."""
    path = folder / WEIGHTS
    try:
        return load(read_whole(path, _FILES))
    except SafetensorError as error:
        raise DataError(f"{path}: is damaged; {error}") from error


def load_weights(model: nn.Module, weights: dict[str, Tensor], folder: Path) -> None:
    """Make the tensors the model's, after checking that they are exactly what it needs."""
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    odd = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if odd:
        name = odd[0]
        raise DataError(
            f"{folder / WEIGHTS}: {len(odd)} tensors do not fit the model in {CONFIG}; "
            f"{name} is {found.get(name, 'missing')}, expected {expected.get(name, 'none')}"
        )
    for name, tensor in weights.items():
        if not tensor.is_floating_point():
            raise DataError(f"{folder / WEIGHTS}: {name} is {tensor.dtype}, expected a floating-point type")
    model.load_state_dict(weights, assign=True)
