"""Who trains at 100 layers, and why: the picture of the README; about a minute on a CPU.

python examples/who_trains.py docs/figures/who-trains.svg
"""

import sys

import matplotlib.pyplot as plt
import torch

import skipinit

NETWORKS = {
    "no normalization": ("none", "#D55E00", "s"),
    "batch norm": ("batchnorm", "#0072B2", "o"),
    "SkipInit": ("skipinit", "#009E73", "^"),
}


def main(path: str, depth: int = 100, epochs: int = 8) -> None:
    plt.rcParams.update({"svg.hashsalt": "skipinit", "svg.fonttype": "path", "font.size": 10})
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.3), layout="constrained")
    batch = torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for label, (scheme, color, marker) in NETWORKS.items():
        style = {"label": label, "color": color, "marker": marker, "markersize": 4, "fillstyle": "none"}
        network = skipinit.ModelConfig(f"wrn{depth}_1", scheme, num_classes=10, in_channels=1)

        rows = skipinit.probe(skipinit.build(network, seed=0), batch).rows
        left.plot([row.depth for row in rows], [row.skip_variance for row in rows], markevery=4, **style)

        result = skipinit.train(skipinit.make_train_config(network, "digits", epochs=epochs), device="cpu")
        losses = [record.train_loss for record in result.records]
        last = f"training loss {losses[-1]:.4f}" if losses else "training loss not finite"
        print(f"{label}: {result.state} at step {result.step}, {last}")
        if losses:
            right.plot(range(1, len(losses) + 1), losses, **style)
        else:
            right.plot([], [], **style | {"label": f"{label}:\nnot finite at step {result.step}"})

    left.set(yscale="log", xlabel="residual block", ylabel="skip variance", title="Before training")
    right.set(yscale="log", xlabel="epoch", ylabel="training loss", title="Training")
    for axes in (left, right):
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)
    print(f"wrote {path}")


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["who-trains.svg"]))
