"""What is in the Markdown files that people read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
_FENCE = re.compile(r"^( *)```(\w*)(?: title=\"([^\"]+)\")?[^\n]*\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
"""Blocks in a tab are indented."""
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def name(page: Path) -> str:
    """The page as it is called in a report of tests."""
    return str(page.relative_to(ROOT))


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the file it is meant to be, and its text."""

    language: str
    file: str | None
    text: str

    def commands(self) -> Iterator[list[str]]:
        """The commands of a shell block, as words."""
        for line in self.text.replace("\\\n", " ").splitlines():
            if line.strip():
                yield shlex.split(line, comments=True)


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found = _FENCE.findall(page.read_text())
    return [Block(language, file or None, dedent(text) if space else text) for space, language, file, text in found]


def links(page: Path) -> list[str]:
    """Where a page leads, outside of its code."""
    text = re.sub(r"`[^`\n]*`", "", _FENCE.sub("", page.read_text()))
    return _LINK.findall(text)


def anchors(page: Path) -> set[str]:
    """The headings of a page as they are linked to."""
    text = _FENCE.sub("", page.read_text())
    found = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in found}
