"""The README is short, and its facts are those of the code and of the data."""

from __future__ import annotations

import re

import laconic
from laconic.algorithms.recipes import RECIPES
from tests.documentation.pages import ROOT

README = (ROOT / "README.md").read_text()


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150


def test_the_number_of_recipes_is_right() -> None:
    assert f"There are {len(RECIPES)} recipes" in README


def test_the_citation_names_this_version() -> None:
    found = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert found and found[1] == laconic.__version__


def test_the_headline_is_in_the_frontier_table() -> None:
    page = (ROOT / "docs/frontier.md").read_text()
    ours = re.search(r"`fed_laconic` needs \*\*([\d.]+ ± [\d.]+) MB\*\*", README)
    theirs = re.search(r"of the model over rounds, needs ([\d,]+ ± [\d.]+) MB", README.replace("\n", " "))
    factor = re.search(r": (\d+) times", README.replace("\n", " "))
    assert ours and theirs and factor
    table = page.split("### FEMNIST")[0]
    ours_row = next(line for line in table.splitlines() if line.startswith("| fed_laconic |"))
    reference = next(line for line in table.splitlines() if line.startswith("| fed_avg, clipped and averaged (rate"))
    first, second = (float(number) for number in ours[1].split(" ± "))
    cells = [cell.strip() for cell in ours_row.split("|")]
    assert any(close(cell, first, second) for cell in cells), (ours[1], cells)
    assert f"| {theirs[1]} |" in reference
    assert any(cell.startswith(f"{factor[1]}.") for cell in cells)
    longer = next(line for line in table.splitlines() if line.startswith("| fed_laconic, 740 rounds |"))
    higher = re.search(r": (\d+) times fewer bytes, but", README.replace("\n", " "))
    assert higher and round(float(longer.split("|")[9].split(" ± ")[0])) == int(higher[1])


def close(cell: str, mean: float, deviation: float) -> bool:
    """Whether a cell has this mean and standard deviation, but for rounding to two decimals."""
    parts = cell.replace(",", "").split(" ± ")
    if len(parts) != 2:
        return False
    return abs(float(parts[0]) - mean) <= 0.005 and abs(float(parts[1]) - deviation) <= 0.0051
