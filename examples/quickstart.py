"""Quick start: build a network, measure skip and branch, train it; half a minute on a CPU.

python examples/quickstart.py
"""

import torch

import skipinit

# A hundred layers without normalization. SkipInit is one scalar alpha per residual branch, which starts at 0.
# With alpha = 1 the network computes the same as without the scalars.
balanced = skipinit.create_model("wrn100_1", scheme="skipinit", in_channels=1, seed=0)
exploding = skipinit.create_model("wrn100_1", scheme="skipinit", alpha=1, in_channels=1, seed=0)

# How large are skip and branch in the first and in the last block?
batch = torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(1))
for model in (exploding, balanced):
    report = skipinit.probe(model, batch)
    print(f"alpha = {model.blocks[0].merge.alpha.item():g} at initialization")
    for row in (report.rows[0], report.rows[-1]):
        print(f"  block {row.depth:2}: skip {row.skip_variance:9.3g}, branch {row.branch_variance:9.3g}")

# Train both on scikit-learn's digits, by the paper's protocol.
for alpha in (1.0, 0.0):
    network = skipinit.ModelConfig("wrn100_1", "skipinit", num_classes=10, in_channels=1, alpha=alpha)
    result = skipinit.train(skipinit.make_train_config(network, data="digits", epochs=4))
    accuracy = "no result" if result.final is None else f"test accuracy {result.final.test_accuracy:.1f} %"
    print(f"alpha = {alpha:g}: {result.state} at step {result.step}, {accuracy}")
