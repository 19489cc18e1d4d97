"""The cost of watching a training: its time with and without a watch, memory, and equal losses.

    python benchmarks/watch.py [--steps 300] [--every 10 100] [--rounds 3] [--out FILE]

A ResNet-18 of a quarter of the width on images of 32 x 32 pixels, and a pre-norm transformer of 12 layers.
Each training is cut into pieces, in turn with and without a watch, so that other work on the machine affects
both; the time is the process's CPU time, the ratio the median over the rounds. Memory is how much the
resident set grows over the second half of the watched training.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import skipinit

PIECES = 10


class Block(nn.Module):
    """x + conv(conv(x)), post-activation, as in ResNet-18."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        branch = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(self.downsample(x) + branch)


class ResNet18(nn.Module):
    """Eight blocks of 16, 32, 64 and 128 channels."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        sizes = [width, width, width, 2 * width, 2 * width, 4 * width, 4 * width, 8 * width, 8 * width]
        self.blocks = nn.Sequential(*(Block(a, b, 1 if a == b else 2) for a, b in pairwise(sizes)))
        self.head = nn.Linear(8 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The scores of the classes."""
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Transformer(nn.Module):
    """Twelve pre-norm layers of PyTorch's own on 64 tokens."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.embed = nn.Linear(48, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True, activation="gelu"
        )
        self.layers = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The scores of the classes."""
        patches = F.unfold(x, 4, stride=4).transpose(1, 2)
        return self.head(self.layers(self.embed(patches)).mean(1))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "ResNet-18, width 16": ResNet18,
    "transformer, 12 layers": Transformer,
}


class Training:
    """A training that can be run piece by piece; its random generator is its own."""

    def __init__(self, make: Callable[[], nn.Module], every: int | None) -> None:
        torch.manual_seed(0)
        self.model = make()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.watch = None if every is None else skipinit.watch(self.model, every)
        self.state = torch.get_rng_state()
        self.losses: list[float] = []
        self.seconds = 0.0

    def run(self, steps: int) -> None:
        """Train so many steps more."""
        torch.set_rng_state(self.state)
        start = time.process_time()
        for _ in range(steps):
            images, labels = torch.randn(32, 3, 32, 32), torch.randint(10, (32,))
            loss = F.cross_entropy(self.model(images), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())
        self.seconds += time.process_time() - start
        self.state = torch.get_rng_state()


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def measure(make: Callable[[], nn.Module], every: int, steps: int) -> dict[str, Any]:
    plain, watched = Training(make, None), Training(make, every)
    memory = []
    for piece in range(PIECES):
        pair = (plain, watched) if piece % 2 else (watched, plain)
        for training in pair:
            training.run(steps // PIECES)
        memory.append(resident_mib())
    assert watched.watch is not None
    watched.watch.stop()
    equal = all(map(torch.equal, plain.model.state_dict().values(), watched.model.state_dict().values()))
    return {
        "ratio": watched.seconds / plain.seconds,
        "step_ms": 1000 * plain.seconds / steps,
        "growth_mib": memory[-1] - memory[len(memory) // 2],
        "equal": equal and plain.losses == watched.losses,
        "measurements": len(watched.watch.report().steps),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--out", type=Path, help="also write the measurements there, as JSON")
    options = parser.parse_args()
    Training(ResNet18, 1).run(2)  # What is loaded on first use is no cost.
    print(f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print("model                    every  step ms  ratio (range)          growth MiB  equal to the bit")
    results = []
    for name in options.models:
        for every in options.every:
            rounds = [measure(MODELS[name], every, options.steps) for _ in range(options.rounds)]
            ratios = [found["ratio"] for found in rounds]
            results.append({"model": name, "every": every, "rounds": copy.deepcopy(rounds)})
            spread = f"{median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
            growth = max(found["growth_mib"] for found in rounds)
            step = median(found["step_ms"] for found in rounds)
            equal = all(found["equal"] for found in rounds)
            print(f"{name:24} {every:5} {step:8.0f}  {spread:22} {growth:10.1f}  {equal}", flush=True)
    if options.out:
        options.out.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
