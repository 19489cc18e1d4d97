"""`convert`: train any residual network without normalization, by the schemes of the paper.

This module is the order of the steps, and what is refused before them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..errors import ConfigError, SkipinitError
from ..probing.forward import check_model, check_values, copy_model
from ..probing.inputs import Inputs, example_inputs
from ..probing.measure import measure_with_outputs
from ..probing.tensors import local_part, tensors_in
from .attempts import operate
from .changes import Conversion
from .first_signal import start_outputs, start_raw_inputs, start_streams
from .flow import Flow, find_flow
from .initialization import start_fixup
from .norms import unreached_norms
from .plan import Choice, ClassifierStart, Plan, Selection, make_plan, make_selection
from .remarks import listed, remarks
from .removal import (
    check_finite,
    floating_tensors,
    in_double,
    largest_difference,
    rounding_tolerance,
    why_not_folded,
)
from .surgery import Surgery


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

    A model without normalization gets the scalars that it lacks.

    A warning names each branch that still contributes at the start, each norm that stayed, and each doubtful
    add.

    Args:
        model: any module with residual adds. Its forward may depend on the data.
        inputs: a tensor, a tuple or list of arguments or a batch of a data loader, a dictionary of keyword
            arguments, or a shape, which stands for Gaussian values. The residual adds are found by running
            the model.
        scheme: "skipinit", "regularized-skipinit", "fixup", "fixup-dropout", "divide-sqrt2" or "none".
        keep_function: keep the outputs of a trained model in evaluation mode.
        alpha: initial value of SkipInit's branch scalars; 0 by default, always 1 with `keep_function`.
        biases: whether every convolution gets a bias; by default the scheme decides. With
            `keep_function`, layers into which a norm is folded get one.
        dropout: drop probability before the classifier, in the schemes that have it; the paper's are 0.2 for
            ImageNet and 0.6 for CIFAR.
        classifier_init: initialization of SkipInit's last dense layer, or of the last convolution if no dense
            layer computes the output: "he" as everywhere else, "zero", or "small", He scaled down until the
            outputs have a standard deviation of 1 on these inputs. Then the first loss is that of chance.
        exclude: modules to leave unchanged, with everything inside them: names, in which * matches any text,
            or types.
        only: change nothing outside of these modules.
        norms: your own module types that only normalize. Needed if the class name does not contain "norm", or
            if the forward neither calls a norm of torch nor divides by a standard deviation or vector norm.
        strict: raise an error instead of leaving a branch without its scalar or a norm in its place.
        seed: seed of the new weights. Without it, torch's global generators draw them.

    >>> model = skipinit.create_model("resnet50_v1", scheme="batchnorm")
    >>> conversion = skipinit.convert(model, (2, 3, 64, 64))
    >>> conversion.num_norms, conversion.num_blocks
    (53, 16)
    >>> conversion.model.blocks[0].branch.norm3.branch_alpha.item()
    0.0
    """
    plan = make_plan(scheme, keep_function, alpha, biases, dropout, seed, classifier_init)
    _check_convertible(model)
    selection = make_selection(model, exclude, only, norms)
    inputs = example_inputs(model, inputs)
    prepared = copy_model(model)
    if not keep_function:
        _disable_inplace(prepared)
    tried = copy_model(prepared)  # A model may keep what it computed.
    with _OwnWeights(model, tried):
        flow = find_flow(tried, inputs, selection.norms)
    del tried  # It is as large as the model.
    _check_flow(prepared, flow, selection, plan)
    before, expected = flow.report, list[Tensor]()
    if keep_function:
        before, outputs = measure_with_outputs(prepared, inputs, "evaluation")
        expected = floating_tensors(outputs)
        check_finite(expected, before.model)
    surgery = operate(prepared, flow, plan, selection, inputs)
    unreached = unreached_norms(surgery.model, flow.norms, selection.norms)
    left = surgery.left | {name: "not reached by the inputs" for name in unreached if name in selection}
    if strict and left:
        raise SkipinitError(f"{type(model).__name__}: {listed(left)}")
    if not keep_function:
        _start(surgery, inputs)
    after, outputs = measure_with_outputs(surgery.model, inputs, "evaluation" if keep_function else "whole")
    after = replace(after, model=before.model)
    difference = largest_difference(floating_tensors(outputs), expected) if expected else None
    if difference is not None and not difference <= rounding_tolerance(expected):
        surgery.remarks.append(_rounding_alone(model, inputs, plan, selection, difference, expected))
    more = remarks(surgery, left, after, floating_tensors(outputs), compared=difference is not None)
    for remark in (*surgery.remarks, *more):
        warnings.warn(remark, stacklevel=2)
    return Conversion(
        model=surgery.model,
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


def _check_convertible(model: nn.Module) -> None:
    """Raise if this is not a plain module with floating-point weights in memory."""
    check_model(model)
    name = type(model).__name__
    if torch.is_inference_mode_enabled():
        raise ConfigError(
            "convert makes parameters that are to train; call it outside torch.inference_mode()"
        )
    if hasattr(model, "_orig_mod"):
        raise ConfigError(f"{name} is a compiled model; convert the model first, then compile the result")
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise ConfigError(f"{name} wraps a model; convert its `.module`, then wrap the result")
    for path, module in model.named_modules():
        # `FloatFunctional` adds floating-point values, in a model that is to be quantized later.
        floating = type(module).__name__.endswith("FloatFunctional")
        here = f"{name}: {path or 'the model itself'}"
        if ".quantized" in type(module).__module__ and not floating:
            raise ConfigError(f"{here} is quantized; convert the floating-point model, then quantize that")
        if type(module).__module__.endswith((".fake_quantize", ".observer")):
            raise ConfigError(f"{here} prepares a quantization; convert the model before you prepare it")
    check_values(model)
    for path, tensor in model.named_parameters():
        if local_part(tensor) is not tensor:
            spread = f"{path} is a DTensor, spread over processes"
            raise ConfigError(f"{name}: {spread}; convert the model before you shard or parallelize it")
        if not (tensor.is_floating_point() or tensor.is_complex()):
            kind = str(tensor.dtype).removeprefix("torch.")
            raise ConfigError(f"{name}: {path} is quantized ({kind}); convert the floating-point model")


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
    if plan.keep_function and not flow.foldable:
        first = flow.norms[0]
        why = f"{first or name}: {why_not_folded(model.get_submodule(first), first in flow.over_batch)}"
        raise SkipinitError(f"{name} has no batch norm to fold; {why}; use keep_function=False")


class _OwnWeights(TorchFunctionMode):
    """Raises if a copy of a model reads parameters of the model itself, which its training would not change.

    A copy of a function refers to what the function does: a wrapper around `model.forward` calls the model.
    """

    def __init__(self, model: nn.Module, copied: nn.Module) -> None:
        super().__init__()
        own = {id(parameter) for parameter in copied.parameters()}
        self._model = type(model).__name__
        self._others = {id(p): name for name, p in model.named_parameters() if id(p) not in own}

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the function if what it reads is the copy's. Attributes, such as a device, are no values."""
        kwargs = kwargs or {}
        if getattr(function, "__name__", "") != "__get__":
            for tensor in tensors_in((*args, *kwargs.values())):
                if id(tensor) in self._others:
                    raise SkipinitError(
                        f"{self._model}: a copy of it still computes with {self._others[id(tensor)]} of the "
                        "model itself, because a function in it refers to the model, such as a wrapped "
                        "forward; convert the model before you wrap it, or make the function a method"
                    )
        return function(*args, **kwargs)


def _disable_inplace(model: nn.Module) -> None:
    """Without the norm before it, an in-place activation would write into the skip."""
    for module in model.modules():
        if getattr(module, "inplace", False) is True:
            module.inplace = False  # type: ignore[assignment]


def _start(surgery: Surgery, inputs: Inputs) -> None:
    """Bring weights and signal to where training starts."""
    if surgery.plan.scheme.fixup:
        start_fixup(surgery.model, surgery.blocks, surgery.flow.classifier, surgery.selection, inputs)
    start_streams(surgery, inputs)
    start_raw_inputs(surgery, inputs)
    start_outputs(surgery, inputs)


def _rounding_alone(
    model: nn.Module,
    inputs: Inputs,
    plan: Plan,
    selection: Selection,
    difference: float,
    expected: Sequence[Tensor],
) -> str:
    """The remark that rounding changed the outputs; raises if more did.

    In float64 rounding errors vanish, a mistake does not.
    """
    name = type(model).__name__
    exact = math.inf
    if all(output.dtype is not torch.float64 for output in expected):
        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            double = convert(
                in_double(model),
                in_double(inputs),
                scheme=plan.scheme.name,
                keep_function=True,
                dropout=plan.dropout,
                exclude=selection.exclude,
                only=selection.only,
                norms=selection.norms,
            )
            exact = double.difference or 0.0
    change = "in shape" if difference == math.inf else f"by {difference:.1e} of the largest"
    if exact == math.inf:
        raise SkipinitError(
            f"{name}: its outputs would change {change}; it uses "
            "its norms in a way that a scale and shift cannot keep: use keep_function=False"
        )
    return (
        f"{name} amplifies rounding errors: its outputs change {change}, "
        f"in float64 by {exact:.1e}; a trained network amplifies them less"
    )
