"""Probe and convert one small model of many families, and write what came out as a table.

    python benchmarks/families [COLLECTION ...] --rows FILE.json [--only NAME] [--counts] [--out FILE.md]

The wanted number of residual adds is not traced: it is counted from the blocks that the model consists of, by
what their source says, or from the configuration. Rows that FILE.json has are not made again. The libraries
that a collection names must be installed.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from case import Case
from torch import nn

import skipinit
from skipinit.probing.forward import arguments_of
from skipinit.probing.tensors import tensors_in
from skipinit.provenance import Provenance

STEPS, SECONDS = 20, 10
"""Of training after the conversion from scratch, whichever ends first; seconds of processor time."""
COLLECTIONS = ("timm_models", "transformers_models", "image_models", "signal_models", "science_models")


_HEAD = """# Families

One small model of each family: the residual adds that `probe` finds, beside the number counted from the
blocks of the model or from its configuration, and both conversions. One run of
`python benchmarks/families --rows FILE.json --out docs/families.md`: {about}.

*As counted* is "yes" or the number that was counted. *From scratch*: how many norms were removed and the
largest branch share afterwards, which is 0 where every branch has its scalar; "at the add" counts scalars of
branches that no module of their own ends, and "0 norms" is a network without norms that gets scalars.
*Loss*: the first and the last of {steps} steps of `skipinit.recipe` on one batch of 2 random inputs, or as
many steps as {seconds} s of processor time allow; the rate is 0.05, or also 0.005 where the loss did not
fall. *`keep_function`*: the largest change of an output in evaluation mode, relative to the largest output.
Doubtful adds have [two readings](probe.md#what-counts-as-a-residual-add).

The counts come from reading the source of each block, and the table is no test on unseen models: where finder
and count differed, one of them was wrong, and several times it was the finder, whose rule was mended
(GhostNet, CoaT, EfficientViM, EfficientViT, FastViT, EdgeNeXt, Hiera, Res2Net, SAM, ATS-ViT, LoopedViT,
the orthogonal updates of vit-pytorch, xLSTM). Counts that were corrected after a look at what was found:
GCViT, Sequencer, RelPos, MobileOne, RepGhost, SwiftFormer, NASNet, PNASNet, the spatio-temporal U-Net of
diffusers, the attention scores of x-transformers and PatchTST."""


def row(case: Case, counts: bool) -> list[str]:
    """One line of the table; with `counts`, without the conversions."""
    torch.manual_seed(0)
    model = case.build()
    wanted = case.wanted(model)
    adds = skipinit.find_residual_adds(model, case.inputs)
    found = f"{len(adds)}" + (f" ({case.doubtful} doubtful)" if case.doubtful else "")
    as_counted = len(adds) == wanted and sum(bool(add.doubt) for add in adds) == case.doubtful
    exact = "yes" if as_counted else f"**{wanted}**"
    if counts:
        return [case.name, found, exact, "-", "-", "-"]
    loss = "-"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            conversion = skipinit.convert(model, case.inputs, seed=0)
            scratch = _describe(conversion)
            loss = _attempt(lambda: _train(conversion.model, case.inputs))
        except Exception as error:
            scratch = _reason(error)
        warned = any("contribute" in str(w.message) or "left as" in str(w.message) for w in caught)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kept = _attempt(lambda: f"{skipinit.convert(model, case.inputs, keep_function=True).difference:.0e}")
    return [case.name, found, exact, scratch + (", warned" if warned else ""), loss, kept]


def _describe(conversion: skipinit.Conversion) -> str:
    shares = [row.branch_share for row in conversion.after.rows]
    scalars = [change for change in conversion.changes if "scalar" in change.added]
    at_the_add = sum("branch_scales" in change.module for change in scalars)
    text = f"{conversion.num_norms} norms, shares {max(shares):.0%}"
    return text + (f", {at_the_add} at the add" if at_the_add else "")


def _train(converted: nn.Module, inputs: Any) -> str:
    text = _train_at(0.05, converted, inputs)
    return text if "*" not in text else f"{text}; at 0.005 {_train_at(0.005, converted, inputs)}"


def _train_at(rate: float, converted: nn.Module, inputs: Any) -> str:
    model = copy.deepcopy(converted).train()
    trainer = skipinit.recipe(model, rate, warm_up=5)
    start = time.process_time()
    while len(trainer.losses) < STEPS and time.process_time() - start < SECONDS:
        args, kwargs = arguments_of(model, inputs)  # Fresh ones: some models write into their input.
        trainer.step(_loss(model(*args, **kwargs)))
    first, last, steps = trainer.losses[0], trainer.losses[-1], len(trainer.losses)
    text = f"{first:.3g} to {last:.3g}" + (f" in {steps}" if steps < STEPS else "")
    return text if last < first else f"**{text}**"


def _loss(output: Any) -> torch.Tensor:
    """Cross-entropy of logits, or of the first of a sequence; of images or a series, the squared
    distance from random ones.

    A detector returns its losses.
    """
    learned = [tensor for tensor in tensors_in(output) if tensor.requires_grad]
    out = learned[0]
    if out.dim() == 0:
        return torch.stack([loss for loss in learned if loss.dim() == 0]).sum()
    if out.dim() > 3 or out.shape[-1] < len(
        out
    ):  # Not the seed of the inputs, which a network near the identity returns.
        wanted = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
        return nn.functional.mse_loss(out, wanted)
    return nn.functional.cross_entropy(out if out.dim() == 2 else out[:, 0], torch.arange(len(out)))


def _attempt(work: Callable[[], str]) -> str:
    try:
        return work()
    except Exception as error:
        return _reason(error)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    learned = "a learned scale ends every branch"
    for known in ("no batch norm to fold", "no residual add", learned, "no normalization"):
        if known in text:
            return known
    return f"**{type(error).__name__}: {text[:60]}**"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("collections", nargs="*", metavar="COLLECTION", help=", ".join(COLLECTIONS))
    parser.add_argument("--only", default="", help="families whose name contains this")
    parser.add_argument("--counts", action="store_true", help="count the adds and convert nothing")
    parser.add_argument("--rows", type=Path, required=True, help="what was found, as JSON")
    parser.add_argument("--out", type=Path, help="write the table there")
    options = parser.parse_args()
    rows = json.loads(options.rows.read_text()) if options.rows.exists() else {}
    lines = [
        "| model | adds found | as counted | from scratch | loss | `keep_function` |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    here = Provenance.here("cpu")
    collections = [import_module(name) for name in options.collections or COLLECTIONS]
    libraries = ["torch", *(name for collection in collections for name in collection.LIBRARIES)]
    versions = [f"{name} {version(name)}" for name in libraries]
    about = f"{here.machine}, {torch.get_num_threads()} threads, {', '.join(versions)}, commit {here.commit}"
    exact, start = 0, time.time()
    for case in chain.from_iterable(collection.cases() for collection in collections):
        if options.only.lower() not in case.name.lower():
            continue
        if case.name not in rows:
            try:
                rows[case.name] = row(case, options.counts)
            except Exception as error:
                rows[case.name] = [case.name, "-", _reason(error), "-", "-", "-"]
            options.rows.write_text(json.dumps(rows))
        cells = rows[case.name]
        exact += cells[2] == "yes"
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    count = len(lines) - 2
    summary = f"{exact} of {count} families exact ({math.floor(1000 * exact / max(1, count)) / 10} %)."
    print(f"{summary} {time.time() - start:.0f} s")
    if options.out is not None:
        head = _HEAD.format(about=about, steps=STEPS, seconds=SECONDS)
        options.out.write_text("\n".join([head, "", summary, "", *lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
