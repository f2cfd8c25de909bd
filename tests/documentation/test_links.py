"""Links within the documentation lead somewhere, and every algorithm has a page that says what the code says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from laconic.algorithms.recipes import RECIPES
from tests.documentation.pages import PAGES, ROOT, anchors, links, name


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_and_anchors(page: Path) -> None:
    for link in links(page):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), f"{name(page)}: {link}: there is no such file"
        if anchor:
            assert anchor in anchors(file), f"{name(page)}: {link}: there is no such heading"


def test_every_recipe_has_a_page_with_all_that_is_promised() -> None:
    for recipe in RECIPES:
        page = ROOT / f"docs/algorithms/{recipe}.md"
        assert page.exists(), f"the recipe {recipe} has no page: write docs/algorithms/{recipe}.md"
        text = page.read_text()
        headings = ("**Paper.**", "## Formula", "| symbol | what it is |", "## The four slots", "## When to use it")
        for promised in (*headings, f"{recipe}.svg"):
            assert promised in text, f"docs/algorithms/{recipe}.md has no {promised}"


def test_what_is_generated_is_what_the_code_says() -> None:
    command = [sys.executable, str(ROOT / "tools/algorithm_pages.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_a_symbol_means_what_it_means_on_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from algorithm_symbols import symbols

    assert "| v̂ | the largest v so far |" in symbols("fed_ams", "v̂ ← max(v̂, v, ε)")
    assert "| v | the anchor's new gradient |" in symbols("fed_amd", "send v, vᵢ")
    assert "| w |" not in symbols("fed_avg", "send Σu, a word"), "only what occurs"
    with pytest.raises(SystemExit, match="ζ"):
        symbols("fed_avg", "w ← w + ζ")
