"""`skipinit report`."""

from __future__ import annotations

from pathlib import Path

from .reproduce import Folders, some_folders


def report(folders: Folders = (), out: Path = Path("report.html")) -> None:
    """Write one HTML file: tables, figures and claims of the paper beside what was measured.

    Args:
        folders: Folders that `reproduce` or `sweep` filled, or files that `store export` wrote.
        out: The file to write; it needs nothing else, not even a network.
    """
    from ..paper.collect import collect
    from ..report.page import write_report

    write_report(collect(some_folders(folders)), out)
    print(out)
