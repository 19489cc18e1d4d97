"""Models as users bring them to a training: plain modules of torch, made without arguments."""

from __future__ import annotations

import itertools
import os
import time
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from skipinit.config import ModelConfig
from skipinit.nets.create import build


class _Block(nn.Module):
    """x + f(x), with batch norm and dropout in f"""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class SmallNet(nn.Module):
    """Two residual blocks on 1x8x8 images; 3 classes."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.blocks = nn.Sequential(_Block(4), _Block(4))
        self.dense = nn.Linear(4 * 4 * 4, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.avg_pool2d(self.blocks(self.stem(x)), 2)
        return self.dense(x.view(len(x), -1))


def small_net() -> nn.Module:
    return SmallNet()


def straight() -> nn.Module:
    """Without a residual add, for digits."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


class _Plain(nn.Module):
    """x + f(x), without norm and dropout"""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.5 * self.conv(x.relu())


def plain_blocks() -> nn.Module:
    """For digits. What it computes of an image depends on no other and on no chance."""
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), _Plain(), _Plain(), nn.Flatten(), nn.Linear(256, 10))


class ComplexNet(SmallNet):
    """With a complex factor, as of a Fourier layer."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones((), dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return (self.factor * super().forward(x)).real


def with_an_unused_layer() -> nn.Module:
    """For digits, with parameters that no output depends on."""
    model = straight()
    model[0].unused = nn.Linear(3, 3)  # `nn.Flatten` does not call it
    return model


def normalized_blocks() -> nn.Module:
    """For digits, with torch's own batch norm: moving averages, a cumulative one, no scale and shift."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        _Plain(),
        nn.BatchNorm2d(4, momentum=None),
        _Plain(),
        nn.Flatten(),
        nn.BatchNorm1d(256, affine=False),
        nn.Linear(256, 10),
    )


def without_averages() -> nn.Module:
    """For digits, with a batch norm that knows its batch alone, in evaluation, too."""
    norm = nn.BatchNorm2d(4, track_running_stats=False)
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), norm, _Plain(), nn.Flatten(), nn.Linear(256, 10))


class _InDouble(nn.Module):
    """A network in float64, which no processor and no order of sums brings across the kink of a ReLU."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network.double()

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images.double())


def normalized_blocks_in_double() -> nn.Module:
    return _InDouble(normalized_blocks())


def without_averages_in_double() -> nn.Module:
    return _InDouble(without_averages())


def ghost_batches_in_double() -> nn.Module:
    return _InDouble(build(ModelConfig("wrn10_1", num_classes=10, in_channels=1, ghost_batch=16)))


def whole_batch_in_double() -> nn.Module:
    return _InDouble(build(ModelConfig("wrn10_1", num_classes=10, in_channels=1)))


def compiled_in_double() -> nn.Module:
    """Its additions cannot be seen in the pass that trains."""
    network = build(ModelConfig("wrn10_1", num_classes=10, in_channels=1))
    for block in network.blocks:
        block.compile(backend="eager")
    return _InDouble(network)


def batch_at_test_in_double() -> nn.Module:
    """Normalized by its own statistics, too."""
    model = ModelConfig("wrn10_1", num_classes=10, in_channels=1, batch_statistics_at_test=True)
    return _InDouble(build(model))


def for_photographs() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 8, stride=8), _Plain(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )


def two_classes() -> nn.Module:
    return SmallNet(classes=2)


def dictionary() -> nn.Module:
    class Named(SmallNet):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"logits": super().forward(x)}

    return Named()


def auxiliary() -> nn.Module:
    """Like torchvision's `googlenet` and `inception_v3`: in training, logits of two classifiers."""

    class Auxiliary(SmallNet):
        def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
            logits = super().forward(x)
            return (logits, logits) if self.training else logits

    return Auxiliary()


def detached() -> nn.Module:
    class Detached(SmallNet):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).detach()

    return Detached()


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch would rather have it exported
        return torch.jit.trace(SmallNet(), torch.zeros(1, 1, 8, 8))


def frozen() -> nn.Module:
    return SmallNet().requires_grad_(False)


def stateful() -> nn.Module:
    class Counting(SmallNet):
        def get_extra_state(self) -> int:
            return 1

    return Counting()


def broken() -> nn.Module:
    raise ValueError("two\nlines")


def shared() -> nn.Module:
    return module


module = SmallNet()
number = torch.zeros(())


def slow_to_draw() -> nn.Module:
    """Pauses between its draws, in the factory and in each training step, so that other threads can draw."""
    first = SmallNet()
    time.sleep(0.02)
    model = nn.Sequential(first, nn.Dropout(0.5), nn.Linear(3, 3))
    model[0].register_forward_hook(lambda *_: time.sleep(0.002))
    return model


GATE = "SKIPINIT_TEST_GATE"
"""The variable that names the file for which `gated_net` waits."""
_STEPS_BEFORE_GATE = 15


def gated_net() -> nn.Module:
    """For digits; after its first steps it waits for a file, so that a test finds it in mid-training."""
    model = build(ModelConfig("wrn10_1", "skipinit", num_classes=10, in_channels=1))
    steps = itertools.count()

    def wait(*_: object) -> None:
        if model.training and next(steps) >= _STEPS_BEFORE_GATE:
            while not Path(os.environ[GATE]).exists():
                time.sleep(0.01)

    model.register_forward_pre_hook(wait)
    return model
