"""Where a number came from: the machine, the versions, the commit; and how much of the machine is ours."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

from . import __version__


@dataclass(frozen=True)
class Provenance:
    """Where and with what something ran."""

    machine: str
    device: str
    versions: dict[str, str]
    commit: str | None

    @classmethod
    def here(cls, device: str) -> Provenance:
        """This machine, these versions, the commit of this package where it runs from a checkout."""
        machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
        versions = {
            "skipinit": __version__,
            "python": platform.python_version(),
            "torch": importlib.metadata.version("torch"),
        }
        return cls(machine, device, versions, source_commit())


def usable_cores() -> int:
    """Cores that this process may use: by its affinity, and by the quota of its container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # there is no such file, or it says `max`
        return cores


def source_commit() -> str | None:
    """The commit of the checkout this package is part of, with `-dirty` where it was changed.

    A copy sent to another machine without its repository is told by the variable SKIPINIT_COMMIT.
    """
    if told := os.environ.get("SKIPINIT_COMMIT"):
        return told
    here = Path(__file__).resolve()
    # An installed copy may lie inside a checkout of something else: it must be tracked to count.
    if _git(here.parent, "ls-files", "--error-unmatch", here.name) is None:
        return None
    commit = _git(here.parent, "rev-parse", "HEAD")
    changed = _git(here.parent, "status", "--porcelain", "--untracked-files=no", ".")
    return f"{commit}-dirty" if commit and changed else commit


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
