"""For mkdocstrings: examples of docstrings (`>>>`) as code; Markdown takes them for quotations."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class Doctests(griffe.Extension):
    """Fences each example."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """For every function and class that has a docstring."""
        if obj.docstring:
            obj.docstring.value = _EXAMPLE.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
