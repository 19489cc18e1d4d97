"""The command `skipinit`: parse, call, print. Torch is imported only by commands that compute."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from .. import __version__
from ..errors import SkipinitError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 ok, 1 failure, 2 usage, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["--version"]:
        print(f"skipinit {__version__}")
        return 0
    from .app import run

    try:
        return run(arguments or ["--help"])
    except SkipinitError as error:
        print(f"skipinit: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("skipinit: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe, such as head, has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
