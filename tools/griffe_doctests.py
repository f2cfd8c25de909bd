"""A Griffe extension: the doctests of a docstring are shown as code on the reference pages.

Markdown reads the prompt `>>>` as three nested quotes, so each doctest gets a fence with the language pycon.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

DOCTEST = re.compile(r"^ *>>> .*(?:\n *\S.*)*", re.MULTILINE)
"""From the first prompt to the next empty line."""


def fenced(docstring: str) -> str:
    """The docstring with a fence around each doctest, which may be indented.

    >>> print(fenced("Double.\\n\\n    >>> 2 * 3\\n    6"))
    Double.
    <BLANKLINE>
        ```pycon
        >>> 2 * 3
        6
        ```
    """
    return DOCTEST.sub(_fence, docstring)


def _fence(found: re.Match[str]) -> str:
    code = textwrap.dedent(found[0])
    return textwrap.indent(f"```pycon\n{code}\n```", found[0][: found[0].index(">")])


class FencedDoctests(griffe.Extension):
    """Rewrites each docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called once for each module, class, function and attribute."""
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)
