"""A model of the user's own as a run's network: made by its factory, checked, converted if asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakSet

import torch
from torch import Tensor, nn

from ..config import TrainConfig
from ..data.images import mix
from ..errors import ConfigError, one_line
from ..nets.own import load_factory
from .world import contiguous, torch_as_new

_EXAMPLES = 16
"""Of the batch with which a conversion finds the residual adds and scales the classifier."""

_DRAWING = threading.RLock()
"""Held while a run uses torch's generator, which all threads of the process share."""

_TAKEN: WeakSet[nn.Module] = WeakSet()
"""The models of the runs of this process. Two runs that share a model would both train it."""


def build_own(config: TrainConfig, shape: tuple[int, int, int]) -> nn.Module:
    """The network of a run whose model is package.module:factory, for images of a shape.

    The factory draws from torch's generator, which gets the run's seed and is restored afterwards.
    """
    model = make_own(config, shape)
    if model in _TAKEN:
        path = config.model.name
        raise ConfigError(f"{path}() returned the model of another run; it must make a new one each time")
    _TAKEN.add(model)
    # Batches on a GPU are channels last, with which `view` in a forward may fail.
    model.register_forward_pre_hook(lambda _, images: (contiguous(images[0]),))
    return model.train()


def make_own(config: TrainConfig, shape: tuple[int, int, int]) -> nn.Module:
    """The model of the factory, converted if asked for; raises if it cannot be trained."""
    path, seed = config.model.name, mix("weights", config.seed)
    factory = load_factory(path)  # before the seed: an import may draw, too
    with _DRAWING, torch.random.fork_rng(devices=[]), torch_as_new():
        torch.default_generator.manual_seed(seed)
        model = factory()
        _check_classifier(model, config, shape)
        if config.convert is None:
            return model
        from ..converting.convert import convert  # imports torch's compiler, which takes a second

        return convert(model, (_EXAMPLES, *shape), scheme=config.convert, seed=seed).model


def _check_classifier(model: nn.Module, config: TrainConfig, shape: tuple[int, int, int]) -> None:
    """Refuse a model that cannot classify such images, or that a checkpoint cannot hold."""
    path = config.model.name
    if isinstance(model, torch.jit.ScriptModule):
        raise ConfigError(f"{path}: its model is scripted; it must be the Python module")
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type != "cpu":
            raise ConfigError(
                f"{path}: its model is on {tensor.device}; it must be on the CPU, and --device moves it"
            )
    try:
        with torch.no_grad():
            logits = model.eval()(torch.zeros(2, *shape))
    except Exception as error:
        images = f"images (N, {', '.join(map(str, shape))})"
        raise ConfigError(f"{path}: its model cannot take {images}: {one_line(error)}") from error
    _check_logits(logits, 2, config)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(f"{path}: its model has no parameter that can be trained")
    for name, parameter in model.named_parameters():
        if parameter.is_complex():  # torch's fused update, which a CUDA graph can hold, has none for them
            raise ConfigError(f"{path}: its parameter {name} is complex; parameters must be real numbers")
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise ConfigError(
                f"{path}: {name} of its state is no tensor, and a checkpoint holds only tensors"
            )


def _check_logits(logits: object, count: int, config: TrainConfig, when: str = "") -> Tensor:
    path, classes = config.model.name, config.model.num_classes or 1
    wanted = f"it must return logits (N, {classes}), one for each class of the data"
    if not isinstance(logits, Tensor):
        raise ConfigError(f"{path}: its model returns a {type(logits).__name__}{when}; {wanted}")
    if logits.dim() != 2 or len(logits) != count or logits.shape[1] < classes:
        shape = tuple(logits.shape)
        raise ConfigError(f"{path}: for {count} images its model returns {shape}{when}; {wanted}")
    return logits


def check_step(logits: object, count: int, config: TrainConfig) -> None:
    """Refuse what a model returns in a training step, which may differ from what it returns in evaluation.

    It is not tried out before: a model may set itself up from the first batch that it trains on.
    """
    if not _check_logits(logits, count, config, " in training").requires_grad:
        raise ConfigError(f"{config.model.name}: its logits have no gradient in training; it cannot learn")


@contextmanager
def drawing_from(generator: torch.Generator) -> Iterator[None]:
    """Inside, models on the generator's device draw from it instead of torch's default generator."""
    device = generator.device
    default = torch.default_generator
    if device.type == "cuda":
        default = torch.cuda.default_generators[device.index or 0]
    with _DRAWING:
        before = default.get_state()
        default.set_state(generator.get_state())
        try:
            yield
        finally:
            generator.set_state(default.get_state())
            default.set_state(before)
