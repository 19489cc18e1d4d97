"""What conversion is for: depth without norms, and batches of one."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from skipinit.converting.convert import convert
from skipinit.data.images import load, standardize
from support.convert_models import CifarResNet
from support.probe_models import PreActivationBlock


class Deep(nn.Module):
    """6n + 2 layers: three groups of n pre-activation blocks of two convolutions."""

    def __init__(self, n: int, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, 1, 1, bias=False)
        groups = [(width, width, 1), (width, 2 * width, 2), (2 * width, 4 * width, 2)]
        blocks = []
        for channels, out, stride in groups:
            blocks.append(PreActivationBlock(channels, out, stride))
            blocks += [PreActivationBlock(out, out, 1) for _ in range(n - 1)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(4 * width)
        self.head = nn.Linear(4 * width, 10)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.stem(x))).relu().mean((2, 3)))


@pytest.fixture(scope="module")
def digits():
    data = load("digits")
    return (
        (standardize(data.train_images), data.train_labels),
        (standardize(data.test_images), data.test_labels),
    )


def train(model, data, batch_size, lr, updates, seed=1):
    images, labels = data
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    model.train()
    for _ in range(updates):
        chosen = torch.randint(len(images), (batch_size,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(images[chosen]), labels[chosen]).backward()
        optimizer.step()
    return model


@torch.no_grad()
def accuracy(model, data):
    images, labels = data
    return (model.eval()(images).argmax(1) == labels).float().mean().item()


@pytest.fixture(scope="module")
def deep():
    torch.manual_seed(0)
    return Deep(18, 6)


@pytest.mark.parametrize("lr", [0.05, 0.0005])
def test_110_layers_stripped_of_norms_do_not_train(deep, digits, lr):
    stripped = convert(deep, digits[0][0][:8], scheme="none", seed=0).model
    assert accuracy(train(stripped, digits[0], 64, lr, 20), digits[1]) < 0.2


@pytest.mark.parametrize(("batch_size", "lr", "updates"), [(64, 0.05, 30), (4, 0.005, 120), (1, 0.002, 250)])
def test_110_layers_converted_train_at_any_batch_size(deep, digits, batch_size, lr, updates):
    """A few updates, to be quick; an epoch gets much further."""
    converted = convert(deep, digits[0][0][:8], seed=0).model
    assert accuracy(train(converted, digits[0], batch_size, lr, updates), digits[1]) > 0.3


def test_fine_tuning_at_batch_size_1(digits):
    """Accuracy on the way, since a batch norm's running averages follow single images, up and down."""
    training, test = digits
    torch.manual_seed(0)
    normalized = train(CifarResNet(2, 8), training, 64, 0.1, 150)
    start = accuracy(normalized, test)
    assert start > 0.95
    kept = convert(normalized, training[0][:8], keep_function=True).model
    assert accuracy(kept, test) == start
    worst = {
        name: min(accuracy(train(model, training, 1, 1e-4, 50, seed=i), test) for i in range(10))
        for name, model in (("kept", kept), ("normalized", normalized))
    }
    assert worst["kept"] > start - 0.01, worst
    assert worst["normalized"] < start - 0.01, worst
