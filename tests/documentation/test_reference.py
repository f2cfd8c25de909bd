"""The reference pages describe every argument and every parameter that they show, and show doctests as code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import griffe
import pytest

import laconic
from tests.documentation.pages import PAGES, ROOT, blocks, name

_ENTRY = re.compile(r"^::: laconic\.(\S+)(?:\n    options:((?:\n {6}.*)*))?", re.MULTILINE)


@pytest.fixture(scope="module")
def package() -> griffe.Module:
    loaded = griffe.load("laconic", search_paths=[str(ROOT)], docstring_parser="google")
    assert isinstance(loaded, griffe.Module)
    return loaded


def _page(page: str) -> str:
    return (ROOT / "docs/reference" / page).read_text()


def shown(page: str, package: griffe.Module) -> Iterator[griffe.Object]:
    """The functions and attributes of a page: its entries, and the members that these list."""
    for path, options in _ENTRY.findall(_page(page)):
        entry = package[path]
        listed = re.search(r"members: \[(.*)\]", options)
        names = listed[1].split(", ") if listed and listed[1] else []
        for found in [entry, *(entry.all_members[member] for member in names)]:
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


def documented() -> set[tuple[str, str]]:
    """The names on the reference pages, each with its subpackage."""
    entries = [path for page in ("python.md", "parts.md") for path, _ in _ENTRY.findall(_page(page))]
    return {(path.partition(".")[0], path.rpartition(".")[2]) for path in entries}


def readable_code() -> Iterator[tuple[str, str]]:
    """The code that people copy, by its file: blocks of pages, notebooks, examples, and templates."""
    for page in PAGES:
        yield name(page), "\n".join(block.text for block in blocks(page) if block.language == "python")
    for file in (ROOT / "examples").glob("*.ipynb"):
        cells = json.loads(file.read_text())["cells"]
        yield name(file), "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    for file in [*(ROOT / "examples").glob("*.py"), *(ROOT / "laconic/cli/templates").rglob("*.py.template")]:
        yield name(file), file.read_text()


@pytest.mark.parametrize(("file", "code"), readable_code(), ids=lambda value: value if len(value) < 80 else "")
def test_code_to_copy_imports_only_documented_names(file: str, code: str) -> None:
    for module, names in re.findall(r"^\s*from (laconic[\w.]*) import ([^\n(]+|\([^)]*\))", code, re.MULTILINE):
        for imported in re.findall(r"\w+", re.sub(r" as \w+", "", names)):
            if module == "laconic":
                assert imported in laconic.__all__, f"{file}: laconic.{imported}"
            else:
                assert (module.removeprefix("laconic."), imported) in documented(), f"{file}: {module}.{imported}"
    assert not re.search(r"^\s*import laconic\.", code, re.MULTILINE), file


def test_a_doctest_is_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from griffe_doctests import fenced

    docstring = "Add.\n\nArgs:\n    a: A number.\n\n    >>> a = 1\n    >>> a + 1\n    2\n\nMore."
    expected = "Add.\n\nArgs:\n    a: A number.\n\n    ```pycon\n    >>> a = 1\n    >>> a + 1\n    2\n    ```\n\nMore."
    assert fenced(docstring) == expected
