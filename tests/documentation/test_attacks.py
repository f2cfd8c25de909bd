"""Every attack on the page of attacks has a test that exists."""

from __future__ import annotations

import re

from tests.documentation.pages import ROOT

ROW = re.compile(r"`(tests/\S+\.py)::(\w+)` \|$")


def test_every_attack_names_a_test_that_exists() -> None:
    lines = (ROOT / "docs" / "attacks.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("| ") and not line.endswith("| test |")]
    found = [ROW.search(row) for row in rows]
    assert len(rows) > 25
    for row, names in zip(rows, found, strict=True):
        assert names, row
        file, name = names.groups()
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE), row
