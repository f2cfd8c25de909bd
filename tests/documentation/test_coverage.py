"""The list of what the papers describe: every entry exists and is checked, and the page is made of it."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from tests.documentation.pages import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import paper_coverage

STUDIES = {name for each in paper_coverage.REPRODUCTIONS.values() for name in each.studies}


def test_everything_that_the_papers_describe_is_there_and_checked() -> None:
    listed = paper_coverage.items()
    assert paper_coverage.problems(listed) == []
    assert paper_coverage.PAGE.read_text() == paper_coverage.page(listed), "python tools/paper_coverage.py --write"
    assert len({(item.paper, item.kind, item.reference, item.what) for item in listed}) == len(listed) > 200


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"checks": ()}, "has no test and no study"),
        ({"places": ()}, "lives nowhere"),
        ({"places": ("algorithms.recipes:fed_none",)}, "there is no 'algorithms.recipes:fed_none' in laconic"),
        ({"places": ("algorithms.nowhere:fed_avg",)}, "there is no 'algorithms.nowhere:fed_avg' in laconic"),
        (
            {"places": ("algorithms.uplinks.lazy:Lazy.nothing",)},
            "there is no 'algorithms.uplinks.lazy:Lazy.nothing' in laconic",
        ),
        (
            {"checks": ("algorithms/test_recipes.py::test_nothing",)},
            "there is no test 'algorithms/test_recipes.py::test_nothing'",
        ),
        ({"checks": ("study nothing",)}, "there is no study nothing"),
        (
            {"checks": ("oracles/test_oracles.py::test_trackers_sum_to_zero",)},
            "is checked only by tests of the oracles, which do not run Laconic",
        ),
        ({"kind": "thing"}, "unknown kind 'thing'"),
    ],
    ids=str,
)
def test_what_is_missing_is_noticed(changes: dict[str, object], problem: str) -> None:
    sound = paper_coverage.items()[0]
    assert [*sound.problems(STUDIES)] == []
    assert [*replace(sound, **changes).problems(STUDIES)] == [problem]


def test_entries_that_only_studies_without_data_check_are_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = paper_coverage.items()[0]
    run, waiting = "study fedcams-tables1-2", "study fedbnlaca-figures5-8"
    listed = [
        replace(sound, checks=checks) for checks in ((waiting,), (run, waiting), (run,), (*sound.checks, waiting))
    ]
    assert paper_coverage.only_by_studies_without_data(listed) == listed[:1]
    monkeypatch.setattr(sys, "argv", ["paper_coverage.py"])
    assert paper_coverage.main() == 0
    count, all_of_them = (
        len(paper_coverage.only_by_studies_without_data(paper_coverage.items())),
        len(paper_coverage.items()),
    )
    assert f"{count} of {all_of_them} entries are checked only by studies without data" in capsys.readouterr().out
