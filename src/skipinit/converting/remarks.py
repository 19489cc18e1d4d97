"""What a conversion warns of: what stayed as it was, and what matters for training."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from torch import Tensor

from ..probing.balance import ProbeReport, ProbeRow
from .branches import match_blocks
from .initialization import is_tied
from .removal import NO_BATCH_NORM
from .surgery import Surgery

_NAMED = 6
"""A message lists at most so many names with the same reason."""
_OUTSIZED = 1e6
"""A branch of more than so many times the variance of its skip, before its scalar, is named.

All families of `docs/families.md` but one stay far below.
"""


def remarks(
    surgery: Surgery, left: Mapping[str, str], after: ProbeReport, outputs: Iterable[Tensor], compared: bool
) -> Iterator[str]:
    """What matters for training; `outputs` are those of the converted model."""
    flow, plan, name = surgery.flow, surgery.plan, after.model
    if surgery.on_site and not any(run.mode == "training" for run in flow.passes):
        yield (
            f"{name} does not take these inputs in training mode, so its adds are not checked there: "
            f"{_names(block.add.name for block in surgery.on_site)} may have no scalar in training, "
            "if another line of the source adds then"
        )
    if plan.keep_function:
        left = {name: reason for name, reason in left.items() if NO_BATCH_NORM not in reason}
        if not compared:
            yield (
                f"no floating-point values were found in what {name} returns, so it was not checked that "
                "the function is kept; compare the outputs yourself"
            )
    if left:
        yield f"left as they were: {listed(left)}; strict=True makes this an error, exclude= silences it"
    if not plan.keep_function:
        if after.first_nonfinite is None and any(bool(output.isnan().any()) for output in outputs):
            yield (
                f"{name} gives NaN on these inputs now, so no rate trains it: it cannot compute without the "
                "norms that were removed or the branches that start at 0; exclude= leaves modules as they are"
            )
        yield from _remarks_on_start(surgery, name)
        yield from _remarks_on_blocks(surgery, after)


def _remarks_on_start(surgery: Surgery, name: str) -> Iterator[str]:
    flow, plan, model = surgery.flow, surgery.plan, surgery.model
    if not flow.norms:
        yield (
            f"no normalization was found in {name}; if it has norms of its own types, name them with norms="
        )
    if surgery.unfrozen:
        yield (
            f"{_names(surgery.unfrozen)}: were frozen; now they are drawn anew and train. "
            "exclude= keeps frozen layers as they are, keep_function=True keeps what the model computes"
        )
    started = plan.scheme.fixup or plan.classifier_init != "he"
    untied = [dense for dense in flow.dense_outputs if not is_tied(model.get_submodule(dense), model)]
    if started and flow.classifier is None and untied:
        yield (
            f"several dense layers compute an output of {name}, so it is not clear which one "
            f"classifies: {_names(untied)} started by He, not at zero or small; "
            "scale the layer that computes your logits yourself"
        )


def _remarks_on_blocks(surgery: Surgery, after: ProbeReport) -> Iterator[str]:
    plan = surgery.plan
    on_skip = [norm for norm in surgery.flow.norms_on_skip if norm in surgery.removed_norms]
    if on_skip:
        yield (
            f"{_names(on_skip)}: the skip path went through these norms, where they do not bias "
            "blocks towards the identity (paper, section 7); they were removed, and the blocks are "
            "x + alpha f(x) now: a different architecture, which may need different hyperparameters"
        )
    if plan.scheme.merge != "scale":
        return
    doubtful = {b.add.name: f"doubtful: {b.add.doubt}" for b in surgery.blocks if b.add.doubt}
    if doubtful:
        yield f"{listed(doubtful)}; scaled as blocks, exclude= leaves them alone"
    contributing = _contributing_at_start(surgery, after) if plan.alpha == 0 or plan.scheme.fixup else {}
    if contributing:
        fixup = plan.scheme.fixup
        origin, end = ("Fixup's", "dense layer or convolution") if fixup else ("SkipInit's", "module")
        yield (
            f"branches that contribute from the start, unlike {origin}: {listed(contributing)}; a deep "
            f"network may not train: end each in a {end} of its own that is used nowhere else"
        )
    shares = {row.name: _before_scalar(row) for row in after.rows}
    outsized = {name: share for name, share in shares.items() if share > _OUTSIZED}
    if outsized:
        yield (
            f"{_names(outsized)}: without norms the branch has up to {max(outsized.values()):.0e} times the "
            "variance of its skip before the scalar, whose first gradients are as large: clip them, as "
            "skipinit.recipe does, or keep these norms with exclude="
        )


def _before_scalar(row: ProbeRow) -> float:
    """The variance of the branch before its scalar, in units of the skip's."""
    before = row.branch_variance_before_scalar or 0.0
    return before / row.skip_variance if row.skip_variance > 0 else 0.0


def _contributing_at_start(surgery: Surgery, after: ProbeReport) -> dict[str, str]:
    """The blocks whose branch is not zero at the start, with what it contributes."""
    found = {}
    for add, block, row in zip(
        after.adds, match_blocks(surgery.flow.blocks, after.adds), after.rows, strict=False
    ):
        chosen = block in surgery.chosen if block is not None else add.module in surgery.selection
        if chosen and row.branch_share:
            found[row.name] = f"{row.branch_share:.0%}"
    for name in surgery.in_training:
        if name.partition("#")[0] in surgery.selection:
            found[name] = "in training"
    if after.first_nonfinite is not None and after.first_nonfinite.partition("#")[0] in surgery.selection:
        found[after.first_nonfinite] = "NaN or infinity"
    return found


def _names(names: Iterable[str]) -> str:
    return listed(dict.fromkeys(names, ""))


def listed(reasons: Mapping[str, str]) -> str:
    """The names with their reasons; of many with the same reason, the first."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name, reason in reasons.items():
        groups[reason].append(name)
    words = []
    for reason, names in groups.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        words.append(f"{', '.join(names[:_NAMED])}{more}" + (f" ({reason})" if reason else ""))
    return "; ".join(words)
