"""Save and load a network as a folder: `config.json` and `model.safetensors`. No pickle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load as deserialize
from safetensors.torch import save as serialize
from torch import Tensor, nn

from ..config import ModelConfig, TheoryConfig, model_from_dict, to_dict
from ..errors import ConfigError, DataError
from ..files import read_whole, write_whole
from ..notation import count_text

Net = TypeVar("Net", bound=nn.Module)
CONFIG, WEIGHTS = "config.json", "model.safetensors"
_FILES = f"a saved model has {CONFIG} and {WEIGHTS}"
_FORMAT = "skipinit-model-1"
_FROM_DICT: dict[str, Callable[[dict[str, Any]], ModelConfig | TheoryConfig]] = {
    "image": model_from_dict,
    "theory": lambda fields: TheoryConfig(**fields),
}


def save(model: nn.Module, config: ModelConfig | TheoryConfig, folder: Path) -> None:
    """Write both files, each of them atomically."""
    kind = "image" if isinstance(config, ModelConfig) else "theory"
    weights = serialize({name: tensor.contiguous() for name, tensor in model.state_dict().items()})
    content = {"format": _FORMAT, "kind": kind, "model": to_dict(config)}
    text = json.dumps({**content, "sha256": _checksum(content, weights)}, indent=2) + "\n"
    write_whole(folder / WEIGHTS, lambda file: file.write(weights))
    write_whole(folder / CONFIG, lambda file: file.write(text.encode()))


def weights_of(model: nn.Module) -> bytes:
    """The state of a module as safetensors; cloned, because the format refuses tied weights."""
    state = model.state_dict().items()
    return serialize({name: value.clone().contiguous() for name, value in state if isinstance(value, Tensor)})


def load(folder: Path, build: Callable[[ModelConfig | TheoryConfig], Net]) -> Net:
    """Load the network in the folder; `build` makes it from its config. Raises DataError if it is damaged."""
    content, path = _read_content(folder / CONFIG), folder / WEIGHTS
    weights = read_whole(path, _FILES)
    try:
        config = _FROM_DICT[content["kind"]](content["model"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{folder / CONFIG}: does not describe a model of this version; {error}") from error
    try:
        model = build(config)
    except ConfigError as error:
        raise DataError(f"{folder}: its config is not one this version can build; {error}") from error
    try:
        tensors = deserialize(weights)
    except SafetensorError as error:
        raise DataError(f"{path}: is damaged; {error}") from error
    _load_weights(model, tensors, path)
    # Folders of earlier versions have no checksum.
    if content.pop("sha256", None) not in (None, _checksum(content, weights)):
        raise DataError(f"{path}: is damaged, or not the file that {CONFIG} was written with (sha256)")
    return model


def _read_content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_whole(path, _FILES))
    except (ValueError, RecursionError) as error:  # the latter for JSON that is nested too deep
        raise DataError(f"{path}: is not JSON, the file is damaged; {error}") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise DataError(f"{path}: was not written by skipinit; it does not say format {_FORMAT}")
    return content


def _checksum(content: dict[str, Any], weights: bytes) -> str:
    """The checksum of config and weights: without it, flipped bits in the weights would go unnoticed."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode() + weights).hexdigest()


def _load_weights(model: nn.Module, weights: dict[str, Tensor], path: Path) -> None:
    """Load the tensors into the model, after checking their names, shapes and types."""
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    odd = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if odd:
        name = odd[0]
        raise DataError(
            f"{path}: does not fit the model in {CONFIG} ({count_text(len(odd), 'tensor')}); "
            f"{name} is {found.get(name, 'missing')}, expected {expected.get(name, 'none')}"
        )
    for name, tensor in weights.items():
        if not tensor.is_floating_point():
            raise DataError(f"{path}: {name} is {tensor.dtype}, expected a floating-point type")
    model.load_state_dict(weights, assign=True)
