"""Draws the packages of Laconic and their imports into CONTRIBUTING.md, from the code.

    python tools/package_picture.py           # writes the picture between its marks
    python tools/package_picture.py --check   # exits with 1 if it is not up to date

An arrow means "imports". Arrows that follow from others are left out: cli imports nearly everything.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import grimp

PAGE = Path(__file__).parents[1] / "CONTRIBUTING.md"
BEGIN, END = "<!-- packages: begin -->", "<!-- packages: end -->"


def imports() -> dict[str, set[str]]:
    """Return the imported packages of every package and of api.py."""
    graph = grimp.build_graph("laconic", cache_dir=None)
    found: dict[str, set[str]] = {}
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            source, target = (name.removeprefix("laconic").strip(".").partition(".")[0] for name in (module, imported))
            if source and target and source != target and "version" not in (source, target):
                found.setdefault(source, set()).add(target)
                found.setdefault(target, set())
    return {name: targets for name, targets in found.items() if not name.startswith("__")}


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """All packages that `start` imports, directly or through others."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for target in graph.get(waiting.pop(), set()) - found:
            found.add(target)
            waiting.append(target)
    return found


def picture(graph: dict[str, set[str]]) -> str:
    """A Mermaid diagram with the arrows that do not follow from others."""
    lines = ["```mermaid", "graph TD"]
    for source in sorted(graph):
        for target in sorted(graph[source]):
            others = graph[source] - {target}
            if not any(target in reachable(graph, other) for other in others):
                lines.append(f"    {source} --> {target}")
    return "\n".join([*lines, "```"])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only say whether the picture is up to date")
    page = PAGE.read_text()
    drawn = re.sub(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n{picture(imports())}\n{END}", page, flags=re.DOTALL)
    if parser.parse_args().check:
        if drawn != page:
            print("CONTRIBUTING.md: the picture of the packages is not up to date: python tools/package_picture.py")
        return int(drawn != page)
    PAGE.write_text(drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main())
