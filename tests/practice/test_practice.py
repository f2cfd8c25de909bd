"""Every line of docs/practice.md does what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documentation.pages import ROOT
from tests.practice.table import table
from tests.practice.things import THINGS, Thing


@pytest.mark.parametrize("thing", THINGS, ids=lambda thing: thing.title)
def test_what_newcomers_try(thing: Thing, tmp_path: Path) -> None:
    uses = []

    def do(**names: object) -> object:
        uses.append(names)
        return thing.do(**names)

    thing.try_it(do, tmp_path)
    assert uses, "the line itself was not tried"


def test_the_page_has_these_lines() -> None:
    page = (ROOT / "docs/practice.md").read_text()
    assert table() in page, "python tools/practice_page.py writes it"
