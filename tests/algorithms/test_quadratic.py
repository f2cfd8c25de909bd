"""Unlike Hessians and optima: which methods end at the optimum, and which elsewhere (benchmarks/quadratic.py)."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "quadratic.py"
SPEC = importlib.util.spec_from_file_location("quadratic", FILE)
quadratic = importlib.util.module_from_spec(SPEC)
sys.modules["quadratic"] = quadratic
SPEC.loader.exec_module(quadratic)

CASES = quadratic.cases()
BIASED = ["fed_gate, n = 1", "fed_avg, n = 1", "fed_avg, n = N"]


def at_length(name: str) -> object:
    """Those that take many rounds, or all clients in each round, are left to `make test-long`."""
    long = CASES[name].rounds > 700 or "n = N" in name
    return pytest.param(name, marks=pytest.mark.long) if long else name


@pytest.mark.parametrize("name", [at_length(name) for name in CASES if name not in BIASED])
def test_it_reaches_the_optimum(name: str) -> None:
    assert quadratic.distances(CASES[name], quadratic.optimum())[-1] < 1e-8


def test_fed_avg_stops_at_its_biased_point() -> None:
    everybody = CASES["fed_avg, n = N"]
    assert quadratic.distances(everybody, quadratic.biased_point())[-1] < 1e-12
    apart = np.linalg.norm(quadratic.biased_point() - quadratic.optimum())
    assert quadratic.distances(everybody, quadratic.optimum())[-1] == pytest.approx(apart)
    assert apart > 0.01


def test_with_one_participant_fed_gate_is_fed_avg() -> None:
    alone, plain = (
        quadratic.distances(CASES[name], quadratic.optimum()) for name in ("fed_gate, n = 1", "fed_avg, n = 1")
    )
    assert alone == plain
    assert min(alone[-50:]) > 0.1
