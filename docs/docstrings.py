"""Docstrings as Markdown: examples become blocks of code, roles of Sphinx are dropped.

Griffe, which reads the docstrings, calls the class (``extensions`` in mkdocs.yml).
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)
_ROLE = re.compile(r":(?:func|class|meth|mod|attr|data):(?=`)")


class Docstrings(griffe.Extension):
    """Rewrites every docstring before it is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(docstring: str) -> str:
    """A docstring whose examples stand in fences, and whose roles are gone."""
    return _ROLE.sub("", _EXAMPLE.sub(r"```pycon\n\g<0>\n```", docstring))
