"""Where a number came from: machine, versions, commit. And how many cores this process may use."""

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
    """The machine, device, versions and commit of a run."""

    machine: str
    device: str
    versions: dict[str, str]
    commit: str | None

    @classmethod
    def here(cls, device: str) -> Provenance:
        """This machine and these versions, with the commit if the package runs from a checkout."""
        machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
        versions = {
            "skipinit": __version__,
            "python": platform.python_version(),
            "torch": importlib.metadata.version("torch"),
        }
        return cls(machine, device, versions, source_commit())


def usable_cores() -> int:
    """The number of cores that the affinity of this process and the quota of its container allow."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or no quota: `max`
        return cores


def source_commit() -> str | None:
    """The commit of the checkout that contains this package, with `-dirty` if files were changed.

    For a copy without its repository, set the variable SKIPINIT_COMMIT.
    """
    if given := os.environ.get("SKIPINIT_COMMIT"):
        return given
    here = Path(__file__).resolve()
    # An installed copy may be inside the checkout of another project, which does not track it.
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
