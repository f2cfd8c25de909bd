"""`laconic reproduce`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from laconic.reproduce.catalog import REPRODUCTIONS
from laconic.reproduce.plans import plan
from laconic.reproduce.runner import Finished, Runner, Stopped
from laconic.run import Callback, RunDirectory


def test_the_list_names_every_one(forked) -> None:
    done = forked("reproduce", "--list")
    assert done.code == 0 and all(name in done.stdout for name in REPRODUCTIONS)
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert "25 of 500 rounds" in rows["fedcams-epsilon"], "what is shortened is said in words"


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
    assert done.stdout.count("holds:") == 12 and "fails" not in done.stdout
    assert re.search(r"\| 1 of \d+ \| 12 \| 0 \| 0 \| 0 \| 0 \|", (tmp_path / "out/reproductions.md").read_text())
    assert "12 | 0" in (tmp_path / "out/reproductions/fedcams.md").read_text()


def test_the_queue_publishes_what_it_computes(forked, tmp_path: Path) -> None:
    line = (
        "reproduce",
        "fedcams-tables1-2",
        "fedcams-figure4-cifar10",
        "--hours",
        "1",
        "--workers",
        "1",
        "--runs",
        "runs",
    )
    done = forked(*line, "--docs", "out")
    assert done.code == 0 and "complete" in done.stdout, done.stderr
    assert "skipped: fedcams-figure4-cifar10: needs a GPU" in done.stderr
    assert (tmp_path / "out/data/fedcams-tables1-2.json").exists()
    assert "1 done" in (tmp_path / "runs/progress.html").read_text()
    left_out = forked("reproduce", "fedbnlaca-figures5-20", "--hours", "0", "--workers", "1", "--docs", "out")
    assert "skipped: fedbnlaca-figures5-8: only --full runs it" in left_out.stderr
    assert re.search(r"to run these 4 studies too: laconic .*--full", left_out.stderr), left_out.stderr
    assert "--full" in forked("reproduce", "--help").stdout.partition("--hours")[2].partition("--workers")[0]
    assert forked("reproduce", "all", "--quick", "--hours", "1").code == 2
    assert forked("reproduce", "fedcams-epsilon", "--workers", "2").code == 2


def test_code_that_a_stored_run_names_runs_only_if_it_is_trusted(forked, tmp_path: Path) -> None:
    """Whoever sends a folder of runs must not run code on the machine of whoever continues them."""
    (tmp_path / "own.py").write_text("open('ran', 'w').close()\nraise SystemExit\n")
    name, study = next(iter(REPRODUCTIONS["fedcams-epsilon"].studies.items()))
    assert study.experiment is not None
    begun: dict[Path, str] = {}

    class Recorder(Runner):
        def _run(self, settings: dict[str, Any], directory: Path, label: str) -> Finished:
            begun[directory] = self._config(settings).to_toml()
            raise Stopped

    runner = Recorder(study.experiment, plan(study, study.experiment, "short"), tmp_path / "runs" / name, Callback())
    for label in runner.labels():
        with pytest.raises(Stopped):
            runner.runs(label)
    for path, config in begun.items():
        path.mkdir(parents=True)
        RunDirectory(path)._write_config(re.sub(r"^imports = .*$", 'imports = ["own.py"]', config, flags=re.MULTILINE))
    refused = forked("reproduce", "fedcams-epsilon", "--runs", "runs")
    assert refused.code == 2 and "runs code of its author: 'own.py'; if you trust it, add --trust" in refused.stderr
    assert not (tmp_path / "ran").exists()
    trusted = forked("reproduce", "fedcams-epsilon", "--runs", "runs", "--trust")
    assert trusted.code == 2 and "cannot load" in trusted.stderr and (tmp_path / "ran").exists(), trusted.stderr


def test_a_misspelled_name_is_one_line(forked) -> None:
    done = forked("reproduce", "fedamd-table3")
    assert done.code == 2 and "fedamd-table2" in done.stderr
    assert forked("reproduce").code == 2
