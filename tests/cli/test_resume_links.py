"""Runs with state on clients, mirrors and messages on their way, stopped and resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import steps_for
from tests.cli.test_resume import records, stopped

FAULTS = ("--drop", "0.2", "--late", "0.2", "--crash", "0.1")
CASES = {
    "fed_bnlaca": ("--algorithm", "fed_bnlaca"),
    "fed_ef_ams two-way": ("--algorithm", "fed_ef_ams", "--downlink", "broadcast"),
    "no memory": ("--algorithm", "fed_ef_ams", "--compressor", "top_k:1/8", "--no-memory", "--downlink", "mirrored"),
    "fed_gate": ("--algorithm", "fed_gate"),
    "fed_amd": ("--algorithm", "fed_amd"),
    "scaffold": ("--algorithm", "scaffold"),
    "scaffnew": ("--algorithm", "scaffnew", "--compressor", "uniform:4", "--no-memory"),
    "scallion": ("--algorithm", "scallion", "--compressor", "stochastic:1/4"),
    "scafcom": ("--algorithm", "scafcom"),
    "ef21_sgdm": ("--algorithm", "ef21_sgdm"),
    "ef21_bc": ("--algorithm", "ef21_bc"),
    "fed_dyn": ("--algorithm", "fed_dyn"),
    "stc": ("--algorithm", "stc"),
    "diloco": ("--algorithm", "diloco"),
    "sparse_loco": ("--algorithm", "sparse_loco", "--granularity", "chunk:64"),
    "shifted": ("--algorithm", "fed_com", "--uplink", "shifted", "--compressor", "eden:1/2"),
    "fed_laconic": ("--algorithm", "fed_laconic"),
    "subspaces": ("--algorithm", "stc", "--model", "mlp:64", "--subspace", "1/8", "--subspace-every", 2),
    "noise": ("--algorithm", "fed_ams", "--sampling", "poisson", "--clip-updates", "0.5", "--dp-noise", "1"),
    "median": ("--algorithm", "fed_ams", "--aggregate", "median", "--set", "faults.not_finite=1"),
}


@pytest.mark.parametrize(
    "faults", [pytest.param((), marks=pytest.mark.long, id="quiet"), pytest.param(FAULTS, id="faults")]
)
@pytest.mark.parametrize("algorithm", CASES.values(), ids=CASES)
def test_a_run_that_is_given_its_rounds_in_parts_is_the_same_run(
    forked, tmp_path: Path, algorithm: tuple[str, ...], faults: tuple[str, ...]
) -> None:
    options = (
        "run",
        *steps_for(algorithm[1]),
        *algorithm,
        *faults,
        "--clients",
        8,
        "--participants",
        4,
        "--eval-every",
        1,
    )
    whole = forked(*options, "--rounds", 9, "--out", "whole", "--json")
    assert whole.code == 0, whole.stderr
    for rounds in (2, 5, 9):
        part = forked(*options, "--rounds", rounds, "--out", "part", "--json", *(["--resume"] if rounds > 2 else []))
        assert part.code == 0, part.stderr
    assert part.json()["model_sha256"] == whole.json()["model_sha256"]
    assert records(tmp_path / "part") == records(tmp_path / "whole")
    if faults:
        assert any("refused" in record for record in records(tmp_path / "whole"))


def test_ctrl_c_in_a_run_with_links_and_faults_changes_nothing(forked, small, tmp_path: Path) -> None:
    options = ["run", *small, *CASES["fed_bnlaca"], *FAULTS, "--rounds", "100", "--eval-every", "50"]
    code, stderr = stopped(tmp_path, [*options, "--out", "part"])
    assert code == 130, stderr
    assert len(records(tmp_path / "part")) < 100
    again = forked("run", "part", "--resume", "--json")
    assert again.code == 0, again.stderr
    whole = forked(*options, "--out", "whole", "--json")
    assert again.json()["model_sha256"] == whole.json()["model_sha256"]
    assert records(tmp_path / "part") == records(tmp_path / "whole")
