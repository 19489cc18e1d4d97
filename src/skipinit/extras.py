"""What is installed on request: the extras of the package, and one line for what lacks one."""

from __future__ import annotations

from importlib.util import find_spec

from .errors import ConfigError

EXTRAS = {
    "lab": ("jinja2", "matplotlib", "PIL", "platformdirs", "pooch", "sklearn"),
    "cluster": ("ray",),
    "onnx": ("onnx", "onnxscript"),
    "tensorboard": ("tensorboard",),
}
"""The modules of each extra that this package imports itself; `pyproject.toml` has their distributions."""


class MissingExtraError(ConfigError, ImportError):
    """Something that needs an extra which is not installed; the message has the command that installs it."""


def need(extra: str, what: str) -> None:
    """Raise if a module of the extra is not installed. `what` needs it: a command, a function, an option."""
    missing = [module for module in EXTRAS[extra] if find_spec(module) is None]
    if missing:
        raise MissingExtraError(f"{what} needs {', '.join(missing)}; pip install 'skipinit[{extra}]'")
