"""tools/same_numbers.py: what its cases cover, and how it spells them for another commit."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from laconic.algorithms.recipes import RECIPES
from laconic.compression.compressors.base import COMPRESSORS

ROOT = Path(__file__).resolve().parents[1]
FILE = "tools/same_numbers_cases.py"


@pytest.fixture
def cases(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    yield importlib.import_module("same_numbers_cases")
    sys.modules.pop("same_numbers_cases", None)


def test_the_cases_cover_every_recipe_and_compressor(cases: ModuleType) -> None:
    recipes, compressors = (set(names) for names in cases.registered(ROOT))
    assert (recipes, compressors) == (RECIPES.keys(), COMPRESSORS.keys())
    for folder in ("memory", "disk", "ray", "processes", "faults", "resume/memory", "resume/disk"):
        run = [cases.uses(case.spelling("now"))[0] for case in cases.CASES if case.name.startswith(f"{folder}/")]
        assert set().union(*run) == recipes, folder
    spelled = [cases.uses(case.spelling("now"))[1] for case in cases.CASES if case.name.startswith("compressor/")]
    assert set().union(*spelled) == compressors


def test_a_commit_with_the_same_cases_is_asked_the_same(cases: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / FILE, tmp_path / FILE)
    (tmp_path / "laconic/algorithms").mkdir(parents=True)
    shutil.copy(ROOT / "laconic/algorithms/recipes.py", tmp_path / "laconic/algorithms")
    common, spelling = cases.base_words(tmp_path)
    assert common == cases.renamed(cases.COMMON)
    for case in cases.CASES:
        assert f"{spelling(case)} {case.engine}".strip() == case.spelling("now")


def test_a_commit_without_cases_is_asked_in_the_recorded_spelling(cases: ModuleType, tmp_path: Path) -> None:
    common, spelling = cases.base_words(tmp_path)
    assert common == cases.COMMON
    assert all(spelling(case) == case.arguments for case in cases.CASES)
    assert cases.registered(tmp_path) == ([], [])
