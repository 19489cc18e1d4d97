"""For mkdocstrings: what Python's docstrings and defaults say, as a reader of the reference needs it."""

from __future__ import annotations

import ast
import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class Doctests(griffe.Extension):
    """Fences each example (`>>>`), which Markdown takes for a quotation."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """For every function and class that has a docstring."""
        if obj.docstring:
            obj.docstring.value = _EXAMPLE.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)


class Options(griffe.Extension):
    """Gives a field that `option` declares the default and, as docstring, the help that stand in the call."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """For every field, before the signature of its class is made."""
        call = attr.value
        if isinstance(call, griffe.ExprCall) and str(call.function) == "option":
            text, *default = (each for each in call.arguments if not isinstance(each, griffe.ExprKeyword))
            attr.docstring = griffe.Docstring(ast.literal_eval(str(text)), parent=attr)
            attr.value = default[0] if default else None
