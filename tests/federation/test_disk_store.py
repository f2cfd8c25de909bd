"""A store on disk is the store in memory, whatever happens to the process."""

from __future__ import annotations

import copy
import pickle
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laconic.core.errors import DataError, PacketError
from laconic.core.layout import Layout
from laconic.core.part import State
from laconic.core.state_dict import split
from laconic.federation.client_links import ClientLinkState, DiskClientLinkState
from laconic.federation.database import CHECKPOINT, Database
from laconic.federation.disk_store import DiskStore
from laconic.federation.store import ClientStore, MemoryStore, Question, Settled

KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
SHAPES = [(), (0,), (3,), (2, 5)]


def same(one: State | None, other: State | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def same_snapshots(one: ClientStore, other: ClientStore) -> bool:
    (tensors, plain), (tensors_there, plain_there) = split(one.state_dict()), split(other.state_dict())
    return same(tensors, tensors_there) and plain == plain_there


@st.composite
def states(draw: st.DrawFn) -> State:
    names = draw(st.lists(st.sampled_from(["uplink/memory", "downlink/model", "method/tracker"]), unique=True))
    seed = draw(st.integers(0, 1000))
    generator = torch.Generator().manual_seed(seed)

    def tensor() -> torch.Tensor:
        shape, kind = draw(st.sampled_from(SHAPES)), draw(st.sampled_from(KINDS))
        return torch.randint(0, 100, shape, generator=generator).to(kind)

    return {name: tensor() for name in names}


CLIENT = st.integers(0, 2)
ACTIONS = st.one_of(
    st.tuples(st.just("settle"), CLIENT, st.integers(0, 3), st.integers(0, 4), st.booleans()),
    st.tuples(st.just("propose"), CLIENT, st.integers(0, 3), states()),
    st.tuples(st.just("forget"), CLIENT),
    st.tuples(st.just("save")),
    st.tuples(st.just("crash")),
    st.tuples(st.just("return")),
)


def settle(store: ClientStore, client: int, question: Question) -> Settled | str:
    try:
        return store.settle(client, question)
    except PacketError as error:
        return error.reason


def agree(memory: ClientStore, disk: ClientStore, action: tuple, step: int) -> None:
    """Do the same to both, and compare what they say."""
    name, client, *rest = action
    if name == "forget":
        memory.forget(client)
        disk.forget(client)
    elif name == "propose":
        known, state = rest
        assert memory.propose(client, known, state) == disk.propose(client, known, state)
    else:
        back, acknowledged, goes_on = rest
        # Now and then an old question; numbers that are there and some that are not.
        record = memory.record(client)
        held = sorted(record.state_numbers()) if record else []
        number = held[acknowledged % len(held)] if held and acknowledged else acknowledged
        question = Question(0, step - back, 0, number, number if goes_on else None)
        one, other = settle(memory, client, question), settle(disk, client, question)
        if isinstance(one, str) or isinstance(other, str):
            assert one == other
        else:
            assert one.lost == other.lost and same(one.state, other.state)


def live_through(history: list[tuple], database: Database, die: Callable[[], None]) -> None:
    memory, disk = MemoryStore(), DiskStore(database)
    saved = copy.deepcopy(memory)
    snapshots = {0: saved}
    database.save({}, {}, 0)
    for step, action in enumerate(history):
        if action[0] == "save":
            database.save({"round": torch.tensor(step)}, {"step": step}, step + 1)
            saved = copy.deepcopy(memory)
            snapshots[step + 1] = saved
        elif action[0] == "return":
            database.restore(database.marks[0])
            database.commit()
            memory = copy.deepcopy(snapshots[database.marks[0]])
            saved = copy.deepcopy(memory)
        elif action[0] == "crash":
            die()
            memory = copy.deepcopy(saved)
        else:
            agree(memory, disk, action, step)
        assert same_snapshots(memory, disk)
        assert database._recent.total <= database._recent.limit
    database.close()


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(ACTIONS, max_size=40), st.sampled_from([0, 1500, 10**6]))
def test_a_store_on_disk_is_the_store_in_memory_over_any_history(history: list[tuple], cache: int) -> None:
    database = Database(cache)
    live_through(history, database, database.rollback)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(history=st.lists(ACTIONS, min_size=5, max_size=20))
def test_the_same_with_a_file_that_is_closed_and_opened_again(
    history: list[tuple], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("store") / "clients.sqlite"
    database = Database(1500)
    database.open(path)

    def again() -> None:
        database.close()
        assert [each.name for each in path.parent.iterdir()] == [path.name]
        database.open(path)

    live_through(history, database, again)


def test_with_at_once_each_call_is_durable_when_it_returns(tmp_path: Path) -> None:
    database = Database(0)
    database.open(tmp_path / "clients.sqlite")
    store = DiskStore(database, at_once=True)
    store.settle(5, Question(0, 0, 0, 0))
    first = store.propose(5, 0, {"memory": torch.ones(3)})
    store.settle(5, Question(0, 1, 0, first))
    database.close()
    database.open(tmp_path / "clients.sqlite")
    assert (store.record(5).committed, store.record(5).pending) == (first, [])
    with pytest.raises(PacketError, match="already received this instruction"):
        store.settle(5, Question(0, 1, 0, first))
    second = store.propose(5, first, {"memory": torch.zeros(3)})
    database.close()
    database.open(tmp_path / "clients.sqlite")
    assert (store.record(5).committed, store.record(5).pending) == (first, [second])
    store.forget(5)
    database.close()
    database.open(tmp_path / "clients.sqlite")
    assert list(store.clients()) == [] and not list(database.clients("client"))
    database.close()


def test_a_checkpoint_and_the_states_of_its_time_come_back_together(tmp_path: Path) -> None:
    database = Database(10**6)
    database.open(tmp_path / "run.sqlite")
    store, peers = DiskStore(database), DiskClientLinkState(database)
    assert database.load() is None
    number = store.propose(1, 0, {"memory": torch.ones(3)})
    peers[1] = {"mirror": torch.ones(2)}
    database.save({"server/model": torch.arange(4.0)}, {"round": 1}, 1)
    store.settle(1, Question(0, 1, 0, number))
    store.propose(1, number, {"memory": torch.zeros(3)})
    peers[1] = {"reference": torch.zeros(2)}
    peers[2] = {"mirror": torch.zeros(2)}
    database.put(CHECKPOINT, {"server/model": torch.zeros(4)}, recent=False)
    database.close()
    database.open(tmp_path / "run.sqlite")
    tensors, numbers = database.load()
    assert same(tensors, {"server/model": torch.arange(4.0)}) and numbers == {"round": 1}
    assert same(store.state(1, number), {"memory": torch.ones(3)}) and store.record(1).pending == [number]
    assert list(peers) == [1] and same(peers[1], {"mirror": torch.ones(2)}) and 2 not in peers
    database.close()


def test_a_checkpoint_writes_only_what_has_changed(tmp_path: Path) -> None:
    database = Database(0)
    database.open(tmp_path / "run.sqlite")
    store = DiskStore(database)
    for client in range(50):
        store.propose(client, 0, {"memory": torch.full((20_000,), float(client))})
    database.save({}, {}, 1)
    statements: list[str] = []
    database._connection.set_trace_callback(statements.append)
    store.propose(7, 1, {"memory": torch.zeros(20_000)})
    database.save({}, {}, 2)
    written = [each for each in statements if each.startswith("INSERT INTO contents")]
    # A vector, the record of the client, and the plain values of the checkpoint.
    assert len(written) == 3
    database.close()


def test_peers_on_disk_are_peers_in_memory() -> None:
    layout = Layout.of(torch.nn.Linear(3, 1))
    memory, disk = ClientLinkState(layout), DiskClientLinkState(Database(0))
    for peers in (memory, disk):
        peers[3] = {"downlink/mirror": torch.arange(4.0), "uplink/reference": torch.tensor([1], dtype=torch.uint8)}
        peers[1] = {"downlink/mirror": torch.ones(4)}
        peers[3] = {"downlink/mirror": torch.zeros(4)}
        peers[2] = {"uplink/reference": torch.tensor([2], dtype=torch.uint8)}
        peers.forget(1)
        peers.forget(9)
    assert sorted(memory) == sorted(disk) == [2, 3]
    for client in range(4):
        assert same(memory.get(client), disk.get(client)) and (client in memory) == (client in disk)
    restored = ClientLinkState(layout)
    restored[7] = {"downlink/mirror": torch.ones(4)}
    restored.load_state_dict(memory.state_dict())
    assert sorted(restored) == [2, 3] and same(restored[3], memory[3])


@pytest.mark.parametrize("cache", [0, 10**6])
def test_writing_to_a_vector_changes_one_client_only(cache: int) -> None:
    layout = Layout.of(torch.nn.Linear(3, 1))
    first = torch.ones(4)  # as the initial model is the first mirror of every client
    for peers in (ClientLinkState(layout), DiskClientLinkState(Database(cache))):
        peers[1], peers[2] = {"mirror": first}, {"mirror": first}
        state = peers[1]
        state["mirror"].add_(1.0)
        peers[1] = state
        assert peers[1]["mirror"].tolist() == [2.0] * 4
        assert peers[2]["mirror"].tolist() == first.tolist() == [1.0] * 4


def test_the_least_recently_used_states_make_room() -> None:
    recent = Database(3 * 5000)._recent
    for client in range(3):
        recent.put(("client", client, 1), {"memory": torch.zeros(1000)})
    recent.get(("client", 0, 1))
    recent.put(("client", 3, 1), {"memory": torch.zeros(1000)})
    assert [client for client in range(4) if recent.get(("client", client, 1)) is not None] == [0, 2, 3]
    recent.put(("client", 4, 1), {"memory": torch.zeros(100_000)})
    assert recent.get(("client", 4, 1)) is None and recent.total == 0


def test_states_of_nothing_are_not_kept_without_end() -> None:
    recent = Database(10_000)._recent
    for client in range(1000):
        recent.put(("client", client, 1), {})
    assert len(recent) <= 20


def test_a_cache_arrives_empty_in_another_process() -> None:
    recent = Database(10_000)._recent
    recent.put(("client", 0, 1), {})
    there = pickle.loads(pickle.dumps(recent))
    assert (len(there), there.limit) == (0, 10_000)
    there.put(("client", 0, 1), {})
    assert there.total == recent.total


def test_a_row_of_a_matrix_does_not_keep_the_matrix_in_memory() -> None:
    database = Database(10**6)
    matrix = torch.arange(1000.0).reshape(10, 100)
    database.put(("client", 0, 1), {"memory": matrix[3]})
    kept = database.get(("client", 0, 1))["memory"]
    assert kept.untyped_storage().nbytes() == 400 and torch.equal(kept, matrix[3])
    database.close()


def test_with_at_once_what_fails_in_the_middle_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(10**6)
    store = DiskStore(database, at_once=True)
    first = store.propose(5, 0, {"memory": torch.ones(3)})
    execute = database.execute

    def full(statement: str, values: tuple = ()) -> list[tuple]:
        if statement.startswith("INSERT INTO entries") and "record" in values:
            raise DataError("the disk is full")
        return execute(statement, values)

    monkeypatch.setattr(database, "execute", full)
    with pytest.raises(DataError, match="full"):
        store.propose(5, first, {"memory": torch.zeros(3)})
    monkeypatch.undo()
    assert store.record(5).pending == [first] and store.state(5, first + 1) == {}
    assert store.propose(5, first, {"memory": torch.zeros(3)}) == first + 1
    database.close()


def test_two_processes_do_not_share_a_file(tmp_path: Path) -> None:
    first, second = Database(0), Database(0)
    first.open(tmp_path / "run.sqlite")
    with pytest.raises(DataError, match="another process is using it"):
        second.open(tmp_path / "run.sqlite")
    first.close()
    second.open(tmp_path / "run.sqlite")
    second.close()


def test_a_file_that_is_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.sqlite").write_text("not a database at all, but long enough to have a header" * 10)
    with pytest.raises(DataError, match=r"text\.sqlite.*not a database"):
        Database(0).open(tmp_path / "text.sqlite")
    with sqlite3.connect(tmp_path / "newer.sqlite") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(DataError, match="another version of Laconic"):
        Database(0).open(tmp_path / "newer.sqlite")
    with pytest.raises(DataError, match="unable to open"):
        Database(0).open(tmp_path / "no folder" / "run.sqlite")
