"""The paper's own LaTeX source, where it is at hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

PAPER = Path(os.environ.get("SKIPINIT_PAPER", Path(__file__).parents[3] / "shared" / "paper" / "paper.tex"))

needs_paper = pytest.mark.skipif(
    not PAPER.is_file(), reason="the paper's source is not here; set SKIPINIT_PAPER"
)
