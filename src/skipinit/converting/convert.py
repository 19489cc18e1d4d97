"""`convert`: remove normalization from any residual network, by the schemes of the paper."""

from __future__ import annotations

import copy
import warnings

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from ..errors import ConfigError, SkipinitError
from ..probing.balance import ProbeReport
from ..probing.forward import Inputs, check_model, example_inputs, one_line
from ..probing.measure import probe
from .changes import Conversion
from .flow import Flow, find_flow
from .folding import compare_outputs, finite_outputs
from .plan import make_plan
from .surgery import Surgery, disable_inplace, is_norm, unreached_norms


def convert(
    model: nn.Module,
    inputs: Inputs,
    *,
    scheme: str = "skipinit",
    keep_function: bool = False,
    alpha: float | None = None,
    biases: bool | None = None,
    dropout: float = 0.2,
    seed: int | None = None,
) -> Conversion:
    """Make a copy of `model` without normalization; the given model does not change.

    The new model, `.model` of the result, is freshly initialized, to be trained from scratch. With
    `keep_function` it computes what the given model computes in evaluation mode, to be fine-tuned: each batch
    norm is folded into the layer before it or becomes a scale and shift, and branch scalars start at 1.

    Args:
        model: any module with residual adds. Its forward may depend on the data.
        inputs: a tensor, a tuple or list of arguments, a dictionary of keyword arguments, or a shape as
            `torch.Size`, which stands for Gaussian values. The residual adds are found by running the model.
        scheme: "skipinit", "regularized-skipinit", "fixup", "fixup-dropout", "divide-sqrt2" or "none".
        keep_function: keep what a trained model computes.
        alpha: start of SkipInit's branch scalars; 0 by default, always 1 with `keep_function`.
        biases: whether every convolution gets a bias; by default what the scheme says.
        dropout: drop probability before the classifier, in the schemes that have it; the paper's are 0.2 for
            ImageNet and 0.6 for CIFAR.
        seed: draw the new weights from this seed and leave torch's generators alone; else draw from torch's.

    >>> model = skipinit.create_model("resnet50_v1", scheme="batchnorm")
    >>> conversion = skipinit.convert(model, torch.Size([2, 3, 64, 64]))
    >>> conversion.num_norms, conversion.num_blocks
    (53, 16)
    >>> conversion.model.blocks[0].branch.norm3.branch_alpha.item()
    0.0
    """
    plan = make_plan(scheme, keep_function, alpha, biases, dropout, seed)
    _check_convertible(model)
    inputs = example_inputs(model, inputs)
    converted = _copy(model)
    if not keep_function:
        disable_inplace(converted)
    flow = find_flow(converted, inputs)
    _check_flow(converted, flow, keep_function)
    before = probe(converted, inputs)
    expected = finite_outputs(converted, inputs) if keep_function else []
    surgery = Surgery(converted, flow, plan)
    surgery.run()
    difference = compare_outputs(converted, inputs, expected) if keep_function else None
    after = probe(converted, inputs)
    if plan.scheme.merge == "scale" and plan.alpha == 0:
        _check_identity(after, flow)
    unreached = unreached_norms(converted, flow.norms)
    _warn(unreached, flow, keep_function)
    return Conversion(
        model=converted,
        scheme=scheme,
        keep_function=keep_function,
        num_blocks=len(surgery.blocks),
        changes=tuple(surgery.changes),
        left=(*surgery.left, *(f"{name}, not reached by the inputs" for name in unreached)),
        difference=difference,
        before=before,
        after=after,
    )


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


def _copy(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        reason = f"{type(model).__name__} cannot be copied ({one_line(error)}); convert a fresh one"
        raise SkipinitError(reason) from error


def _check_flow(model: nn.Module, flow: Flow, keep_function: bool) -> None:
    name = type(model).__name__
    if not flow.blocks:
        raise SkipinitError(f"{name} has no residual add, x + f(x) with layers in f: nothing to scale")
    if not flow.norms:
        raise SkipinitError(
            f"{name} has no normalization that these inputs reach: there is nothing to remove"
        )
    if keep_function and not any(isinstance(model.get_submodule(norm), _BatchNorm) for norm in flow.norms):
        kind = type(model.get_submodule(flow.norms[0])).__name__
        raise SkipinitError(
            f"{name} has no batch norm to fold; {flow.norms[0]} ({kind}) normalizes each example by itself, "
            "which no scale and shift computes: use keep_function=False"
        )
    for norm in flow.norms:
        module = model.get_submodule(norm)
        removed = isinstance(module, _BatchNorm) if keep_function else is_norm(module)
        if removed and flow.calls[norm] > 1:
            raise SkipinitError(
                f"{name}: {norm} is used {flow.calls[norm]} times in one pass; give each place its own"
            )


def _check_identity(after: ProbeReport, flow: Flow) -> None:
    """With alpha = 0 no branch contributes anything; otherwise a scalar is in the wrong place."""
    tails = {block.add.name: block.tail for block in flow.blocks if not block.add.nested}
    for row in after.rows:
        if row.name in tails and row.branch_variance != 0:
            raise SkipinitError(
                f"{row.name}: what its branch adds does not all go through {tails[row.name]}; "
                "end the branch in one module, such as nn.Identity()"
            )


def _warn(unreached: list[str], flow: Flow, keep_function: bool) -> None:
    """Warn of what matters for training."""
    if unreached:
        names = ", ".join(unreached)
        warnings.warn(f"left as they are, since the inputs do not reach them: {names}", stacklevel=3)
    if flow.norms_on_skip and not keep_function:
        warnings.warn(
            f"{', '.join(flow.norms_on_skip)}: the skip path went through these norms, where none should be, "
            "since there they do not bias blocks towards the identity (paper, section 7); they were removed, "
            "and the blocks are x + alpha f(x) now, another architecture than the one that was tuned",
            stacklevel=3,
        )
