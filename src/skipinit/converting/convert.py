"""`convert`: take normalization out of any residual network, by the schemes of the paper."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Literal, overload

import torch
from torch import Tensor, nn
from torch.jit import ScriptModule
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from ..errors import ConfigError, SkipinitError
from ..nets.blocks import ResidualNet
from ..probing.balance import ProbeReport
from ..probing.forward import Batch
from ..probing.measure import probe
from .changes import ConversionReport
from .conversions import Plan, find_scheme
from .flow import Flow, trace
from .folding import largest_difference, outputs_in_evaluation, tolerance
from .surgery import Surgery, is_norm, unreached_norms, write_nowhere_in_place


def check_model(model: nn.Module) -> None:
    """Raise if this is no plain module with floating-point weights in memory."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"convert takes a torch.nn.Module; a {type(model).__name__} was given")
    name = type(model).__name__
    if hasattr(model, "_orig_mod"):
        raise ConfigError(f"{name} is a compiled model; convert the model first, then compile the result")
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise ConfigError(f"{name} wraps a model; convert its `.module`, then wrap the result")
    for path, module in model.named_modules():
        here = f"{name}: {path or 'the model itself'}"
        if isinstance(module, ScriptModule):
            raise ConfigError(f"{here} is scripted, its layers cannot be replaced; convert the Python module")
        if ".quantized" in type(module).__module__:
            raise ConfigError(f"{here} is quantized; convert the floating-point model, then quantize that")
    for path, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise ConfigError(f"{name}: {path} has no shape yet; run the model on a batch once, then convert")
        if tensor.is_meta:
            raise ConfigError(
                f"{name}: {path} is on the meta device and has no values; "
                "load the weights (model.to_empty, load_state_dict), then convert"
            )
    for path, tensor in model.named_parameters():
        if not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise ConfigError(f"{name}: {path} is quantized ({kind}); convert the floating-point model")


@overload
def convert(
    model: nn.Module,
    batch: Batch | tuple[int, ...] | None = ...,
    *,
    scheme: str = ...,
    keep_function: bool = ...,
    report: Literal[False] = ...,
    alpha: float | None = ...,
    biases: bool | None = ...,
    dropout: float = ...,
    seed: int | None = ...,
) -> nn.Module: ...


@overload
def convert(
    model: nn.Module,
    batch: Batch | tuple[int, ...] | None = ...,
    *,
    scheme: str = ...,
    keep_function: bool = ...,
    report: Literal[True],
    alpha: float | None = ...,
    biases: bool | None = ...,
    dropout: float = ...,
    seed: int | None = ...,
) -> tuple[nn.Module, ConversionReport]: ...


def convert(
    model: nn.Module,
    batch: Batch | tuple[int, ...] | None = None,
    *,
    scheme: str = "skipinit",
    keep_function: bool = False,
    report: bool = False,
    alpha: float | None = None,
    biases: bool | None = None,
    dropout: float = 0.2,
    seed: int | None = None,
) -> nn.Module | tuple[nn.Module, ConversionReport]:
    """A new model without normalization; the given one is not touched.

    The result is freshly initialized, to be trained from the start. With `keep_function` it computes what the
    given model computes in evaluation mode, to be trained on: batch norm is folded into the layer before it
    or becomes a scale and shift per channel, and branch scalars start at 1.

    Args:
        model: any module with residual adds; what it calls in its forward may depend on the data.
        batch: an example of its input, or the shape of one: the residual adds are found by running the model.
        scheme: one of `skipinit.converting.schemes.CONVERSIONS`.
        keep_function: keep what a trained model computes.
        report: also return a `ConversionReport`.
        alpha: start of the branch scalars of SkipInit; 0 by default, always 1 with `keep_function`.
        biases: whether every convolution gets a bias; by default what the scheme says.
        dropout: drop probability before the classifier, in the schemes that have it; the paper's are 0.2 for
            ImageNet and 0.6 for CIFAR.
        seed: draw the new weights from this seed and leave torch's generators alone; else draw from torch's.
    """
    plan = _plan(scheme, keep_function, alpha, biases, dropout, seed)
    check_model(model)
    inputs = _example(model, batch)
    converted = _copy(model)
    if not keep_function:
        write_nowhere_in_place(converted)
    flow = trace(converted, inputs)
    _check_flow(converted, flow, keep_function)
    before = probe(converted, inputs) if report else None
    expected = _finite_outputs(converted, inputs) if keep_function else []
    surgery = Surgery(converted, flow, plan)
    surgery.run()
    difference = _compare(converted, inputs, expected) if keep_function else None
    after = _probe(converted, inputs)
    if plan.scheme.merge == "scale" and plan.alpha == 0:
        _check_identity(after, flow)
    unreached = unreached_norms(converted, flow.norms)
    _warn(unreached, flow, keep_function)
    if not report:
        return converted
    assert before is not None
    return converted, ConversionReport(
        model=type(model).__name__,
        scheme=scheme,
        keep_function=keep_function,
        num_blocks=len(surgery.blocks),
        changes=tuple(surgery.changes),
        left=(*surgery.left, *(f"{name}, not reached by the batch" for name in unreached)),
        difference=difference,
        before=before,
        after=after,
    )


def _plan(
    scheme: str,
    keep_function: bool,
    alpha: float | None,
    biases: bool | None,
    dropout: float,
    seed: int | None,
) -> Plan:
    found = find_scheme(scheme, keep_function)
    if alpha is not None:
        if not found.alpha_is_free or keep_function:
            why = "with keep_function it is 1" if found.alpha_is_free else "it belongs to SkipInit"
            raise ConfigError(f"alpha {alpha} is not allowed for scheme {scheme!r}; {why}")
        if not (isinstance(alpha, (int, float)) and math.isfinite(alpha)):
            raise ConfigError(f"alpha {alpha!r} is not allowed; it must be a finite number")
    if not (isinstance(dropout, (int, float)) and 0 <= dropout < 1):
        raise ConfigError(f"dropout {dropout!r} is not allowed; it must be in [0, 1)")
    if seed is not None and type(seed) is not int:
        raise ConfigError(f"seed {seed!r} is not allowed; it must be a whole number")
    start = 1.0 if keep_function or found.alpha is None else found.alpha
    biased = found.conv_biases != "never" if biases is None else biases
    return Plan(found, keep_function, start if alpha is None else float(alpha), biased, dropout, seed)


def _example(model: nn.Module, batch: Batch | tuple[int, ...] | None) -> Batch:
    """The batch, or Gaussian values of its shape; a network of this package says itself what it takes."""
    name = type(model).__name__
    if batch is None:
        if not isinstance(model, ResidualNet):
            raise ConfigError(
                f"{name}: give an example of its input, or the shape of one, as in "
                "convert(model, batch=(2, 3, 224, 224)): residual adds are found by running the model"
            )
        batch = (4, model.in_channels, 32, 32)[: model.in_axes]
    if not (isinstance(batch, tuple) and batch and all(type(size) is int for size in batch)):
        return batch
    if min(batch) < 1:
        raise ConfigError(f"batch {batch} is not a shape; its sizes must be 1 or more")
    like = next(model.parameters(), torch.empty(()))
    generator = torch.Generator().manual_seed(0)
    values: Tensor = torch.randn(batch, generator=generator).to(like)
    return values


def _copy(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        reason = " ".join(str(error).split())
        name = type(model).__name__
        raise SkipinitError(f"{name} cannot be copied ({reason}); convert a fresh one") from error


def _check_flow(model: nn.Module, flow: Flow, keep_function: bool) -> None:
    name = type(model).__name__
    if not flow.blocks:
        raise SkipinitError(f"{name} has no residual add, x + f(x) with layers in f: nothing to scale")
    if not flow.norms:
        raise SkipinitError(f"{name} has no normalization on this batch's way: there is nothing to remove")
    if keep_function and not any(isinstance(model.get_submodule(norm), _BatchNorm) for norm in flow.norms):
        kind = type(model.get_submodule(flow.norms[0])).__name__
        raise SkipinitError(
            f"{name} has no batch norm to fold; {flow.norms[0]} ({kind}) normalizes each example by itself, "
            "which no scale and shift computes: use keep_function=False"
        )
    for norm in flow.norms:
        module = model.get_submodule(norm)
        goes = isinstance(module, _BatchNorm) if keep_function else is_norm(module)
        if goes and flow.calls[norm] > 1:
            raise SkipinitError(
                f"{name}: {norm} is used {flow.calls[norm]} times in one pass; give each place its own"
            )


def _finite_outputs(model: nn.Module, inputs: Batch) -> list[Tensor]:
    outputs = outputs_in_evaluation(model, inputs)
    if not all(bool(output.isfinite().all()) for output in outputs):
        raise SkipinitError(
            f"{type(model).__name__} gives NaN or infinity in evaluation mode: there is no function to keep; "
            "its running statistics do not fit: train it first, or use keep_function=False"
        )
    return outputs


def _compare(model: nn.Module, inputs: Batch, expected: list[Tensor]) -> float:
    outputs = outputs_in_evaluation(model, inputs)
    difference = largest_difference(outputs, expected)
    if not difference <= tolerance(expected):
        raise SkipinitError(
            f"{type(model).__name__}: its outputs would change by {difference:.1e} of the largest; it uses "
            "its norms in a way that a scale and shift cannot keep: use keep_function=False"
        )
    return difference


def _probe(model: nn.Module, inputs: Batch) -> ProbeReport:
    """Without a norm a shallow branch may not count as one any more; then there is nothing to show."""
    try:
        return probe(model, inputs)
    except ConfigError:
        raise
    except SkipinitError:
        return ProbeReport(type(model).__name__, (), (), 0)


def _check_identity(after: ProbeReport, flow: Flow) -> None:
    """With alpha = 0 no branch gives anything: otherwise a scalar sits in the wrong place."""
    tails = {block.add.name: block.tail for block in flow.blocks if not block.add.nested}
    for row in after.rows:
        if row.name in tails and row.branch_variance != 0:
            raise SkipinitError(
                f"{row.name}: what its branch adds does not all go through {tails[row.name]}; "
                "end the branch in one module, such as nn.Identity()"
            )


def _warn(unreached: list[str], flow: Flow, keep_function: bool) -> None:
    """Say aloud what matters for training."""
    if unreached:
        names = ", ".join(unreached)
        warnings.warn(f"left as they are, since the batch does not reach them: {names}", stacklevel=3)
    if flow.norms_on_skip and not keep_function:
        warnings.warn(
            f"{', '.join(flow.norms_on_skip)}: the skip path went through these norms, where none should be, "
            "since there they do not bias blocks towards the identity (paper, section 7); they are gone, and "
            "the blocks are x + alpha f(x) now, another architecture than the one that was tuned",
            stacklevel=3,
        )
