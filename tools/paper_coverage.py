"""Prints what the five papers describe, where each thing lives in the code, and which test or study checks it.

    python tools/paper_coverage.py           # prints the list; exits with 1 if something is not checked or not there
    python tools/paper_coverage.py --write   # also writes docs/papers.md

The list is docs/data/paper-coverage.toml. Names are looked up in the source files, so nothing of Laconic but the catalog of
studies is imported.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from laconic.reproduce.catalog import REPRODUCTIONS

ROOT = Path(__file__).parents[1]
DATA, PAGE = ROOT / "docs/data/paper-coverage.toml", ROOT / "docs/papers.md"
KINDS = ("algorithm", "option", "measure", "setting", "theorem", "table", "figure")
STUDY, ORACLES = "study ", "oracles/"
HEAD = """# Coverage of the papers

<!-- Written by `python tools/paper_coverage.py --write` from docs/data/paper-coverage.toml. -->

This page lists the algorithms, options, settings, measures, theorems, tables and figures of the five papers that
Laconic is built on. An *option* is a detail, variant or property of an algorithm. Each entry names the code that
implements it, and the test or study that checks it. A test fails if one of these names does not exist, or if an entry
has no check. A study counts as a check as soon as it is defined, even if it has not been run;
[Reproductions](reproductions.md) shows which studies have been run, and for how many rounds and seeds. `python
tools/paper_coverage.py` prints this list and names the studies without data.

"""


@dataclass(frozen=True)
class Item:
    """One thing that a paper describes."""

    paper: str
    kind: str
    reference: str
    what: str
    places: tuple[str, ...]
    checks: tuple[str, ...]

    def problems(self, studies: set[str]) -> Iterator[str]:
        """What is wrong with the entry."""
        if self.kind not in KINDS:
            yield f"unknown kind '{self.kind}'"
        if not self.places:
            yield "lives nowhere"
        if not self.checks:
            yield "has no test and no study"
        elif all(check.startswith(ORACLES) for check in self.checks):
            yield "is checked only by tests of the oracles, which do not run Laconic"
        yield from (f"there is no '{place}' in laconic" for place in self.places if not _exists(place))
        for check in self.checks:
            if check.startswith(STUDY):
                if check.removeprefix(STUDY) not in studies:
                    yield f"there is no {check}"
            elif not _is_test(check):
                yield f"there is no test '{check}'"


def items() -> list[Item]:
    """The entries of the data file, in its order."""
    papers = tomllib.loads(DATA.read_text())
    return [
        Item(paper, kind, reference, what, tuple(places), tuple(checks))
        for paper, table in papers.items()
        for kind, reference, what, places, checks in table["items"]
    ]


def problems(listed: list[Item]) -> list[str]:
    """What is wrong with the list, one line each."""
    studies = {name for reproduction in REPRODUCTIONS.values() for name in reproduction.studies}
    return [f"{item.paper}, {item.reference}: {text}" for item in listed for text in item.problems(studies)]


def page(listed: list[Item]) -> str:
    """docs/papers.md."""
    papers = tomllib.loads(DATA.read_text())
    counts = {kind: sum(item.kind == kind for item in listed) for kind in KINDS}
    lines = [
        HEAD + f"{len(listed)} entries: " + ", ".join(f"{number} {kind}s" for kind, number in counts.items()) + ".",
        "",
    ]
    for paper, table in papers.items():
        lines += [
            f"## {paper}",
            "",
            f"{table['title']}.",
            "",
            *([f"{table['terms']}.", ""] if "terms" in table else []),
            "| in the paper | what it is | code | checked by |",
            "|---|---|---|---|",
        ]
        for item in listed:
            if item.paper == paper:
                cells = (item.reference, f"{item.what} ({item.kind})", _code(item.places), _code(item.checks))
                lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def _code(names: tuple[str, ...]) -> str:
    return ", ".join(
        f"{STUDY}`{name.removeprefix(STUDY)}`" if name.startswith(STUDY) else f"`{name}`" for name in names
    )


def without_data(listed: list[Item]) -> list[str]:
    """The studies that have not been run here."""
    named = {check.removeprefix(STUDY) for item in listed for check in item.checks if check.startswith(STUDY)}
    return sorted(name for name in named if not (ROOT / f"docs/data/{name}.json").exists())


def only_by_studies_without_data(listed: list[Item]) -> list[Item]:
    """The entries that nothing checks but studies that have not been run here."""
    absent = {STUDY + name for name in without_data(listed)}
    return [item for item in listed if absent.issuperset(item.checks)]


@cache
def _parsed(path: Path) -> ast.Module | None:
    return ast.parse(path.read_text()) if path.exists() else None


def _defined(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """The names that statements define."""
    found: dict[str, ast.stmt] = {}
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            found[statement.name] = statement
        elif isinstance(statement, ast.AnnAssign | ast.Assign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            found |= {target.id: statement for target in targets if isinstance(target, ast.Name)}
    return found


def _exists(place: str) -> bool:
    """Whether `module:Name` or `module:Class.name` is defined."""
    module, _, name = place.partition(":")
    path = ROOT / "laconic" / module.replace(".", "/")
    tree = _parsed(path.with_suffix(".py")) or _parsed(path / "__init__.py")
    names = name.split(".")
    body = tree.body if tree else []
    for depth, part in enumerate(names, 1):
        statement = _defined(body).get(part)
        if statement is None:
            return False
        if depth < len(names):
            body = statement.body if isinstance(statement, ast.ClassDef) else []
    return True


def _is_test(check: str) -> bool:
    path, _, name = check.partition("::")
    tree = _parsed(ROOT / "tests" / path)
    return tree is not None and name.startswith("test_") and isinstance(_defined(tree.body).get(name), ast.FunctionDef)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="also write docs/papers.md")
    arguments = parser.parse_args()
    listed = items()
    text = page(listed)
    if arguments.write:
        PAGE.write_text(text)
    for item in listed:
        print(f"{item.paper}: {item.reference}: {item.what} -> {', '.join(item.places)} <- {', '.join(item.checks)}")
    print("Studies without data:", ", ".join(without_data(listed)))
    print(
        f"{len(only_by_studies_without_data(listed))} of {len(listed)} entries are checked only by studies without data"
    )
    wrong = problems(listed)
    if not PAGE.exists() or PAGE.read_text() != text:
        wrong.append("docs/papers.md is not up to date: python tools/paper_coverage.py --write")
    print(*wrong, sep="\n", file=sys.stderr)
    print(f"{len(listed)} entries, {len(wrong)} problems", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
