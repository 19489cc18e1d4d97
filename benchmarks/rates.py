"""Train at rates a factor 2 apart: with norms, converted by plain SGD, converted by `skipinit.recipe`.

    python benchmarks/rates.py --out FILE.json [--only NAME] [--steps 200] [--seed 0]

Prints the mean loss of the last 20 steps for each way and rate, and the rate that `find_rate` gives.
Plain SGD has the recipe's momentum, decay and schedule, but neither clips nor warms up. Networks, on digits:
a BasicBlock ResNet of 9 blocks and a vision transformer of 4 pre-norm layers, both for 8 x 8 pixels, and this
package's WRN-16-1 for 16 x 16. Batches of 64. What FILE.json has is not trained again.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import skipinit
from skipinit.data.images import load, standardize
from skipinit.provenance import Provenance

WIDTH, BATCH, CLASSES = 16, 64, 10
POWERS = range(-8, 2)
TRIAL = 60
"""Steps for each rate of `find_rate`."""
LAST = 20


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


def wide(scheme: str) -> nn.Module:
    return skipinit.create_model("wrn16_1", scheme=scheme, in_channels=1, num_classes=CLASSES)


Data = tuple[Tensor, Tensor]


def networks(seed: int) -> Iterator[tuple[str, Data, Callable[[], nn.Module], Callable[[], nn.Module]]]:
    """Name, data, the network with norms, the network without."""

    def fresh(make: Callable[[], nn.Module]) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    def converted(make: Callable[[], nn.Module], images: Tensor) -> nn.Module:
        model: nn.Module = skipinit.convert(fresh(make), images[:BATCH], seed=seed).model
        return model

    digits = load("digits")
    data = standardize(digits.train_images), digits.train_labels
    for name, make in (("ResNet", resnet), ("transformer", Transformer)):
        yield name, data, partial(fresh, make), partial(converted, make, data[0])
    digits = load("digits16")
    data = standardize(digits.train_images), digits.train_labels
    yield (
        "WRN-16-1",
        data,
        partial(fresh, partial(wide, "batchnorm")),
        partial(fresh, partial(wide, "skipinit")),
    )


def batches(data: Data, seed: int) -> Iterator[Data]:
    images, labels = data
    generator = torch.Generator().manual_seed(seed)
    while True:
        for chosen in torch.randperm(len(images), generator=generator).split(BATCH):
            if len(chosen) == BATCH:
                yield images[chosen], labels[chosen]


def final_loss(model: nn.Module, rate: float, steps: int, data: Data, seed: int, plain: bool) -> float:
    changed = {"clip_norm": math.inf, "warm_up": 0} if plain else {}
    trainer = skipinit.recipe(model.train(), rate, steps=steps, classes=CLASSES, **changed)  # type: ignore[arg-type]
    for _, (x, y) in zip(range(steps), batches(data, seed), strict=False):
        if not math.isfinite(trainer.step(F.cross_entropy(model(x), y))):
            return math.inf
    return fmean(trainer.losses[-LAST:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="ResNet, transformer or WRN")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="what was measured, as JSON")
    options = parser.parse_args()
    done = json.loads(options.out.read_text()) if options.out.exists() else {}

    def once(key: str, work: Callable[[], float]) -> float:
        key = f"{key}, {options.steps} steps, seed {options.seed}"
        if key not in done:
            done[key] = work()
            options.out.write_text(json.dumps(done))
        return float(done[key])

    here = Provenance.here("cpu")
    print(
        f"{here.machine}, {torch.get_num_threads()} threads, torch {torch.__version__}, commit {here.commit}"
    )
    print(f"| network | way | {' | '.join(f'2^{power}' for power in POWERS)} | find_rate |")
    print(f"| --- | --- |{' --- |' * (len(POWERS) + 1)}")
    warnings.simplefilter("ignore")
    for name, data, with_norms, without in networks(options.seed):
        if options.only not in name:
            continue

        def search(model: Callable[[], nn.Module] = without, data: Data = data) -> float:
            return skipinit.find_rate(model(), batches(data, options.seed + 100), steps=TRIAL).rate

        found = once(f"{name}, find_rate", search)
        ways = {"recipe": (without, False), "plain SGD": (without, True), "with norms": (with_norms, True)}
        for way, (make, plain) in ways.items():
            cells = []
            for power in POWERS:
                work = partial(final_loss, data=data, seed=options.seed, plain=plain, steps=options.steps)
                cells.append(once(f"{name}, {way}, 2^{power}", lambda: work(make(), 2.0**power)))  # noqa: B023
            best = min(cells)
            shown = [f"**{cell:.2g}**" if cell == best else f"{cell:.2g}" for cell in cells]
            rate = f"2^{math.log2(found):.0f}" if way == "recipe" else ""
            print(f"| {name} | {way} | {' | '.join(shown)} | {rate} |", flush=True)


if __name__ == "__main__":
    main()
