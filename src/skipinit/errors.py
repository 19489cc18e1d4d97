"""Exceptions for mistakes of the user and for problems of the machine.

Each message is one line: what was given, what is allowed, what to do next. The command line prints
that line and exits with `exit_code`. A traceback always means a bug in this package.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec


def printable(text: str) -> str:
    """The text with line breaks and other control characters written as escapes."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


_LONGEST = 400
"""Characters of a message. Those of torch's compiler have pages of hints."""


def one_line(error: Exception) -> str:
    """The message of an error that torch or the user's code raised, without line breaks, shortened."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST].rpartition(' ')[0]} …"


class SkipinitError(Exception):
    """Base class of the errors that this package raises for its users: exit code 1."""

    exit_code = 1

    def __str__(self) -> str:
        """One line, even if a quoted name has line breaks."""
        return printable(super().__str__())


class ConfigError(SkipinitError, ValueError):
    """A value, name or combination of options is not allowed: exit code 2."""

    exit_code = 2


class DataError(SkipinitError):
    """A file or folder is missing, not accessible, damaged or of another format; the message names it."""


class MissingExtraError(ConfigError, ImportError):
    """An extra is not installed; the message has the `pip install` command."""


def unknown_name(kind: str, given: str, allowed: Iterable[str]) -> ConfigError:
    """The error for a name that is not in `allowed`; it suggests the nearest names."""
    names = list(allowed)
    near = difflib.get_close_matches(given, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
    return ConfigError(f"{kind} {given!r} is not known; {hint}")


EXTRAS = {
    "lab": ("jinja2", "matplotlib", "PIL", "platformdirs", "pooch", "sklearn"),
    "cluster": ("ray",),
    "onnx": ("onnx", "onnxscript"),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
}
"""The modules of each extra that this package imports; `pyproject.toml` lists their distributions."""


def need(extra: str, what: str) -> None:
    """Raise if a module of the extra is not installed. `what` needs it: a command, function or option."""
    missing = [module for module in EXTRAS[extra] if find_spec(module) is None]
    if missing:
        raise MissingExtraError(f"{what} needs {', '.join(missing)}; pip install 'skipinit[{extra}]'")


_WHAT_TO_DO = {
    errno.ENOSPC: "make room and run it again",
    errno.EDQUOT: "make room and run it again",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f) and run it again",
    errno.EIO: "the disk may be failing; copy what you need and run it again elsewhere",
    errno.EACCES: "change its permissions or give another path",
    errno.EPERM: "change its permissions or give another path",
    errno.EROFS: "give a path that can be written",
    errno.ENAMETOOLONG: "give a shorter path",
    errno.EMFILE: "raise the limit on open files (ulimit -n) and run it again",
    errno.ENOMEM: "close other programs, or use a smaller batch, and run it again",
}


def system_error(
    error: OSError, path: object = None, refused: str = "used", advice: str = "give another path"
) -> DataError:
    """An error of the operating system as one line that says what to do."""
    advice = _WHAT_TO_DO.get(error.errno or 0, advice)
    reason = error.strerror or error
    return DataError(f"{path or error.filename or 'a file'}: cannot be {refused} ({reason}); {advice}")


# How torch says so of a GPU, of the host, and of a size that 64 bits cannot count.
_NO_MEMORY = ("out of memory", "can't allocate memory", "Storage size calculation overflowed")


@contextmanager
def system_errors_explained() -> Iterator[None]:
    """Turn system errors into one line. Decorates the functions that users call.

    A path can fail at any system call, so this is done once, at the outermost function. A broken pipe is
    not a failure: its reader, such as `head`, has what it needs.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise system_error(error) from error
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(words in str(error) for words in _NO_MEMORY):
            raise
        raise SkipinitError("out of memory; use a smaller network or batch") from error
