"""The warnings of a conversion: what was left, and which branches contribute from the start."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping

from ..probing.balance import ProbeReport
from .flow import Flow
from .fresh import is_tied
from .plan import Plan
from .removal import NO_BATCH_NORM
from .surgery import Surgery

_NAMED = 6
"""A message lists at most so many names with the same reason."""


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


def warn_of_exceptions(
    after: ProbeReport,
    flow: Flow,
    surgery: Surgery,
    left: Mapping[str, str],
    plan: Plan,
    contributing_at_zero: Iterable[str],
    compared: bool,
) -> None:
    """Warn of what matters for training."""
    if surgery.on_site and not any(run.mode == "training" for run in flow.passes):
        unchecked = dict.fromkeys((block.add.name for block in surgery.on_site), "")
        warnings.warn(
            f"{after.model} does not take these inputs in training mode, so its adds are not checked there: "
            f"{listed(unchecked)} may have no scalar in training, if another line of the source adds then",
            stacklevel=3,
        )
    if plan.keep_function and not compared:
        warnings.warn(
            f"no floating-point tensor was found in what {after.model} returns, so it was not checked that "
            "the function is kept; compare the outputs yourself",
            stacklevel=3,
        )
    if plan.keep_function:
        left = {name: reason for name, reason in left.items() if NO_BATCH_NORM not in reason}
    if left:
        warnings.warn(
            f"left as they were: {listed(left)}; strict=True makes this an error, exclude= silences it",
            stacklevel=3,
        )
    if plan.keep_function:
        return
    if not flow.norms:
        warnings.warn(
            f"no normalization was found in {after.model}; if it has norms of its own types, name them with "
            "norms=",
            stacklevel=3,
        )
    if surgery.unfrozen:
        warnings.warn(
            f"{listed(dict.fromkeys(surgery.unfrozen, ''))}: were frozen; now they are drawn anew and train. "
            "exclude= keeps frozen layers as they are, keep_function=True keeps what the model computes",
            stacklevel=3,
        )
    started = plan.scheme.fixup or plan.classifier_init != "he"
    untied = [n for n in flow.dense_outputs if not is_tied(surgery.model.get_submodule(n), surgery.model)]
    if started and flow.classifier is None and untied:
        warnings.warn(
            f"several dense layers compute an output of {after.model}, so it is not clear which one "
            f"classifies: {listed(dict.fromkeys(untied, ''))} started by He, not at zero or small; "
            "scale the layer that computes your logits yourself",
            stacklevel=3,
        )
    removed = {change.module for change in surgery.changes if change.removed}
    on_skip = dict.fromkeys((name for name in flow.norms_on_skip if name in removed), "")
    if on_skip:
        warnings.warn(
            f"{listed(on_skip)}: the skip path went through these norms, where they do not bias blocks "
            "towards the identity (paper, section 7); they were removed, and the blocks are x + alpha f(x) "
            "now: a different architecture, which may need different hyperparameters",
            stacklevel=3,
        )
    doubtful = {block.add.name: block.add.doubt for block in surgery.blocks if block.add.doubt}
    if doubtful and plan.scheme.merge == "scale":
        shown = {name: f"doubtful: {doubt}" for name, doubt in doubtful.items()}
        warnings.warn(f"{listed(shown)}; scaled as blocks, exclude= leaves them alone", stacklevel=3)
    if plan.scheme.merge == "scale" and (plan.alpha == 0 or plan.scheme.fixup):
        chosen = {block.add.name for block in surgery.chosen}
        contributing = {
            r.name: f"{r.branch_share:.0%}" for r in after.rows if r.branch_share and r.name in chosen
        }
        known = {block.add.name for block in flow.blocks}
        for name in contributing_at_zero:
            if name not in known and name.partition("#")[0] in surgery.selection:
                contributing[name] = "in training"
        if after.first_nonfinite in chosen:
            contributing[after.first_nonfinite] = "NaN or infinity"
        origin, end = (
            ("Fixup's", "dense layer or convolution") if plan.scheme.fixup else ("SkipInit's", "module")
        )
        if contributing:
            warnings.warn(
                f"branches that contribute from the start, unlike {origin}: {listed(contributing)}; a deep "
                f"network may not train: end each in a {end} of its own that is used nowhere else",
                stacklevel=3,
            )
