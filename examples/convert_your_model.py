"""Remove batch norm from your own ResNet and train it in a plain loop; a minute on a CPU.

python examples/convert_your_model.py [steps]
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import skipinit


class Block(nn.Module):
    """x + f(BN(x))"""

    def __init__(self, width):
        super().__init__()
        self.branch = nn.Sequential(
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
        )

    def forward(self, x):
        """An ordinary residual block."""
        return x + self.branch(x)


def make_model(width=16, blocks=10):
    stem, head = nn.Conv2d(1, width, 3, padding=1), nn.Linear(width, 10)
    body = [Block(width) for _ in range(blocks)]
    return nn.Sequential(stem, *body, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)


def main(steps=300):
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
    data = torch.utils.data.TensorDataset(images, torch.tensor(digits.target))
    train_set, test_set = torch.utils.data.random_split(data, [1500, 297])
    loader = torch.utils.data.DataLoader(train_set, batch_size=64, shuffle=True)

    # Remove the norms, end each branch with a scalar that starts at 0, and draw new weights.
    conversion = skipinit.convert(make_model(), images[:8])
    print(conversion)
    net = conversion.model

    # A network without norms needs another learning rate: try several on copies, for a few steps each.
    found = skipinit.find_rate(net, loader, steps=min(100, steps))
    print(found)

    # SGD with a warm-up and clipped gradients; it warns if the network does not learn.
    recipe = skipinit.recipe(net, found.rate, steps=steps, classes=10)
    step = 0
    while step < steps:
        for inputs, targets in loader:
            recipe.step(cross_entropy(net(inputs), targets))
            step += 1
            if step == steps:
                break

    inputs, targets = test_set[:]
    with torch.no_grad():
        accuracy = (net.eval()(inputs).argmax(1) == targets).float().mean().item()
    print(f"test accuracy without batch norm, after {steps} updates of 64 images: {100 * accuracy:.1f} %")


if __name__ == "__main__":
    main(*(int(text) for text in sys.argv[1:]))
