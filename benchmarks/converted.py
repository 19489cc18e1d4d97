"""Train converted networks on digits: plain SGD beside `skipinit.recipe`, and `find_rate` beside a sweep.

    python benchmarks/converted.py [--steps 300] [--only ResNet]

Batches of 64; accuracy on the test set after the last step. Networks: a BasicBlock ResNet of 9 blocks and a
vision transformer of 4 pre-norm layers, both for 8 x 8 pixels.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import skipinit
from skipinit.data.augment import standardize
from skipinit.data.images import load

WIDTH, BATCH, CLASSES = 16, 64, 10


class BasicBlock(nn.Module):
    """relu(skip + BN conv relu BN conv x)"""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        project = nn.Conv2d(channels, out, 1, stride, bias=False)
        self.down = nn.Sequential(project, nn.BatchNorm2d(out)) if channels != out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """ResNet-V1."""
        return F.relu(self.down(x) + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


def resnet() -> nn.Module:
    sizes = [(WIDTH, WIDTH, 1)] * 3 + [(WIDTH, 2 * WIDTH, 2)] + [(2 * WIDTH, 2 * WIDTH, 1)] * 2
    sizes += [(2 * WIDTH, 4 * WIDTH, 2)] + [(4 * WIDTH, 4 * WIDTH, 1)] * 2
    stem = (nn.Conv2d(1, WIDTH, 3, 1, 1, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU())
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * WIDTH, CLASSES))
    return nn.Sequential(*stem, *(BasicBlock(*size) for size in sizes), *head)


class Transformer(nn.Module):
    """Patches of 2 x 2, 4 pre-norm layers, the mean of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.position = nn.Conv2d(1, 48, 2, 2), nn.Parameter(0.02 * torch.randn(1, 16, 48))
        layer = nn.TransformerEncoderLayer(48, 4, 96, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, nn.LayerNorm(48), enable_nested_tensor=False)
        self.head = nn.Linear(48, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Classes."""
        tokens = self.patch(x).flatten(2).transpose(1, 2) + self.position
        return self.head(self.encoder(tokens).mean(1))


def batches(images: Tensor, labels: Tensor, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        for chosen in torch.randperm(len(images), generator=generator).split(BATCH):
            if len(chosen) == BATCH:
                yield images[chosen], labels[chosen]


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    with torch.no_grad():
        return (model.eval()(images).argmax(1) == labels).float().mean().item()


def train(model: nn.Module, rate: float, steps: int, data: tuple[Tensor, ...], plain: bool) -> float:
    model = model.train()
    kinds = {"clip_norm": math.inf, "warm_up": 0} if plain else {}
    trainer = skipinit.recipe(model, rate, steps=steps, classes=CLASSES, **kinds)  # type: ignore[arg-type]
    for _, (x, y) in zip(range(steps), batches(data[0], data[1], 0), strict=False):
        trainer.step(F.cross_entropy(model(x), y))
    return accuracy(model, data[2], data[3])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--only", default="", help="ResNet or transformer")
    options = parser.parse_args()
    steps = options.steps
    digits = load("digits")
    data = (
        standardize(digits.train_images), digits.train_labels,
        standardize(digits.test_images), digits.test_labels,
    )  # fmt: skip
    warnings.simplefilter("ignore")
    for name, make in (("ResNet", resnet), ("transformer", Transformer)):
        if options.only not in name:
            continue

        def fresh(make: type[nn.Module] = make) -> nn.Module:  # type: ignore[assignment]
            torch.manual_seed(0)
            return make()

        def converted(fresh=fresh) -> nn.Module:  # type: ignore[no-untyped-def]
            model: nn.Module = skipinit.convert(fresh(), data[0][:64], seed=0).model
            return model

        print(f"{name}: {steps} steps, test accuracy", flush=True)
        for rate in (0.4, 0.1, 0.02):
            print(
                f"  with norms, plain SGD at {rate}: {train(fresh(), rate, steps, data, True):.1%}",
                flush=True,
            )
            print(
                f"  converted, plain SGD at {rate}:  {train(converted(), rate, steps, data, True):.1%}",
                flush=True,
            )
            print(
                f"  converted, recipe at {rate}:     {train(converted(), rate, steps, data, False):.1%}",
                flush=True,
            )
        found = skipinit.find_rate(converted(), batches(data[0], data[1], 1), steps=60)
        print(f"  find_rate: {found}", flush=True)
        result = train(converted(), found.rate, steps, data, False)
        print(f"  converted, recipe at {found.rate:.3g}: {result:.1%}", flush=True)
        for power in range(-8, 1):
            print(f"  sweep 2^{power}: {train(converted(), 2.0**power, steps, data, False):.1%}", flush=True)


if __name__ == "__main__":
    main()
