"""Whole training runs against a plain float64 loop: own network, own batch norm, own crops, own SGD.

The reference shares with the package only what defines the run: its starting weights, the numbers of the
epoch's plan, and dropout's seed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional as F

from skipinit.config import ModelConfig, TrainConfig
from skipinit.data.catalog import describe
from skipinit.data.images import epoch_plan, mix
from skipinit.nets.create import build
from skipinit.training.control import Stop
from skipinit.training.loop import train_together
from skipinit.training.records import EpochRecord
from skipinit.training.run import Run
from skipinit.training.sources import open_data
from skipinit.training.world import World

_PADDING = describe("digits").padding


class _Listener:
    """Keeps the loss of every step and every record."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.records: list[EpochRecord] = []

    def advanced(self, runs: Sequence[Run], position: int) -> None:
        self.losses.append(float(runs[0].epoch_losses()[-1]))

    def recorded(self, run: Run, record: EpochRecord) -> None:
        self.records.append(record)

    def diverged(self, run: Run, step: int) -> None:
        raise AssertionError(step)

    def paused(self, runs: Sequence[Run], last: bool) -> None:
        pass


def _digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of each class every fifth image is for testing; each is standardized by its own values."""
    bundled = load_digits()
    seen = dict.fromkeys(range(10), 0)
    for_test = []
    for label in bundled.target:
        seen[int(label)] += 1
        for_test.append(seen[int(label)] % 5 == 0)
    images = bundled.images.astype(np.float64)
    means = images.mean((1, 2), keepdims=True)
    deviations = np.maximum(images.std((1, 2), keepdims=True), 1 / np.sqrt(64))
    images = (images - means) / deviations
    test = np.array(for_test)
    return images[~test], bundled.target[~test], images[test], bundled.target[test]


def _crop(image: np.ndarray, top: int, left: int) -> np.ndarray:
    return np.pad(image, _PADDING)[top : top + 8, left : left + 8]


class _Reference:
    """WRN-10-1 and its training, in float64."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        state = build(config.model, seed=mix("weights", config.seed)).state_dict()
        state = {name: tensor.double() for name, tensor in state.items()}
        self.running = {name: tensor for name, tensor in state.items() if "running" in name}
        self.weights = {name: t.requires_grad_() for name, t in state.items() if "running" not in name}
        self.velocities = {name: torch.zeros_like(t) for name, t in self.weights.items()}
        self.coins = torch.Generator().manual_seed(mix("dropout", config.seed))
        self.losses: list[float] = []

    def norm(self, x: Tensor, name: str, training: bool) -> Tensor:
        if f"{name}.weight" not in self.weights:
            return x
        if not training:
            mean, variance = self.running[f"{name}.running_mean"], self.running[f"{name}.running_var"]
            normal = (x - mean[:, None, None]) / (variance[:, None, None] + 1e-5).sqrt()
            return self._affine(normal, name)
        ghosts = []
        for ghost in x.split(self.config.model.ghost_batch or len(x)):
            mean = ghost.mean((0, 2, 3))
            variance = (ghost - mean[:, None, None]).square().mean((0, 2, 3))
            ghosts.append((ghost - mean[:, None, None]) / (variance[:, None, None] + 1e-5).sqrt())
            for average, value in (("running_mean", mean), ("running_var", variance)):
                old = self.running[f"{name}.{average}"]
                self.running[f"{name}.{average}"] = 0.9 * old + 0.1 * value.detach()
        return self._affine(torch.cat(ghosts), name)

    def _affine(self, x: Tensor, name: str) -> Tensor:
        return x * self.weights[f"{name}.weight"][:, None, None] + self.weights[f"{name}.bias"][:, None, None]

    def conv(self, x: Tensor, name: str, stride: int = 1) -> Tensor:
        weight = self.weights[f"{name}.weight"]
        return F.conv2d(x, weight, self.weights.get(f"{name}.bias"), stride, weight.shape[-1] // 2)

    def logits(self, x: Tensor, training: bool) -> Tensor:
        x = self.conv(x, "stem.conv0")
        for number in range(3):
            block, stride = f"blocks.{number}", 1 if number == 0 else 2
            h = self.norm(x, f"{block}.preactivation.norm1", training).relu()
            skip = x if number == 0 else self.conv(h, f"{block}.skip.conv", stride)
            branch = self.conv(h, f"{block}.branch.conv1", stride)
            branch = self.norm(branch, f"{block}.branch.norm2", training).relu()
            branch = self.conv(branch, f"{block}.branch.conv2")
            x = skip + self.weights.get(f"{block}.merge.alpha", 1.0) * branch
        x = self.norm(x, "head.norm", training).relu().mean((2, 3))
        if training and self.config.model.scheme == "regularized-skipinit":
            x = x * (torch.rand(x.shape, generator=self.coins) >= 0.6) / 0.4
        return x @ self.weights["head.dense.weight"].T + self.weights["head.dense.bias"]

    def step(self, images: np.ndarray, labels: np.ndarray, rate: float) -> None:
        chances = self.logits(torch.tensor(images)[:, None], training=True).log_softmax(1)
        loss = -chances[torch.arange(len(labels)), torch.tensor(labels)].mean()
        gradients = torch.autograd.grad(loss, list(self.weights.values()))
        self.losses.append(loss.item())
        with torch.no_grad():
            for (name, weight), gradient in zip(self.weights.items(), gradients, strict=True):
                if name.endswith(".weight") and "norm" not in name:
                    gradient = gradient + self.config.l2 * weight
                velocity = self.velocities[name]
                velocity.mul_(self.config.momentum).add_((1 - self.config.dampening) * gradient)
                weight.sub_(rate * velocity)

    def train(self) -> list[tuple[float, float]]:
        """Test accuracy and loss after every epoch."""
        images, labels, test_images, test_labels = _digits()
        size, measured = self.config.batch_size, []
        steps = len(labels) // size
        for epoch in range(self.config.epochs):
            order, top, left, flip = (
                t.numpy() for t in epoch_plan(self.config.seed, epoch, len(labels), _PADDING)
            )
            assert not flip.any()
            for first in range(0, steps * size, size):
                places = range(first, first + size)
                batch = np.stack([_crop(images[order[k]], top[k], left[k]) for k in places])
                progress = (epoch * steps + first // size) / (self.config.epochs * steps)
                halvings = 0 if progress < 0.5 else 1 + int((progress - 0.5) * 20 + 1e-9)
                self.step(batch, labels[order[first : first + size]], self.config.lr / 2**halvings)
            with torch.no_grad():
                logits = self.logits(torch.tensor(test_images)[:, None], training=False)
            accuracy = 100 * float((logits.argmax(1).numpy() == test_labels).mean())
            measured.append((accuracy, float(F.cross_entropy(logits, torch.tensor(test_labels)))))
        return measured


@pytest.mark.parametrize(
    ("scheme", "options", "lr", "dampening"),
    [
        ("skipinit", {}, 0.025, 0.0),
        ("regularized-skipinit", {}, 0.25, 0.9),
        ("batchnorm", {}, 0.05, 0.0),
        ("batchnorm", {"ghost_batch": 32}, 0.5, 0.9),
    ],
)
def test_a_run_equals_the_plain_float64_loop(
    scheme: str, options: dict[str, int], lr: float, dampening: float
) -> None:
    model = ModelConfig("wrn10_1", scheme, num_classes=10, in_channels=1, **options)
    config = TrainConfig(model, "digits", lr=lr, batch_size=128, epochs=2, seed=3, dampening=dampening)
    world = World(torch.device("cpu"))
    data = open_data("digits", world.device)
    run, listener = Run(config, data.source(config, world), world, data.micro_batch), _Listener()
    train_together([run], data, listener, Stop())
    reference = _Reference(config)
    measured = reference.train()

    assert len(listener.losses) == 2 * (1442 // 128)
    np.testing.assert_allclose(listener.losses, reference.losses, rtol=1e-5)
    for name, tensor in run.model.state_dict().items():
        expected = reference.weights.get(name, reference.running.get(name)).detach()
        # By norm: one ReLU that float32 rounds to the other side moves single elements by more.
        assert (tensor.double() - expected).norm() <= 1e-4 * expected.norm(), name
    for record, (accuracy, loss) in zip(listener.records, measured, strict=True):
        assert record.test_accuracy == pytest.approx(accuracy, abs=1e-9)
        assert record.test_loss == pytest.approx(loss, rel=2e-5)
        in_epoch = reference.losses[(record.epoch - 1) * 11 : record.epoch * 11]
        assert record.train_loss == pytest.approx(np.mean(in_epoch), rel=2e-5)
