"""`convert`: train any residual network without normalization, by the schemes of the paper."""

from __future__ import annotations

import copy
import math
import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConfigError, SkipinitError, one_line
from ..probing.adds import BRANCH_SCALAR
from ..probing.forward import Inputs, check_model, check_values, example_inputs
from ..probing.measure import measure, measure_with_outputs
from ..probing.tensors import tensors_in
from .changes import Conversion
from .first_outputs import start_outputs
from .fixup import start_fixup
from .flow import Flow, find_flow
from .folding import (
    check_finite,
    floating_tensors,
    in_double,
    is_batch_norm,
    largest_difference,
    rounding_tolerance,
)
from .passes import WHOLE, Pass
from .plan import Choice, ClassifierStart, Plan, Selection, as_choices, make_plan, make_selection
from .raw_inputs import start_raw_inputs
from .remarks import listed, warn_of_exceptions
from .removal import unreached_norms, why_not_folded
from .streams import start_streams
from .surgery import Surgery, disable_inplace


def convert(
    model: nn.Module,
    inputs: Inputs,
    *,
    scheme: str = "skipinit",
    keep_function: bool = False,
    alpha: float | None = None,
    biases: bool | None = None,
    dropout: float = 0.2,
    classifier_init: ClassifierStart = "small",
    exclude: Choice | Sequence[Choice] = (),
    only: Choice | Sequence[Choice] = (),
    norms: type[nn.Module] | Sequence[type[nn.Module]] = (),
    strict: bool = False,
    seed: int | None = None,
) -> Conversion:
    """Make a copy of `model` without normalization; the given model does not change.

    The new model, `.model` of the result, is freshly initialized, to be trained from scratch. With
    `keep_function` it computes what the given model computes in evaluation mode, to be fine-tuned: each batch
    norm is folded into the layer before it or becomes a scale and shift, and branch scalars start at 1.

    A model that has no normalization, and explodes, gets the scalars that it lacks.

    A warning names each branch that still contributes at the start, each norm that stayed, and each doubtful
    add.

    Args:
        model: any module with residual adds. Its forward may depend on the data.
        inputs: a tensor, a tuple or list of arguments or a batch of a data loader, a dictionary of keyword
            arguments, or a shape, which stands for Gaussian values. The residual adds are found by running
            the model.
        scheme: "skipinit", "regularized-skipinit", "fixup", "fixup-dropout", "divide-sqrt2" or "none".
        keep_function: keep what a trained model computes.
        alpha: start of SkipInit's branch scalars; 0 by default, always 1 with `keep_function`.
        biases: whether every convolution gets a bias; by default what the scheme says.
        dropout: drop probability before the classifier, in the schemes that have it; the paper's are 0.2 for
            ImageNet and 0.6 for CIFAR.
        classifier_init: start of SkipInit's last dense layer, or of the last convolution if no dense layer
            computes the output: "he" as everywhere else, "zero", or "small", He scaled down until the outputs
            have a standard deviation of 1 on these inputs. Then the first loss is that of chance.
        exclude: modules to leave as they are, with everything inside them: names, in which * matches any
            text, or types.
        only: change nothing outside of these modules.
        norms: your own module types that only normalize. Needed if the class name does not contain "norm", or
            if the forward neither calls a norm of torch nor uses rsqrt.
        strict: raise an error instead of leaving a branch without its scalar or a norm in its place.
        seed: seed of the new weights; torch's generators stay as they are. Without it they draw the weights.

    >>> model = skipinit.create_model("resnet50_v1", scheme="batchnorm")
    >>> conversion = skipinit.convert(model, (2, 3, 64, 64))
    >>> conversion.num_norms, conversion.num_blocks
    (53, 16)
    >>> conversion.model.blocks[0].branch.norm3.branch_alpha.item()
    0.0
    """
    plan = make_plan(scheme, keep_function, alpha, biases, dropout, seed, classifier_init)
    _check_convertible(model)
    selection = make_selection(model, exclude, only)
    norm_types = _check_norms(norms)
    inputs = example_inputs(model, inputs)
    prepared = _copy(model)
    if not keep_function:
        disable_inplace(prepared)
    flow = find_flow(prepared, inputs, norm_types)
    _check_flow(prepared, flow, selection, plan)
    before, expected = flow.report, list[Tensor]()
    if keep_function:
        before, outputs = measure_with_outputs(prepared, inputs, "evaluation")
        expected = floating_tensors(outputs)
        check_finite(expected, before.model)
    surgery, contributing = _operate(prepared, flow, plan, selection, norm_types, inputs)
    converted = surgery.model
    if strict and surgery.left:
        raise SkipinitError(f"{type(model).__name__}: {listed(surgery.left)}")
    if plan.scheme.fixup:
        start_fixup(surgery, inputs)
    if not keep_function:
        start_streams(surgery, inputs)
        start_raw_inputs(surgery, inputs)
        start_outputs(surgery, inputs)
    after, outputs = measure_with_outputs(converted, inputs, "evaluation" if keep_function else "whole")
    after = replace(after, model=before.model)
    difference = largest_difference(floating_tensors(outputs), expected) if expected else None
    if difference is not None and not difference <= rounding_tolerance(expected):
        options = {"scheme": scheme, "biases": biases, "dropout": dropout, "exclude": exclude, "only": only}
        _check_in_double(model, inputs, difference, expected, **options)
    unreached = [name for name in unreached_norms(converted, flow.norms) if name in selection]
    left = surgery.left | dict.fromkeys(unreached, "not reached by the inputs")
    warn_of_exceptions(after, flow, surgery, left, plan, contributing, compared=difference is not None)
    return Conversion(
        model=converted,
        scheme=scheme,
        keep_function=keep_function,
        num_blocks=len(surgery.blocks),
        changes=tuple(surgery.changes),
        left=tuple(f"{name}, {reason}" for name, reason in left.items()),
        kept=tuple(surgery.kept),
        difference=difference,
        before=before,
        after=after,
    )


def _operate(
    prepared: nn.Module,
    flow: Flow,
    plan: Plan,
    selection: Selection,
    norm_types: tuple[type[nn.Module], ...],
    inputs: Inputs,
) -> tuple[Surgery, set[str]]:
    """Change a copy, and check that each scalar scales its whole branch; otherwise move or omit the scalar.

    Also returns the blocks whose branch contributes although every scalar is 0.
    """
    at_the_add, unscaled, stand_ins = set[str](), set[str](), False
    while True:
        model = copy.deepcopy(prepared)
        surgery = Surgery(model, flow, plan, selection, norm_types, at_the_add, unscaled, stand_ins)
        surgery.run()
        try:
            contributing = _contributing_at_zero(model, inputs, flow.passes)
        except ConfigError as error:
            if isinstance(error.__cause__, AttributeError) and not stand_ins:
                stand_ins = True  # The forward reads a norm's weight.
                continue
            reason = one_line(error.__cause__ if isinstance(error.__cause__, Exception) else error)
            raise SkipinitError(
                f"{type(prepared).__name__}: its forward fails without its norms ({reason}); "
                "exclude= leaves modules as they are"
            ) from error
        tails = {block.add.name for block in surgery.on_tail}
        sites = {block.add.name for block in surgery.on_site}
        if plan.scheme.merge != "scale" or not contributing & (tails | sites):
            return surgery, contributing
        at_the_add |= contributing & tails
        unscaled |= contributing & sites


def _check_convertible(model: nn.Module) -> None:
    """Raise if this is not a plain module with floating-point weights in memory."""
    check_model(model)
    name = type(model).__name__
    if hasattr(model, "_orig_mod"):
        raise ConfigError(f"{name} is a compiled model; convert the model first, then compile the result")
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise ConfigError(f"{name} wraps a model; convert its `.module`, then wrap the result")
    for path, module in model.named_modules():
        if ".quantized" in type(module).__module__:
            here = f"{name}: {path or 'the model itself'}"
            raise ConfigError(f"{here} is quantized; convert the floating-point model, then quantize that")
    check_values(model)
    for path, tensor in model.named_parameters():
        if not (tensor.is_floating_point() or tensor.is_complex()):
            kind = str(tensor.dtype).removeprefix("torch.")
            raise ConfigError(f"{name}: {path} is quantized ({kind}); convert the floating-point model")


def _copy(model: nn.Module) -> nn.Module:
    # A model may hold activations of its last forward, which `deepcopy` refuses because of their graph.
    held = (tensor for module in model.modules() for tensor in tensors_in(vars(module)))
    activations: dict[int, Any] = {id(tensor): tensor.detach() for tensor in held if not tensor.is_leaf}
    try:
        return copy.deepcopy(model, activations)
    except Exception as error:
        reason = f"{type(model).__name__} cannot be copied ({one_line(error)}); convert a fresh one"
        raise SkipinitError(reason) from error


def _check_flow(model: nn.Module, flow: Flow, selection: Selection, plan: Plan) -> None:
    name = type(model).__name__
    if not flow.blocks:
        raise SkipinitError(f"{name} has no residual add, x + f(x) with layers in f: nothing to scale")
    if not flow.norms:
        unnormalized = f"{name} has no normalization that these inputs reach (norms= names types of your own)"
        if plan.keep_function:
            raise SkipinitError(f"{unnormalized}: there is nothing to fold; use keep_function=False")
        if plan.scheme.merge == "scale" and all(block.add.scale for block in flow.blocks):
            raise SkipinitError(f"{unnormalized}, and a learned scale ends every branch: nothing to convert")
    if not any(name in selection for name in (*flow.norms, *(block.add.module for block in flow.blocks))):
        raise SkipinitError(f"{name}: exclude= and only= leave no norm and no residual add to convert")
    if plan.keep_function and not any(is_batch_norm(model.get_submodule(norm)) for norm in flow.norms):
        first = flow.norms[0]
        why = why_not_folded(model.get_submodule(first), first in flow.over_batch)
        raise SkipinitError(f"{name} has no batch norm to fold; {first}: {why}; use keep_function=False")


def _check_norms(norms: type[nn.Module] | Sequence[type[nn.Module]]) -> tuple[type[nn.Module], ...]:
    types = as_choices(norms)
    for kind in types:
        if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
            raise ConfigError(f"norms {kind!r} is not a type of module")
    return types


def _contributing_at_zero(model: nn.Module, inputs: Inputs, passes: Iterable[Pass]) -> set[str]:
    """The blocks whose branch adds something in one of these passes even when every scalar is 0."""
    contributing, names = set[str](), defaultdict[tuple[str, tuple[str, ...]], set[str]](set)
    scalars = [p for name, p in model.named_parameters() if name.endswith(BRANCH_SCALAR)]
    values = [scalar.detach().clone() for scalar in scalars]
    with torch.no_grad():
        for scalar in scalars:
            scalar.zero_()
        for run in passes:
            with run.prepared(model):
                report = measure(model, inputs, run.mode)
            for add, row in zip(report.adds, report.rows, strict=True):
                block = add.module, add.parameters
                if run is WHOLE:
                    names[block].add(add.name)
                if row.branch_variance != 0:
                    # Where layers are dropped, the next block has the number of the one that is missing.
                    contributing |= {add.name} if run is WHOLE else names.get(block, {add.name})
        for scalar, value in zip(scalars, values, strict=True):
            scalar.copy_(value)
    return contributing


def _check_in_double(
    model: nn.Module, inputs: Inputs, difference: float, expected: Sequence[Tensor], **options: Any
) -> None:
    """Raise if more than rounding changed: in float64 rounding errors vanish, a mistake does not."""
    name = type(model).__name__
    exact = math.inf
    if all(output.dtype is not torch.float64 for output in expected):
        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            double = convert(in_double(model), in_double(inputs), keep_function=True, **options)
            exact = double.difference or 0.0
    if exact == math.inf:
        raise SkipinitError(
            f"{name}: its outputs would change by {difference:.1e} of the largest; it uses "
            "its norms in a way that a scale and shift cannot keep: use keep_function=False"
        )
    warnings.warn(
        f"{name} amplifies rounding errors: its outputs change by {difference:.1e} of the largest, "
        f"in float64 by {exact:.1e}; a trained network amplifies them less",
        stacklevel=4,
    )
