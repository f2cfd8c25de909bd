"""The site is built without a warning, and asks no other host for anything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.documentation.pages import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # an advertisement
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["index", "guides/settings", "guides/coming-from", "frontier"])
def test_no_serious_rule_of_axe_is_broken(browser: Any, site: Path, name: str, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    page.goto((site / f"{name}.html").as_uri())
    page.wait_for_load_state("load")
    found = axe.Axe().run(page).response["violations"]
    severe = [rule for rule in found if rule["impact"] in ("serious", "critical")]
    assert [(rule["id"], rule["nodes"][0]["html"]) for rule in severe] == []
    page.close()


@pytest.mark.long
def test_the_site(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    loaded = re.compile(r"<(?:script|img|iframe)[^>]*\ssrc=\"?https?:|<link[^>]*rel=\"?stylesheet[^>]*href=\"?https?:")
    for page in pages:
        found = loaded.search(page.read_text())
        assert found is None, f"{page.name}: {found and found[0]}"
    reference = (site / "reference/python.html").read_text()
    assert {path.name for path in (site / "examples").iterdir()} == {
        path.name for path in ROOT.glob("examples/*.ipynb")
    }
    assert "<blockquote" not in reference and 'class="gp"' in reference, "doctests are code"
