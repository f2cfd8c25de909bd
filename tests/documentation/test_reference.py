"""The reference pages describe every argument and every parameter that they show, and show doctests as code."""

from __future__ import annotations

import re
from collections.abc import Iterator

import griffe
import pytest

from tests.documentation.pages import ROOT

_ENTRY = re.compile(r"^::: laconic\.(\S+)(?:\n    options:((?:\n {6}.*)*))?", re.MULTILINE)


@pytest.fixture(scope="module")
def package() -> griffe.Module:
    loaded = griffe.load("laconic", search_paths=[str(ROOT)], docstring_parser="google")
    assert isinstance(loaded, griffe.Module)
    return loaded


def shown(page: str, package: griffe.Module) -> Iterator[griffe.Object]:
    """The functions and attributes of a page: its entries, and the members that these list."""
    for path, options in _ENTRY.findall((ROOT / "docs/reference" / page).read_text()):
        entry = package[path]
        listed = re.search(r"members: \[(.*)\]", options)
        names = listed[1].split(", ") if listed and listed[1] else []
        for found in [entry, *(entry.all_members[name] for name in names)]:
            yield found.final_target if found.is_alias else found


def arguments(function: griffe.Function) -> set[str]:
    sections = function.docstring.parsed if function.docstring else []
    return {
        each.name.lstrip("*") for section in sections if section.kind.value == "parameters" for each in section.value
    }


def test_arguments_and_parameters_are_described(package: griffe.Module) -> None:
    missing = []
    for page in ("python.md", "parts.md"):
        for found in shown(page, package):
            if not found.docstring:
                missing.append(found.path)
            elif isinstance(found, griffe.Function) and len(found.parameters) > 2:
                names = {each.name for each in found.parameters} - {"self"}
                missing += [f"{found.path}({name})" for name in sorted(names - arguments(found))]
    assert missing == []


def test_a_doctest_is_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from griffe_doctests import fenced

    docstring = "Add.\n\nArgs:\n    a: A number.\n\n    >>> a = 1\n    >>> a + 1\n    2\n\nMore."
    expected = "Add.\n\nArgs:\n    a: A number.\n\n    ```pycon\n    >>> a = 1\n    >>> a + 1\n    2\n    ```\n\nMore."
    assert fenced(docstring) == expected
