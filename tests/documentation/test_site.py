"""The site is built without a warning, and asks no other host for anything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documentation.pages import ROOT


@pytest.mark.long
def test_the_site(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # an advertisement
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 40
    loaded = re.compile(r"<(?:script|img|iframe)[^>]*\ssrc=\"?https?:|<link[^>]*rel=\"?stylesheet[^>]*href=\"?https?:")
    for page in pages:
        found = loaded.search(page.read_text())
        assert found is None, f"{page.name}: {found and found[0]}"
    reference = (tmp_path / "site/reference/python.html").read_text()
    assert "<blockquote" not in reference and 'class="gp"' in reference, "doctests are code"
