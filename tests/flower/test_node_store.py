"""A node's file behaves as the store of a simulation does, whenever it is closed and opened again."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.core.errors import DataError, PacketError
from laconic.federation.disk_store import SharedStore
from laconic.federation.store import MemoryStore, Question

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from laconic.flower.node_store import NodeFile
from laconic.flower.plan import Plan

STEPS = st.tuples(st.integers(0, 1), st.integers(0, 3), st.sampled_from(["same", "next", "late"]), st.booleans())


def plan(run: str) -> Plan:
    shape = {"kind": "classification", "classes": 10, "input_shape": (1, 8, 8)}
    return Plan.model_validate(
        {"run": run, "name": "fed_avg", "parts": {}, "seed": 0, "clients": 1, "partition": None, "numerics": {}}
        | {"buffers": "mean", "shape": shape, "fingerprint": 1, "initial": ""}
    )


def opened(path: Path) -> SharedStore:
    return NodeFile(path).store("run", unseen=lambda: 0)


def outcome(store, client, question, known, state):
    """What settle and propose say, or the refusal."""
    try:
        settled = store.settle(client, question)
    except PacketError as error:
        return error.reason
    kept = None if settled.state is None else {name: value.tolist() for name, value in settled.state.items()}
    return kept, settled.lost, store.propose(client, known, state)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(STEPS, max_size=12))
def test_it_agrees_with_the_store_of_a_simulation(tmp_path_factory, steps):
    path = tmp_path_factory.mktemp("node") / "node.sqlite"
    memory = MemoryStore()
    round = exchange = 0
    for step, (client, back, when, continues) in enumerate(steps):
        if when == "next":
            round, exchange = round + 1, 0
        elif when == "same":
            exchange += 1
        last = max((record["number"] for record in memory.state_dict()["records"].values()), default=0)
        acknowledged = max(0, last - back)
        question = Question(0, round, exchange, acknowledged, last if continues else None)
        state = {"x": torch.tensor([float(step)]), "y": torch.arange(step)}
        expected = outcome(memory, client, question, acknowledged, state)
        assert outcome(opened(path), client, question, acknowledged, state) == expected


def test_nothing_is_kept_of_a_question_that_was_not_answered(tmp_path):
    path = tmp_path / "node.sqlite"
    store = opened(path)
    store.settle(0, Question(0, 0, 0, 0))
    first = store.propose(0, 0, {"x": torch.tensor([1.0])})
    # Killed while it works on the second question, which has told it to drop its first answer.
    opened(path).settle(0, Question(0, 1, 0, 0))
    settled = opened(path).settle(0, Question(0, 2, 0, first))
    assert not settled.lost
    assert settled.state is not None
    assert settled.state["x"].tolist() == [1.0]


def test_of_two_processes_that_answer_at_once_only_one_does(tmp_path):
    path = tmp_path / "node.sqlite"
    slow, quick = opened(path), opened(path)
    slow.settle(0, Question(0, 0, 0, 0))
    quick.settle(0, Question(0, 1, 0, 0))
    number = quick.propose(0, 0, {"x": torch.ones(1)})
    with pytest.raises(PacketError, match="in the meantime"):
        slow.propose(0, 0, {"x": torch.zeros(1)})
    settled = opened(path).settle(0, Question(0, 2, 0, number))
    assert settled.state is not None
    assert settled.state["x"].tolist() == [1.0]


def test_a_new_file_never_repeats_a_number(tmp_path):
    """It may have answered before: the numbers of the old file are not known any more."""
    numbers = set()
    for attempt in range(5):
        store = NodeFile(tmp_path / f"{attempt}.sqlite").store("run")
        store.settle(0, Question(0, 0, 0, 0))
        numbers.add(store.propose(0, 0, {}))
    assert len(numbers) == 5


def test_runs_and_clients_do_not_share_states(tmp_path):
    file = NodeFile(tmp_path / "node.sqlite")
    for run, client in (("a", 0), ("a", 1), ("b", 0)):
        store = file.store(run)
        assert store.settle(client, Question(0, 0, 0, 0)).state is None
        store.propose(client, 0, {"x": torch.ones(1)})
    file.store("a").forget(0)
    assert file.store("a").settle(0, Question(0, 0, 0, 0)).state is None
    with pytest.raises(PacketError, match="stale"):
        file.store("b").settle(0, Question(0, 0, 0, 0))


def test_runs_that_nobody_speaks_of_any_more_are_forgotten(tmp_path, monkeypatch):
    file = NodeFile(tmp_path / "node.sqlite")
    clock = [1e9]
    monkeypatch.setattr("laconic.flower.node_store.time.time", lambda: clock[0])

    def answer(run: str) -> None:
        store = file.store(run)
        store.settle(0, Question(0, 0, 0, 0))
        store.propose(0, 0, {"x": torch.ones(1000)})

    for run in ("old", "busy"):
        file.enter(plan(run))
        answer(run)
    clock[0] += 20 * 86400
    file.store("busy").forget(0)
    answer("busy")
    clock[0] += 20 * 86400
    file.enter(plan("new"))
    assert file.plan("old") is None
    assert file.plan("busy") == plan("busy")
    with closing(sqlite3.connect(file.path)) as connection:
        rows = connection.execute("SELECT run, owner FROM entries").fetchall()
        assert {run for run, owner in rows if owner in ("client", "record")} == {"busy"}
    # Had it gone on after all, the node would have started over.
    assert file.store("old").settle(0, Question(0, 5, 0, 3)).lost


def test_a_node_keeps_its_name_and_refuses_a_file_of_another_version(tmp_path):
    file = NodeFile(tmp_path / "node.sqlite")
    name = file.name()
    file.enter(plan("a"), keep_days=0)
    assert NodeFile(file.path).name() == name
    with closing(sqlite3.connect(file.path)) as connection:
        connection.execute("PRAGMA user_version = 1")
    with pytest.raises(DataError, match=r"node\.sqlite' was written by another version of Laconic: its format is 1"):
        NodeFile(file.path).name()


@pytest.mark.parametrize("count", [60, pytest.param(5000, marks=pytest.mark.long)])
def test_damage_is_noticed(tmp_path, count):
    path = tmp_path / "node.sqlite"
    file = NodeFile(path)
    file.enter(plan("run"))
    name = file.name()
    store = file.store("run", unseen=lambda: 0)
    store.settle(0, Question(0, 0, 0, 0))
    number = store.propose(0, 0, {"x": torch.arange(5000.0)})
    assert path.stat().st_mode & 0o777 == 0o600
    content = path.read_bytes()
    used = [place for place, byte in enumerate(content) if byte]
    generator = random.Random(1)
    cuts = [content[: generator.randrange(len(content))] for _ in range(10)] + [content[:-3000], content[:-1]]
    refused = 0
    for damaged in [flipped(content, generator.choice(used), generator) for _ in range(count)] + cuts:
        path.write_bytes(damaged)
        try:
            assert file.plan("run") == plan("run") or not damaged
            assert file.name() == name or not damaged
            settled = file.store("run").settle(0, Question(0, 1, 0, number))
            assert torch.equal(settled.state["x"], torch.arange(5000.0))
        except DataError as error:
            assert str(path) in str(error) and "\n" not in str(error)
            refused += 1
    assert refused > count // 2 + len(cuts) - 2


def flipped(content, place, generator):
    damaged = bytearray(content)
    damaged[place] ^= 1 << generator.randrange(8)
    return bytes(damaged)
