"""benchmarks/compare.py: its judgment on made-up figures, and what it checks out and returns."""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("compare")
    for name in ("compare", "suite"):
        sys.modules.pop(name, None)


def test_the_change_is_the_median_of_ratios_within_a_turn(compare: ModuleType) -> None:
    # In the second turn the machine was four times as slow for both.
    base = [{"a": 1.0, "b": 2.0}, {"a": 4.0, "b": 8.0}, {"a": 1.0, "b": 2.0}]
    now = [{"a": 1.1, "b": 1.0}, {"a": 4.4, "b": 4.0}, {"a": 1.0, "b": 9.0}]
    found = compare.changes(base, now)
    assert [(change.name, round(change.ratio, 6)) for change in found] == [("a", 1.1), ("b", 0.5)]
    assert [change.name for change in compare.slower(found, 0.05)] == ["a"]
    assert compare.slower(found, 0.11) == []


def test_a_figure_that_one_side_lacks_is_not_judged(compare: ModuleType) -> None:
    found = compare.changes([{"a": 1.0, "gone": 1.0}], [{"a": 1.0, "new": 9.0}])
    assert [change.name for change in found] == ["a"] and not compare.slower(found, 0.05)
    assert compare.changes([], []) == []


@pytest.mark.parametrize(("factor", "code"), [(1.04, 0), (1.06, 1), (0.5, 0)])
def test_the_exit_code_tells_whether_something_became_slower(
    compare: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], factor: float, code: int
) -> None:
    trees: list[Path] = []

    def measure(tree: Path, only: Sequence[str]) -> dict[str, float]:
        trees.append(tree)
        return {"links": factor if tree == FOLDER.parent else 1.0, "zoo": 1.0}

    called: list[tuple[str, ...]] = []
    monkeypatch.setattr(compare.suite, "measure", measure)
    monkeypatch.setattr(compare.suite, "git", lambda *arguments: called.append(arguments))
    assert compare.main(["some-commit", "--turns", "2"]) == code
    assert [tree == FOLDER.parent for tree in trees] == [False, True, True, False]
    assert called[0][:3] == ("worktree", "add", "--detach") and called[0][-1] == "some-commit"
    assert called[-1][:2] == ("worktree", "remove")
    assert ("slower: links, +6.0%" in capsys.readouterr().out) == (code == 1)


def test_figures_are_costs(compare: ModuleType) -> None:
    suite = compare.suite
    assert suite.BENCHMARKS["zoo"].figures({"gpt": {"speedup": 2.0}}) == {"gpt, time / plain loop": 0.5}
    assert suite.BENCHMARKS["simulation"].figures({"W1": {"speedup_over_bare_loop": 4.0}}) == {
        "W1, time / plain loop": 0.25
    }
    assert suite.BENCHMARKS["codec"].figures({"speed": {"sign": {"ratio": 0.5}}}) == {"sign, time / reference": 2.0}
    links = suite.BENCHMARKS["links"].figures({"stc": {"ms": 1.0, "copies": 9.0, "vectors": -0.3}})
    assert links == {"links of stc, time / copy": 9.0, "links of stc, vectors per client": 0.1}


@pytest.mark.long
def test_every_benchmark_runs_and_its_figures_are_written(compare: ModuleType, tmp_path: Path) -> None:
    """The scripts are no part of the package, so no other test notices that one uses a name that is gone."""
    assert compare.suite.main(["--output", str(tmp_path)]) == 0
    (written,) = tmp_path.iterdir()
    figures = json.loads(written.read_text())["figures"]
    assert all(math.isfinite(figure) for figure in figures.values())
    for part in ("links of fed_laconic, time", "W3, time", "gpt, time", "time / reference"):
        assert any(part in name for name in figures), part


def test_a_benchmark_that_fails_gives_exit_code_1(
    compare: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compare.suite, "measure", lambda tree, only: {} if only == ["codec"] else {only[0]: 1.0})
    assert compare.suite.main(["--output", str(tmp_path), "--only", "zoo", "codec"]) == 1
    assert compare.suite.main(["--output", str(tmp_path), "--only", "zoo"]) == 0
