"""Probe and convert one small model of many families, and write what came out as a table.

    python benchmarks/families [COLLECTION ...] --rows FILE.json [--only NAME] [--counts] [--out FILE.md]

A collection is a file beside this one, such as timm_models; the libraries that it names must be installed.
Not all of them go together: collections can be measured one by one into the same file. Rows that it has are
not made again. The wanted number of residual adds is not traced: it is counted from the blocks that the model
consists of, by what their source says, or from the configuration.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from case import Case
from torch import nn

import skipinit
from skipinit.notation import count_text
from skipinit.probing.inputs import arguments_of
from skipinit.probing.tensors import tensors_in
from skipinit.provenance import Provenance

STEPS, SECONDS = 20, 10
"""Of training after the conversion from scratch, whichever ends first; seconds of processor time."""
_TABLE = (
    "| model | adds found | as counted | from scratch | loss | `keep_function` |",
    "| --- | --- | --- | --- | --- | --- |",
)


_HEAD = """# Families

One small model of each family: the residual adds that `probe` finds, beside the number counted from the
blocks of the model or from its configuration, and both conversions:
`python benchmarks/families COLLECTION --rows FILE.json --out FILE.md`, with machine, commit and versions at
the head of each section.

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
the orthogonal updates of vit-pytorch, xLSTM, DeeperGCN, MONAI's VQ-VAE, scSE). Counts that were corrected
after a look at what was found: GCViT, Sequencer, RelPos, MobileOne, RepGhost, SwiftFormer, NASNet, PNASNet,
the spatio-temporal U-Net of diffusers, the attention scores of x-transformers and PatchTST, TiDE, SGFormer,
the graph network of TorchMD, SE(3)-Transformer and the deep equilibrium network."""


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


def measure(name: str, measured: dict[str, Any], file: Path, only: str, counts: bool) -> None:
    """Make the rows of a collection that are not there yet; the file is written after each."""
    collection, here = import_module(name), Provenance.here("cpu")
    versions = [f"{library} {version(library)}" for library in ("torch", *collection.LIBRARIES)]
    threads = count_text(torch.get_num_threads(), "thread")
    about = f"{here.machine}, {threads}, commit {here.commit}; {', '.join(versions)}"
    rows = measured.setdefault(name, {"about": about, "rows": {}})["rows"]
    for case in collection.cases():
        if only.lower() in case.name.lower() and case.name not in rows:
            try:
                rows[case.name] = row(case, counts)
            except Exception as error:
                rows[case.name] = [case.name, "-", _reason(error), "-", "-", "-"]
            file.write_text(json.dumps(measured))
            print(f"| {' | '.join(rows[case.name])} |", flush=True)


def page(measured: dict[str, Any]) -> str:
    """All rows, a section for each collection, after a table of how many are as counted."""
    overview = ["| collection | families | as counted | converted from scratch | keep their function |"]
    overview.append("| --- | --- | --- | --- | --- |")
    sections = []
    for name, found in measured.items():
        title, rows = name.removesuffix("_models").capitalize(), found["rows"].values()
        exact = sum(cells[2] == "yes" for cells in rows)
        scratch = sum("norms" in cells[3] and "*" not in cells[3] for cells in rows)
        kept = sum("e-" in cells[5] or "e+" in cells[5] for cells in rows)
        overview.append(f"| [{title}](#{title.lower()}) | {len(rows)} | {exact} | {scratch} | {kept} |")
        lines = [f"| {' | '.join(cells)} |" for cells in rows]
        sections += [f"## {title}", "", f"{found['about']}.", "", *_TABLE, *lines, ""]
    head = _HEAD.format(steps=STEPS, seconds=SECONDS)
    return "\n".join([head, "", *overview, "", *sections])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("collections", nargs="*", metavar="COLLECTION", help="such as timm_models")
    parser.add_argument("--only", default="", help="families whose name contains this")
    parser.add_argument("--counts", action="store_true", help="count the adds and convert nothing")
    parser.add_argument("--rows", type=Path, required=True, help="what was found, as JSON")
    parser.add_argument("--out", type=Path, help="write the page of all that was found there")
    options = parser.parse_args()
    measured = json.loads(options.rows.read_text()) if options.rows.exists() else {}
    for name in options.collections:
        measure(name, measured, options.rows, options.only, options.counts)
    if options.out is not None:
        options.out.write_text(page(measured), encoding="utf-8")


if __name__ == "__main__":
    main()
