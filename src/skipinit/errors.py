"""What a user can get wrong, as one family of exceptions.

Each message is one line: what was given, what is allowed, what to do next. The command line prints
that line and exits with `exit_code`; a traceback means a defect of ours, never a mistake of theirs.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SkipinitError(Exception):
    """A failure that the user can understand and mend: exit code 1."""

    exit_code = 1


class ConfigError(SkipinitError, ValueError):
    """A value, name or combination that is not allowed: exit code 2."""

    exit_code = 2


class DataError(SkipinitError):
    """A file or folder that is missing, damaged or foreign; the message names it."""


def unknown_name(kind: str, given: str, allowed: Iterable[str]) -> ConfigError:
    """The error for a name that is not in `allowed`, with the nearest ones that are."""
    names = list(allowed)
    near = difflib.get_close_matches(given, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
    return ConfigError(f"{kind} {given!r} is not known; {hint}")
