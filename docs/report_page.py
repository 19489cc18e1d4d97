"""A hook of MkDocs: the report of everything in `results/` as a page of the site, made when that is built."""

from __future__ import annotations

import tempfile
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import skipinit

_RESULTS = Path(__file__).parent.parent / "results"


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add `report.html`, as `skipinit report results results/*.jsonl` writes it."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        skipinit.report([_RESULTS, *sorted(_RESULTS.glob("*.jsonl"))], page)
        files.append(File.generated(config, page.name, content=page.read_text(encoding="utf-8")))
    return files
