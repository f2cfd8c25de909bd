"""The names in docs/tour.md exist, in the files that it links."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.documentation.pages import ROOT

TOUR = ROOT / "docs/tour.md"
TEXT = TOUR.read_text()
NAME = r"`([A-Za-z_]\w*(?:\.\w+)*)(?:\(.*?\))?`"
LINK = r"\[`([^`]+)`\]\((\.\./laconic/[^)]+\.py)\)"


def linked_names() -> set[tuple[str, str]]:
    """Pairs (name, file): a name that is a link, that follows the link to a file, or that precedes it in parentheses."""
    pairs = {(name, file) for name, file in re.findall(LINK, TEXT) if not name.endswith(".py")}
    pairs |= {(name, file) for _, file, name in re.findall(rf"{LINK} {NAME}", TEXT)}
    return pairs | {(name, file) for name, _, file in re.findall(rf"{NAME} \({LINK}\)", TEXT)}


@cache
def classes() -> dict[str, tuple[set[str], list[str]]]:
    """The methods and assigned names of every class of the package, and its bases."""
    found: dict[str, tuple[set[str], list[str]]] = {}
    for path in (ROOT / "laconic").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                members, bases = found.setdefault(node.name, (set(), []))
                members |= {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
                stored = [part for part in ast.walk(node) if isinstance(getattr(part, "ctx", None), ast.Store)]
                members |= {part.id for part in stored if isinstance(part, ast.Name)}
                members |= {part.attr for part in stored if isinstance(part, ast.Attribute)}
                bases += [base.id for base in node.bases if isinstance(base, ast.Name)]
    return found


def has_member(cls: str, member: str) -> bool:
    members, bases = classes().get(cls, (set(), []))
    return member in members or any(has_member(base, member) for base in bases)


@pytest.mark.parametrize(("name", "file"), sorted(linked_names()))
def test_a_name_is_defined_in_the_linked_file(name: str, file: str) -> None:
    text = (TOUR.parent / Path(file)).resolve().read_text()
    first, *rest = name.split(".")
    assert re.search(rf"^(class|def) {first}\b|^{first}\b.*=", text, re.MULTILINE), f"{file} does not define {first}"
    assert all(has_member(first, member) for member in rest)


@pytest.mark.parametrize(
    "name", sorted({found for found in re.findall(NAME, TEXT) if re.match(r"[A-Z]\w*\.\w+$", found)})
)
def test_a_class_has_the_named_member(name: str) -> None:
    assert has_member(*name.split(".")), f"docs/tour.md names {name}, which does not exist"
