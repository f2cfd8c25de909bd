"""With a model that is large beside everything else, memory is a number of vectors that does not depend on the clients."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

import laconic
from laconic.federation.store import MemoryStore

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "large_model.py"


@pytest.mark.long
def test_memory_does_not_grow_with_the_clients() -> None:
    command = [sys.executable, str(BENCHMARK), "--json", "--parameters", "10000000", "--clients", "3", "12"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    few, many = json.loads(done.stdout.splitlines()[-1])["rounds"]
    assert many["clients"] == 4 * few["clients"] and many["bytes_down"] == 4 * few["bytes_down"]
    # A client's error memory, its instruction and its model would each be a vector; nine more clients would show.
    assert many["vectors"] < few["vectors"] + 3
    assert many["vectors"] < 30


def test_the_states_of_clients_go_with_their_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the garbage collector, which runs too seldom for states of hundreds of megabytes."""
    stores: list[weakref.ref[MemoryStore]] = []
    write = MemoryStore._write

    def noted(self: MemoryStore, *arguments) -> None:
        stores.append(weakref.ref(self))
        write(self, *arguments)

    monkeypatch.setattr(MemoryStore, "_write", noted)
    gc.disable()
    try:
        laconic.simulate("fed_cams", "mlp:8", laconic.data.load("digits", clients=3), rounds=1)
        assert stores and not any(store() for store in stores)
    finally:
        gc.enable()
