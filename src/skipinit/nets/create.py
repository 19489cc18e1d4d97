"""A network as a whole: build it from its name or config, save it as a folder and load it.

The folder has `config.json` and `model.safetensors`; nothing in it is code or a pickle.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as deserialize
from safetensors.torch import save as serialize
from torch import Tensor, nn

from ..config import ModelConfig, TheoryConfig, model_from_dict, to_dict
from ..errors import ConfigError, DataError, SkipinitError, system_errors_explained
from ..files import read_whole, write_whole
from ..notation import bytes_text, check_seed, count_text
from .architectures import THEORY_NETWORKS, find_architecture, find_theory_network
from .blocks import Layers, Named, chain
from .layers import he, lecun, scale_by_depth, zero_last
from .networks import resnet_v1, resnet_v2, theory_net, wide_resnet
from .own import is_own
from .schemes import Design, resolve, settle

CONFIG, WEIGHTS = "config.json", "model.safetensors"
_FILES = f"a saved model has {CONFIG} and {WEIGHTS}"
_FORMAT = "skipinit-model-1"
_FROM_DICT: dict[str, Callable[[dict[str, Any]], ModelConfig | TheoryConfig]] = {
    "image": model_from_dict,
    "theory": lambda fields: TheoryConfig(**fields),
}
_FAMILIES = {"wide-resnet": wide_resnet, "resnet-v2": resnet_v2, "resnet-v1": resnet_v1}


class ResidualNet(nn.Module):
    """head(block_d(... block_1(stem(x))))

    A network of this package; `create_model` builds it. The blocks are in `blocks`, its options in `config`.
    """

    def __init__(
        self,
        config: ModelConfig | TheoryConfig,
        in_channels: int,
        stem: Named,
        blocks: list[nn.Module],
        head: Named,
    ) -> None:
        super().__init__()
        self.config = config
        self.in_channels = in_channels
        self.in_axes = 4 if any(isinstance(layer, nn.Conv2d) for layer in stem.values()) else 2
        self.stem = chain(stem)
        self.blocks = nn.Sequential(*blocks)
        self.head = chain(head)
        self._built = self._layers_and_shapes()

    @property
    def num_blocks(self) -> int:
        """d, the number of residual blocks."""
        return len(self.blocks)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of an image network; the last block's output of a theory network."""
        if x.dim() != self.in_axes or x.shape[1] != self.in_channels:
            raise ConfigError(
                f"{self.config.name}: an input of shape {tuple(x.shape)} is not allowed; "
                f"it takes {self.in_axes} axes with {self.in_channels} channels in the second"
            )
        out: Tensor = self.head(self.blocks(self.stem(x)))
        return out

    def save_pretrained(self, folder: str | Path) -> None:
        """Write weights and config into the folder, for `skipinit.from_pretrained`.

        Raises ConfigError if layers were replaced, added or removed: the config would build another network.
        """
        built, now = self._built, self._layers_and_shapes()
        changed = [name for name in sorted(built.keys() | now.keys()) if built.get(name) != now.get(name)]
        if changed:
            name = changed[-1]  # the innermost, which says most
            raise ConfigError(
                f"this network was changed, so its config no longer describes it ({name} is "
                f"{now.get(name, 'missing')}, was {built.get(name, 'not there')}); save its state_dict with "
                "torch.save"
            )
        _save(self, Path(folder))

    def _layers_and_shapes(self) -> dict[str, str]:
        """What the config decides: every layer with its settings, every tensor with its shape."""
        layers = {name: f"{type(m).__name__}({m.extra_repr()})" for name, m in self.named_modules()}
        return layers | {name: str(tuple(tensor.shape)) for name, tensor in self.state_dict().items()}


@system_errors_explained()
def create_model(name: str, *, seed: int | None = None, **options: Any) -> ResidualNet:
    """Build and initialize a network.

    Args:
        name: a name of `list_models()`, or any wrn{6m+4}_{k}.
        seed: seed of the weights. Without it, torch's global generator draws them.
        options: fields of `ModelConfig`: `scheme` (one of `list_schemes()`), `num_classes`, `in_channels`,
            `alpha`, `ghost_batch`, `dropout`, `biases`, `scalar_bias`, ...; for the theory networks those
            of `TheoryConfig`: `blocks`, `width`, `in_channels`.

    >>> model = create_model("wrn16_2", scheme="skipinit", num_classes=10)
    >>> model.num_blocks, model.blocks[0].merge.alpha.item()
    (6, 0.0)
    """
    return build(make_config(name, **options), seed)


def make_config(name: str, **options: Any) -> ModelConfig | TheoryConfig:
    """The config of a network by name and options."""
    kind = TheoryConfig if isinstance(name, str) and name in THEORY_NETWORKS else ModelConfig
    allowed = [field.name for field in dataclasses.fields(kind) if field.name != "name"]
    for option in options:
        if option not in allowed:
            raise ConfigError(f"{name}: option {option!r} is not known; it takes {', '.join(allowed)}")
    return kind(name, **options)


@system_errors_explained()
def build(config: ModelConfig | TheoryConfig, seed: int | None = None) -> ResidualNet:
    """Build and initialize the network that a config describes.

    Args:
        config: name and options of the network.
        seed: seed of the weights. Without it, torch's global generator draws them.

    >>> build(ModelConfig("wrn16_2", scheme="skipinit")).num_blocks
    6
    """
    if not isinstance(config, ModelConfig | TheoryConfig):
        raise ConfigError(
            f"a {type(config).__name__} is not a config; give a ModelConfig or TheoryConfig, such as "
            "ModelConfig('wrn16_2')"
        )
    generator = None if seed is None else _generator(check_seed("seed", seed))
    if isinstance(config, TheoryConfig):
        return _build_theory_network(config, generator)
    if is_own(config.name):
        raise ConfigError(
            f"{config.name} is a model of your own; call its factory, or give this path to probe, convert, "
            "train or sweep"
        )
    config, architecture = settle(config), find_architecture(config.name)
    design = resolve(config, architecture)
    assert config.in_channels is not None
    assert config.num_classes is not None
    family = _FAMILIES[architecture.family]
    parts = family(architecture, Layers(design), config.in_channels, config.num_classes)
    net = ResidualNet(config, config.in_channels, *parts)
    _require_memory(net)
    _initialize(net, design, generator)
    return net


def _generator(seed: int) -> torch.Generator:
    """A generator for the default device; weights on the meta device have no values to draw."""
    device = torch.get_default_device()
    return torch.Generator("cpu" if device.type == "meta" else device).manual_seed(seed)


def _build_theory_network(config: TheoryConfig, generator: torch.Generator | None) -> ResidualNet:
    """He initialization with ReLUs, LeCun without."""
    kind = find_theory_network(config.name)
    channels, width = config.in_channels or kind.in_channels, config.width or kind.width
    net = ResidualNet(config, channels, *theory_net(kind, config.blocks, channels, width))
    _require_memory(net)
    (he if kind.relu else lecun)(net, generator)
    return net


def _initialize(net: ResidualNet, design: Design, generator: torch.Generator | None) -> None:
    """He everywhere (section 2.3), then the classifier's own start, then Fixup's changes (section 6)."""
    he(net, generator)
    if design.classifier_init == "lecun":
        lecun(net.head, generator)
    elif design.classifier_init == "zero":
        zero_last([net.head])
    branches: list[nn.Module] = [block.get_submodule("branch") for block in net.blocks]
    if design.depth_scaled:
        scale_by_depth(branches)
    if design.zero_last:
        zero_last(branches)


def _require_memory(net: nn.Module) -> None:
    """Raise if the weights do not fit into memory, before they are drawn.

    The system grants more memory than it has. When that is written to, it kills this process or another.
    """
    needed = sum(weight.nbytes for weight in net.parameters() if weight.device.type == "cpu")
    free = _free_memory()
    if needed > free:
        raise SkipinitError(
            f"out of memory: the weights take {bytes_text(needed)}, and {bytes_text(round(free))} are free; "
            "use a smaller network"
        )


def _free_memory() -> float:
    """Bytes of memory that are available; infinite if the system does not say."""
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * float(line.split()[1])
    return math.inf


@system_errors_explained()
def from_pretrained(folder: str | Path) -> ResidualNet:
    """Load a network that `ResidualNet.save_pretrained` wrote.

    Reads only JSON and safetensors, and runs no code from the folder.

    Args:
        folder: path of the folder.

    >>> model = create_model("wrn16_2", scheme="skipinit")
    >>> model.save_pretrained("my-model")
    >>> same = from_pretrained("my-model")
    """
    folder = Path(folder)
    content, path = _read_content(folder / CONFIG), folder / WEIGHTS
    weights = read_whole(path, _FILES)
    try:
        config = _FROM_DICT[content["kind"]](content["model"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{folder / CONFIG}: does not describe a model of this version; {error}") from error
    try:
        with torch.device("meta"):
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


def _save(model: ResidualNet, folder: Path) -> None:
    """Write both files, each of them atomically."""
    kind = "image" if isinstance(model.config, ModelConfig) else "theory"
    weights = weights_of(model)
    content = {"format": _FORMAT, "kind": kind, "model": to_dict(model.config)}
    text = json.dumps({**content, "sha256": _checksum(content, weights)}, indent=2) + "\n"
    write_whole(folder / WEIGHTS, lambda file: file.write(weights))
    write_whole(folder / CONFIG, lambda file: file.write(text.encode()))


def weights_of(model: nn.Module) -> bytes:
    """The state of a module as safetensors; cloned, because the format refuses tied weights."""
    state = model.state_dict().items()
    return serialize({name: value.clone().contiguous() for name, value in state if isinstance(value, Tensor)})


def _read_content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_whole(path, _FILES))
    except (ValueError, RecursionError) as error:  # the latter for JSON that is nested too deep
        raise DataError(f"{path}: is not JSON, the file is damaged; {error}") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise DataError(
            f"{path}: does not say format {_FORMAT}; give a folder that save_pretrained or `skipinit export` "
            "wrote"
        )
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
