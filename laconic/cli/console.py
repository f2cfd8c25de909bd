"""The consoles of the command line. stdout has results only; progress, notes and errors go to stderr."""

from __future__ import annotations

import os

from rich.console import Console

stderr = Console(stderr=True)
# A pipe or a file has no width that a table must fit into.
stdout = Console() if Console().is_terminal or "COLUMNS" in os.environ else Console(width=200)


def say(text: str, console: Console = stdout) -> None:
    """Print a line as it is: no markup, no colors, no line breaks."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def note(text: str) -> None:
    """Print a line to stderr."""
    say(text, stderr)
