"""`laconic reproduce`."""

from __future__ import annotations

from pathlib import Path

from laconic.reproduce.catalog import REPRODUCTIONS


def test_the_list_names_every_one(forked) -> None:
    done = forked("reproduce", "--list")
    assert done.code == 0 and all(name in done.stdout for name in REPRODUCTIONS)


def test_a_quick_one_shows_its_table_and_writes_nothing(forked, tmp_path: Path) -> None:
    done = forked("reproduce", "--quick", "fedcams-epsilon")
    assert done.code == 0, done.stderr
    assert "epsilon 1e-3" in done.stdout and "(90.9" in done.stdout and "say nothing about the paper" in done.stdout
    assert not (tmp_path / "docs").exists() and not (tmp_path / "runs").exists()


def test_results_go_to_the_folder_that_is_named(forked, tmp_path: Path) -> None:
    done = forked("reproduce", "fed-ef-figure20", "--quick", "--full")
    assert done.code == 2 and "only one of the two" in done.stderr
    done = forked("reproduce", "fedcams-tables1-2", "--docs", "out")
    assert done.code == 0, done.stderr
    assert done.stdout.count("holds:") == 12 and "does not hold" not in done.stdout
    assert "12 of 12" in (tmp_path / "out/reproductions.md").read_text()


def test_a_misspelled_name_is_one_line(forked) -> None:
    done = forked("reproduce", "fedamd-table3")
    assert done.code == 2 and "fedamd-table2" in done.stderr
    assert forked("reproduce").code == 2
