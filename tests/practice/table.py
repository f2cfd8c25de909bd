"""All lines, as the table of docs/practice.md."""

from __future__ import annotations

from tests.practice import train, use  # noqa: F401 - they register their lines
from tests.practice.things import THINGS


def table() -> str:
    """All lines as Markdown: one table per group."""
    tables = []
    for group in dict.fromkeys(thing.group for thing in THINGS):
        rows = [f"| {thing.title} | `{thing.line}` |" for thing in THINGS if thing.group == group]
        tables.append("\n".join([f"## {group}", "", "| topic | code |", "|---|---|", *rows]))
    return "\n\n".join(tables)
