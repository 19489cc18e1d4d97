"""Train twelve converted models on real images and text, by `skipinit.recipe` and without it.

    python benchmarks/converted.py --out FILE.json [--only NAME] [--steps 200]

Each model trains three times at the rate that `find_rate` finds for the converted one: the original with its
norms by plain SGD, the converted model by plain SGD, and that model by the recipe. Plain SGD has the same
momentum, decay and schedule, but neither clips nor warms up. Images: CIFAR-10, 32 x 32, batches of 16. Text:
bytes of Python's own standard library, 16 x 64 of them. Models that FILE.json has are not trained again; the
table is printed from it. timm and transformers must be installed.
"""

from __future__ import annotations

import argparse
import json
import math
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import skipinit
from skipinit.data.images import load, standardize
from skipinit.provenance import Provenance

BATCH, LENGTH, BYTES = 16, 64, 256
TRIAL = 40
"""Steps for each rate of `find_rate`."""
SMALL = {"img_size": 32, "patch_size": 16}
TIMM: dict[str, dict[str, Any]] = {
    "resnet10t": {}, "regnety_002": {}, "tinynet_e": {}, "mobilenetv3_small_050": {}, "convnext_atto": {},
    "poolformer_s12": {}, "vit_tiny_patch16_224": SMALL, "xcit_nano_12_p16_224": {"img_size": 32},
}  # fmt: skip
WIDTH, LAYERS, HEADS = 64, 4, 4
USUAL = {
    "vocab_size": BYTES, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "intermediate_size": 4 * WIDTH,
}  # fmt: skip
HUGGING_FACE: dict[str, dict[str, Any]] = {
    "GPT2LMHead": {"vocab_size": BYTES, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS},
    "BertForMaskedLM": USUAL,
    "LlamaForCausalLM": USUAL,
    "T5ForConditionalGeneration": {
        "vocab_size": BYTES, "d_model": WIDTH, "d_kv": 16, "d_ff": 4 * WIDTH, "num_layers": LAYERS,
        "num_heads": HEADS,
    },
}  # fmt: skip

Batches = Iterator[tuple[Any, Tensor]]


@dataclass(frozen=True)
class Case:
    """A model, what it trains on, and the loss of guessing."""

    name: str
    build: Callable[[], nn.Module]
    batches: Callable[[int], Batches]
    classes: int


def cases() -> Iterator[Case]:
    """The twelve."""
    from families.case import stub_torchvision

    stub_torchvision()
    import timm
    import transformers

    for name, options in TIMM.items():
        build = partial(timm.create_model, name, num_classes=10, **options)
        yield Case(f"timm {name}", build, images, 10)
    for name, options in HUGGING_FACE.items():
        family = name.removesuffix("LMHead").partition("For")[0]
        kind = getattr(transformers, name if "For" in name else f"{name}Model")
        config = getattr(transformers, f"{family}Config")(**options)
        yield Case(f"transformers {family}", partial(kind, config), partial(text, family), BYTES)


def images(seed: int) -> Batches:
    data, generator = load("cifar10"), torch.Generator().manual_seed(seed)
    while True:
        chosen = torch.randint(len(data.train_images), (BATCH,), generator=generator)
        yield standardize(data.train_images[chosen]), data.train_labels[chosen]


def text(family: str, seed: int) -> Batches:
    """The next byte; for BERT, 15 % of the bytes, which are hidden; for T5, the second half."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    corpus = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    data, generator = (
        torch.frombuffer(bytearray(corpus), dtype=torch.uint8),
        torch.Generator().manual_seed(seed),
    )
    while True:
        starts = torch.randint(len(data) - LENGTH - 1, (BATCH, 1), generator=generator)
        window = data[starts + torch.arange(LENGTH + 1)].long()
        if family == "Bert":
            hidden = torch.rand(window.shape, generator=generator) < 0.15
            yield window.masked_fill(hidden, 0), window.masked_fill(~hidden, -100)
        elif family == "T5":
            first, second = window[:, : LENGTH // 2], window[:, LENGTH // 2 :]
            yield {"input_ids": first, "decoder_input_ids": second[:, :-1]}, second[:, 1:]
        else:
            yield window[:, :-1], window[:, 1:]


def loss_of(output: Any, targets: Tensor) -> Tensor:
    logits = output if isinstance(output, Tensor) else output.logits
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def train(model: nn.Module, case: Case, rate: float, steps: int, plain: bool) -> list[float]:
    """The loss of each step."""
    changed = {"clip_norm": math.inf, "warm_up": 0} if plain else {}
    trainer = skipinit.recipe(model.train(), rate, steps=steps, classes=case.classes, **changed)  # type: ignore[arg-type]
    for _, (inputs, targets) in zip(range(steps), case.batches(0), strict=False):
        output = model(**inputs) if isinstance(inputs, dict) else model(inputs)
        if not math.isfinite(trainer.step(loss_of(output, targets))):
            break
    return trainer.losses


def measure(case: Case, steps: int) -> dict[str, Any]:
    def fresh() -> nn.Module:
        torch.manual_seed(0)
        return case.build()

    def converted() -> nn.Module:
        model: nn.Module = skipinit.convert(fresh(), next(case.batches(0))[0], seed=0).model
        return model

    found = skipinit.find_rate(converted(), case.batches(1), loss_of, steps=TRIAL)
    result = {
        "rate": found.rate,
        "with norms": train(fresh(), case, found.rate, steps, plain=True),
        "plain": train(converted(), case, found.rate, steps, plain=True),
        "recipe": train(converted(), case, found.rate, steps, plain=False),
    }
    return {**result, "tried": {str(rate): loss for rate, loss in found.losses.items()}}


def show(losses: list[float], steps: int, classes: int) -> str:
    """The first loss and the mean of the last 20; in bold where that is not below the loss of guessing."""
    if len(losses) < steps or not math.isfinite(losses[-1]):
        return f"**{losses[0]:.2f}, diverges**"
    last = fmean(losses[-20:])
    words = f"{losses[0]:.2f} to {last:.2f}"
    return words if last < 0.99 * math.log(classes) else f"**{words}**"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path, required=True, help="what was measured, as JSON")
    options = parser.parse_args()
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    here = Provenance.here("cpu")
    print(
        f"{here.machine}, {torch.get_num_threads()} threads, torch {torch.__version__}, commit {here.commit}"
    )
    print("| model | rate | with norms, plain SGD | converted, plain SGD | converted, recipe |")
    print("| --- | --- | --- | --- | --- |")
    warnings.simplefilter("ignore")
    for case in cases():
        if options.only.lower() not in case.name.lower():
            continue
        if case.name not in results:
            results[case.name] = measure(case, options.steps)
            options.out.write_text(json.dumps(results))
        found = results[case.name]
        ways = [show(found[way], options.steps, case.classes) for way in ("with norms", "plain", "recipe")]
        print(f"| {case.name} | 2^{math.log2(found['rate']):.0f} | {' | '.join(ways)} |", flush=True)


if __name__ == "__main__":
    main()
