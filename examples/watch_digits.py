"""Watch SkipInit and batch normalization train on scikit-learn's digits, in a plain loop; a minute on a CPU.

python examples/watch_digits.py [picture.png] [steps]
"""

import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

import skipinit
from skipinit.probing.plot import draw_heat_map, draw_lines, save, some_blocks


def train(scheme, steps):
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
    labels = torch.tensor(digits.target)
    model = skipinit.create_model("wrn40_1", scheme=scheme, in_channels=1, num_classes=10, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    batches = torch.Generator().manual_seed(0)
    with skipinit.watch(model, every=10) as watch:
        for _ in range(steps):
            chosen = torch.randint(len(images), (64,), generator=batches)
            loss = cross_entropy(model(images[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"{scheme}: last loss {loss.item():.3f}")
    return watch.report()


def main():
    picture = Path(sys.argv[1] if len(sys.argv) > 1 else "watch.png")
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 300
    skipinit_report, batchnorm_report = train("skipinit", steps), train("batchnorm", steps)
    for report in (skipinit_report, batchnorm_report):
        print(report, end="\n\n")
    figure = Figure(figsize=(10, 7), layout="constrained")
    (share, norm_share), (alpha, norm_lines) = figure.subplots(2, 2)
    draw_heat_map(share, skipinit_report, "branch_share")
    share.set_title("SkipInit: branch share")
    draw_heat_map(norm_share, batchnorm_report, "branch_share")
    norm_share.set_title("batch normalization: branch share")
    draw_heat_map(alpha, skipinit_report, "scale")
    alpha.set_title("SkipInit: α")
    draw_lines(norm_lines, batchnorm_report, "branch_share", some_blocks(batchnorm_report))
    norm_lines.set_title("batch normalization: some blocks", pad=36)  # above the legend
    save(figure, picture)


if __name__ == "__main__":
    main()
