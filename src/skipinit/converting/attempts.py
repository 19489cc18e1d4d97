"""Attempts at a surgery, each on a fresh copy of the model, until every scalar scales its whole branch.

Whether one does is not proved but tried: with every scalar at 0, no branch may contribute. Where one does,
the surgery is done again, with the scalar at the add, or without.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from ..errors import ConfigError, SkipinitError, one_line
from ..probing.adds import BRANCH_SCALAR
from ..probing.forward import copy_model, traced
from ..probing.inputs import Inputs
from ..probing.measure import StatisticsBuffer, report_of
from .branches import match_blocks
from .flow import WHOLE, Flow
from .plan import Plan, Selection
from .surgery import Corrections, Surgery


def operate(prepared: nn.Module, flow: Flow, plan: Plan, selection: Selection, inputs: Inputs) -> Surgery:
    """Change a copy of `prepared` until each scalar scales its whole branch; scalars move or are omitted."""
    corrections = Corrections()
    while True:
        surgery = Surgery(copy.deepcopy(prepared), flow, plan, selection, corrections)
        surgery.run()
        try:
            # A model may keep what it computed: the passes are those of a copy.
            contributing = _contributing_at_zero(copy_model(surgery.model), inputs, flow)
            surgery.contributing, surgery.in_training = contributing
        except ConfigError as error:
            if isinstance(error.__cause__, AttributeError) and not corrections.stand_ins:
                corrections.stand_ins = True  # The forward reads a norm's weight.
                continue
            if plan.biases and not (plan.keep_function or corrections.only_plain):
                corrections.only_plain = True
                continue
            reason = one_line(error.__cause__ if isinstance(error.__cause__, Exception) else error)
            raise SkipinitError(
                f"{type(prepared).__name__}: its forward fails without its norms ({reason}); "
                "exclude= leaves modules as they are"
            ) from error
        tails = {block.add.name for block in surgery.on_tail}
        sites = {block.add.name for block in surgery.on_site}
        if plan.scheme.merge != "scale" or not surgery.contributing & (tails | sites):
            return surgery
        corrections.at_the_add |= surgery.contributing & tails
        corrections.unscaled |= surgery.contributing & sites


@torch.no_grad()
def _contributing_at_zero(model: nn.Module, inputs: Inputs, flow: Flow) -> tuple[set[str], set[str]]:
    """The blocks whose branch adds something in one of the passes even when every scalar is 0.

    And the adds that do so in training, where the model has them in training alone.
    """
    contributing, in_training = set[str](), set[str]()
    everywhere: set[tuple[str, tuple[str, ...]]] = set()
    for run in flow.passes:
        gradients = run.mode == "training"
        with (
            run.prepared(model),
            branch_scalars_at(0.0, model),
            traced(model, inputs, run.mode, StatisticsBuffer(), gradients) as (tracer, _),
        ):
            report = report_of(tracer, model)
        found = zip(report.adds, match_blocks(flow.blocks, report.adds), report.rows, strict=True)
        for add, block, row in found:
            if run is WHOLE:
                everywhere.add((add.module, add.parameters))
            if row.branch_variance == 0:
                continue
            if block is not None:
                contributing.add(block.add.name)
            elif (add.module, add.parameters) not in everywhere:
                in_training.add(add.name)
    return contributing, in_training


@contextmanager
def branch_scalars_at(value: float, model: nn.Module) -> Iterator[None]:
    """Run the body with the scalar of every branch at that value."""
    scalars = [p for name, p in model.named_parameters() if name.endswith(BRANCH_SCALAR)]
    starts = [parameter.clone() for parameter in scalars]
    for parameter in scalars:
        parameter.fill_(value)
    try:
        yield
    finally:
        for parameter, start in zip(scalars, starts, strict=True):
            parameter.copy_(start)
