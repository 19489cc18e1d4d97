"""Models that cannot be converted, each with its reason in one line; checked before anything is done."""

from __future__ import annotations

from torch import nn
from torch.jit import ScriptModule
from torch.nn.parameter import is_lazy

from ..errors import ConfigError


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
