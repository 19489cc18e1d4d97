"""The command `skipinit`: parse, call, print. Torch is imported only by commands that compute."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .. import __version__
from ..errors import SkipinitError, system_errors_explained

FAILED_TRIALS = 3
INTERRUPTED = 128 + signal.SIGINT


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code: 0 ok, 1 failure, 2 usage, 3 failed trials, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["--version"]:
        print(f"skipinit {__version__}")
        return 0
    # OpenMP threads spin while they wait. If another process uses one of their cores, everything takes three
    # times as long. A user who sets OMP_NUM_THREADS has free cores, where spinning is a little faster.
    if "OMP_NUM_THREADS" not in os.environ:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed, as by `>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - until the process ends
    for stream in (sys.stdout, sys.stderr):  # file names may contain bytes that are not Unicode
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        from .app import run  # here, so that Ctrl-C during the import also prints one line

        with system_errors_explained(), _no_interrupt_lost(), _warnings_of_one_line():
            code = run(arguments or ["--help"])
            sys.stdout.flush()  # here, so that a full disk changes the exit code
            return code
    except SkipinitError as error:
        print(f"skipinit: {error}", file=sys.stderr)
        code = error.exit_code
    except KeyboardInterrupt:
        print("skipinit: interrupted", file=sys.stderr)
        code = INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe, such as head, has left
        code = 0
    except SystemExit as stopped:  # rich makes this of a broken pipe, with code 1
        if not isinstance(stopped.__context__, BrokenPipeError):
            raise
        code = 0
    try:
        sys.stdout.flush()
    except OSError:  # the rest of the buffer cannot be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


@contextmanager
def _warnings_of_one_line() -> Iterator[None]:
    """Print warnings of this package as one line, without the source line that Python adds."""
    before = warnings.formatwarning

    def format_warning(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        if Path(filename).is_relative_to(Path(__file__).parents[1]):
            return f"skipinit: {message}\n"
        return before(message, category, filename, lineno, line)

    warnings.formatwarning = format_warning
    try:
        yield
    finally:
        warnings.formatwarning = before


@contextmanager
def _no_interrupt_lost() -> Iterator[None]:
    """Send Ctrl-C again if it arrived in a destructor, where Python reports and ignores exceptions."""
    before = sys.unraisablehook

    def send_again(raised: sys.UnraisableHookArgs) -> None:
        if isinstance(raised.exc_value, KeyboardInterrupt):
            main_thread = threading.main_thread().ident
            assert main_thread is not None, "it runs"
            # Later, because now it would arrive in the same destructor.
            threading.Timer(0.01, signal.pthread_kill, (main_thread, signal.SIGINT)).start()
        else:
            before(raised)

    sys.unraisablehook = send_again
    try:
        yield
    finally:
        sys.unraisablehook = before
