"""Many nodes and many rounds: nothing grows with the rounds. `benchmarks/load.py` measures the same at full size."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "load.py"


@pytest.fixture(scope="module")
def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("load", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(load: ModuleType, folder: Path, nodes: int, participants: int, parameters: int, rounds: int) -> None:
    meter = load.Meter({rounds // 4, rounds})
    result = load.run_load(folder, meter, nodes, participants, parameters, rounds)
    assert [record["participants"] for record in result.history] == [participants] * rounds
    assert not any("refused" in record for record in result.history)
    (_, early), (_, late) = meter.memory
    assert late < early + 5 + 2 * 4e-6 * parameters  # MB: what the allocator keeps, and two vectors


def test_memory_does_not_grow_with_the_rounds(load: ModuleType, tmp_path: Path) -> None:
    check(load, tmp_path, nodes=200, participants=20, parameters=50_000, rounds=60)


@pytest.mark.long
def test_two_thousand_nodes_for_two_hundred_rounds(load: ModuleType, tmp_path: Path) -> None:
    check(load, tmp_path, nodes=2000, participants=100, parameters=1_000_000, rounds=200)
