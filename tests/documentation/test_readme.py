"""The README is short, and its facts are those of the code and of the data."""

from __future__ import annotations

import re

import pytest

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


def test_the_headline_is_in_the_frontier_tables() -> None:
    """The columns of the README's table are rows of the first task's tables in docs/frontier.md, with rounded numbers."""
    task = (ROOT / "docs/frontier.md").read_text().split("### FEMNIST")[0]
    targets = {text[:4]: text for text in task.split("**Target ")[1:]}
    first, second = (line.split("|")[1:-1] for line in README.splitlines() if re.match(r"\| (76|84)\.\d %", line))
    easy, hard = (targets[line[0].strip()[:4]] for line in (first, second))
    rows = ("fed_laconic |", "stc (rate", "fed_avg, clipped and averaged (rate", "fed_avg (rate")
    for label, cell in zip(rows, first[1:], strict=True):
        check(cell, row(easy, label))
    check(second[1], row(hard, "fed_laconic, 740 rounds |"))
    check(second[3], row(hard, rows[2]))
    _, missed = hard.split("Not reached, with the final accuracy in %: ")
    assert all("not reached" in cell for cell in second[2::2])
    assert all(any(text.startswith(label) for text in missed.split("; ")) for label in (rows[1], rows[3]))


def test_the_factors_are_byte_ratios_of_the_frontier() -> None:
    """Each factor is a cell of the tables of docs/frontier.md, which test_studies.py compares with docs/data."""
    said = " ".join(README.split())
    two = r"(\d+) and (\d+) times fewer bytes"
    first, longer = re.search(rf"That is {two} than the best dense", said).groups()
    femnist, cifar = re.search(rf"On FEMNIST and CIFAR-10, .* reaches it with {two} than this method", said).groups()
    (best,) = re.search(r"needs (\d+) times fewer bytes than the best dense method to reach 76\.4 %", said).groups()
    factors = {
        ("Fashion-MNIST,", "fed_laconic |", "76.4"): first,
        ("Fashion-MNIST,", "fed_laconic, 740 rounds |", "84.8"): longer,
        ("FEMNIST", "fed_laconic |", "74.3"): femnist,
        ("CIFAR-10", "fed_laconic |", "42.3"): cifar,
        ("Fashion-MNIST,", "fed_laconic, rate from the grid (rate", "76.4"): best,
    }
    pages = (ROOT / "docs/frontier.md").read_text().split("\n### ")
    for (task, label, accuracy), factor in factors.items():
        (page,) = (page for page in pages if page.startswith(task))
        (table,) = (text for text in page.split("**Target ") if text.startswith(f"{accuracy} %"))
        assert numbers(row(table, label))[-1][0] == int(factor), (task, label)


def test_the_picture_has_the_factor_of_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from headline_picture import factor, lines

    number = f"{factor(lines()):.0f}"
    assert f"That is {number} and" in README
    assert f"<!-- {number} times fewer bytes to 76.4 % -->" in (ROOT / "docs/figures/headline.svg").read_text()


def row(table: str, label: str) -> list[str]:
    (found,) = (line for line in table.splitlines() if line.startswith(f"| {label}"))
    return [cell.strip() for cell in found.split("|")]


def numbers(cells: list[str]) -> list[tuple[float, float]]:
    """Means and standard deviations of a row."""
    return [tuple(map(float, cell.replace(",", "").split(" ± "))) for cell in cells if " ± " in cell]


def check(cell: str, cells: list[str]) -> None:
    """The megabytes and the rounds of a cell are in a row, but for rounding."""
    mean, deviation, rounds = re.search(r"([\d.,]+) ± ([\d.]+) MB\*{0,2}, (\d+) rounds", cell).groups()
    mean = mean.replace(",", "")
    near = lambda value, text: abs(value - float(text)) <= 0.51 * 10 ** -len(text.partition(".")[2])  # noqa: E731
    assert any(near(first, mean) and near(second, deviation) for first, second in numbers(cells)), cell
    assert any(near(first, rounds) for first, _ in numbers(cells)), cell
