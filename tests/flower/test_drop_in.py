"""Compression in somebody else's Flower app: the app of docs/guides/flower-app.md, with real messages in one process."""

from __future__ import annotations

import importlib
import logging
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedMedian, FedTrimmedAvg

from laconic.compression.packet import HEADER_BYTES
from laconic.core.errors import ConfigError, PacketError
from laconic.flower import Compressed, compress_mod, wire
from laconic.flower.arrays import ArrayTable
from tests.documentation.pages import ROOT, blocks
from tests.flower.loopback import LoopbackGrid

PAGE = ROOT / "docs" / "guides" / "flower-app.md"
NODES = [2**63 + 11, 12, 13]


class Grid(LoopbackGrid):
    """Flower's delivery: an app that raises becomes a reply with an error."""

    def push_messages(self, messages):
        identifiers = []
        for message in messages:
            try:
                identifiers += super().push_messages([message])
            except Exception as error:
                identifiers.append(message.metadata.message_id)
                reply = Message(Error(2, repr(error)), reply_to=message)
                self.replies[message.metadata.message_id] = reply
        return identifiers

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(messages))


def accuracy(result) -> float:
    return result.evaluate_metrics_serverapp[max(result.evaluate_metrics_serverapp)]["accuracy"]


@pytest.fixture(scope="module")
def guide(tmp_path_factory):
    """The modules of the guide's app."""
    folder = tmp_path_factory.mktemp("app")
    names = ["task", "client_app", "server_app"]
    for block in blocks(PAGE):
        if block.file:
            (folder / block.file).write_text(block.text)
    sys.path.insert(0, str(folder))
    yield {name: importlib.import_module(name) for name in names}
    sys.path.remove(str(folder))
    for name in names:
        del sys.modules[name]


def run_guide(guide, folder: Path, strategy, rounds: int, mods=None):
    client, server = guide["client_app"], guide["server_app"]
    app = client.app if mods is None else ClientApp(mods=mods)
    if mods is not None:
        app.train()(client.train)
        app.evaluate()(client.evaluate)
    grid = Grid()
    for number, node in enumerate(NODES):
        grid.add(node, lambda: app, partition_id=number, num_partitions=len(NODES), state=str(folder))
    arrays = ArrayRecord(guide["task"].make_model().state_dict())
    config = ConfigRecord({"lr": 0.05})
    return strategy.start(grid, arrays, num_rounds=rounds, train_config=config, evaluate_fn=server.evaluate)


@pytest.mark.long
def test_the_guides_app_without_loss_is_the_app_alone(guide, tmp_path: Path) -> None:
    """The difference is rounded once more: x + (y - x) is not y to the last bit."""
    plain = run_guide(guide, tmp_path / "plain", FedAvg(), 1, mods=[])
    compressed = run_guide(guide, tmp_path / "own", Compressed(FedAvg(), uplink="dense", downlink="dense"), 1)
    for name, array in plain.arrays.items():
        np.testing.assert_allclose(compressed.arrays[name].numpy(), array.numpy(), rtol=1e-4, atol=2e-5)
    assert [*compressed.arrays] == [*plain.arrays]
    assert compressed.evaluate_metrics_clientapp.keys() == plain.evaluate_metrics_clientapp.keys() == {1}


@pytest.mark.long
@pytest.mark.parametrize("strategy", [FedAvg, FedMedian])
def test_the_guides_app_learns_as_well_with_a_fraction_of_the_bytes(guide, tmp_path: Path, strategy) -> None:
    plain = run_guide(guide, tmp_path / "plain", strategy(), 20, mods=[])
    wrapped = Compressed(strategy(), uplink="top_k:1/64", downlink="top_k:1/16")
    compressed = run_guide(guide, tmp_path / "own", wrapped, 20)
    assert accuracy(compressed) > accuracy(plain) - 0.02
    assert wrapped.uncompressed.bytes("up") > 30 * wrapped.ledger.bytes("up")
    assert wrapped.uncompressed.bytes("down") > 9 * wrapped.ledger.bytes("down")


# An app whose training is a fixed step, so that every number can be computed by hand.

START = np.array([1.0, -2.0, 3.0, 0.5], dtype=np.float32)
STEPS = {
    node: np.random.default_rng(number).standard_normal((20, 4)).astype(np.float32) for number, node in enumerate(NODES)
}


def step_app(*mods) -> ClientApp:
    app = ClientApp(mods=[*mods])

    @app.train()
    def train(message: Message, context) -> Message:
        arrays = message.content["arrays"]
        step = STEPS[context.node_id][message.content["config"]["server-round"] - 1]
        changed = {name: array.numpy() for name, array in arrays.items()}
        changed["w"] = (changed["w"] + step.reshape(2, 2)).astype(changed["w"].dtype)
        content = {name: Array(value) for name, value in changed.items()}
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"out": ArrayRecord(content), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context) -> Message:
        first = float(message.content["arrays"]["w"].numpy()[0, 0])
        return Message(RecordDict({"metrics": MetricRecord({"first": first, "num-examples": 1})}), reply_to=message)

    return app


def run_steps(folder: Path, strategy, rounds: int, *, nodes=NODES, spoil=None, mods=None, others=None, evaluate=None):
    grid = Grid()
    mods = [compress_mod()] if mods is None else mods
    for number, node in enumerate(nodes):
        grid.add(node, lambda: step_app(*mods), partition_id=number, state=str(folder))
    grid.spoil = spoil or grid.spoil
    arrays = ArrayRecord({"w": Array(START.reshape(2, 2)), **(others or {})})
    return strategy.start(grid, arrays, num_rounds=rounds, evaluate_fn=evaluate)


@pytest.mark.parametrize("strategy", [FedAvg, FedAdam, FedMedian, FedTrimmedAvg, FedAvgM])
def test_without_loss_any_strategy_computes_what_it_does_alone(tmp_path: Path, strategy) -> None:
    plain = run_steps(tmp_path, strategy(), 4, mods=[])
    compressed = run_steps(tmp_path, Compressed(strategy(), uplink="dense", downlink="dense"), 4)
    np.testing.assert_allclose(compressed.arrays["w"].numpy(), plain.arrays["w"].numpy(), rtol=1e-4, atol=1e-5)
    assert [*compressed.train_metrics_clientapp] == [*plain.train_metrics_clientapp] == [1, 2, 3, 4]


def top(vector: np.ndarray, count: int) -> np.ndarray:
    kept = np.zeros_like(vector)
    largest = np.argsort(-abs(vector), kind="stable")[:count]
    kept[largest] = vector[largest]
    return kept


def by_hand(rounds: int, lost=(), down: int = 4) -> np.ndarray:
    """Two-way compression with error feedback, for one node: top 1 of 4 up, top `down` of 4 down, evaluated each round."""
    node = NODES[0]
    model, memory, copy = START.copy(), np.zeros(4, np.float32), None
    for number in range(1, rounds + 1):
        before = copy
        copy = model.copy() if copy is None else copy + top(model - copy, down)
        target = (copy + STEPS[node][number - 1]) - copy + memory
        sent = top(target, 1)
        if number in lost:
            copy = before
        else:
            model, memory = model + sent, target - sent
        copy = model.copy() if copy is None else copy + top(model - copy, down)  # the message that evaluates
    return model


@pytest.mark.parametrize(("downlink", "down"), [("dense", 4), ("top_k:1/2", 2), ("top_k:1/4", 1)])
@pytest.mark.parametrize("lost", [(), (1,), (2, 3), (5,)])
def test_error_memory_and_copies_are_those_of_a_plain_loop(tmp_path: Path, downlink: str, down: int, lost) -> None:
    """Also if replies are lost: their round never happened, on both sides."""
    round_of = iter(range(1, 100))

    def spoil(node, reply):
        if reply.metadata.message_type != "train":
            return reply
        return None if next(round_of) in lost else reply

    strategy = Compressed(FedAvg(1.0, 1.0, 1, 1, 1), uplink="top_k:1/4", downlink=downlink)
    result = run_steps(tmp_path, strategy, 8, nodes=NODES[:1], spoil=spoil)
    np.testing.assert_allclose(result.arrays["w"].numpy().ravel(), by_hand(8, lost, down), rtol=1e-5, atol=1e-6)


def test_the_node_decides_about_its_own_uplink(tmp_path: Path) -> None:
    strategy = Compressed(FedAvg(1.0, 0.0, 1, 0, 1), uplink="dense")
    mods = [compress_mod("top_k:1/4", memory=False)]
    result = run_steps(tmp_path, strategy, 1, nodes=NODES[:1], mods=mods)
    expected = START + top((START + STEPS[NODES[0]][0]) - START, 1)
    np.testing.assert_array_equal(result.arrays["w"].numpy().ravel(), expected)


@pytest.mark.parametrize("downlink", ["dense", "top_k:1/2"])
def test_a_node_that_has_lost_its_file_receives_the_whole_model(tmp_path: Path, downlink: str) -> None:
    def forget(number, arrays):
        if number == 3:
            (tmp_path / "node-0.sqlite").unlink()

    strategy = Compressed(FedAvg(), uplink="dense", downlink=downlink)
    result = run_steps(tmp_path, strategy, 8, evaluate=forget)
    # A difference cannot be decoded without the copy, so one message is lost; the whole model always can.
    assert strategy.ledger.refused == ({} if downlink == "dense" else {"lost": 1})
    assert np.isfinite(result.arrays["w"].numpy()).all()
    assert len(result.train_metrics_clientapp) == 8


def test_arrays_that_are_not_floats_travel_as_they_are(tmp_path: Path) -> None:
    others = {
        "count": Array(np.array(7)),
        "mask": Array(np.array([True, False])),
        "bn.running_var": Array(np.array([0.5, 2.0], dtype=np.float32)),
        "causal": Array(np.array([0.0, -np.inf], dtype=np.float32)),
        "half": Array(np.array([1.5, 2.5], dtype=np.float16)),
    }
    table = ArrayTable.of(ArrayRecord({"w": Array(START), **others}))
    assert [entry.name for entry in table.entries if entry.compressed] == ["w", "half"]
    # FedMedian does not change types, so the record comes back as it was sent.
    strategy = Compressed(FedMedian(), uplink="top_k:1/4", downlink="top_k:1/2")
    result = run_steps(tmp_path, strategy, 3, others=others)
    assert [*result.arrays] == ["w", *others]
    for name in others:
        np.testing.assert_array_equal(result.arrays[name].numpy(), others[name].numpy())
    assert result.arrays["half"].dtype == "float16"


def test_a_reply_of_another_float_type_is_compressed_too(tmp_path: Path) -> None:
    """FedAdam's model is of float64 after the first round, and a PyTorch client replies in float32."""

    def to_float32(message, context, call_next):
        reply = call_next(message, context)
        if "out" in reply.content:
            arrays = {name: Array(array.numpy().astype(np.float32)) for name, array in reply.content["out"].items()}
            reply.content["out"] = ArrayRecord(arrays)
        return reply

    strategy = Compressed(FedAdam(), uplink="top_k:1/4", downlink="top_k:1/2")
    result = run_steps(tmp_path, strategy, 4, mods=[compress_mod(), to_float32])
    assert result.arrays["w"].dtype == "float64"
    assert "up/arrays" not in strategy.ledger.streams
    assert not strategy.ledger.refused


@pytest.mark.parametrize("downlink", ["dense", "top_k:1/2"])
def test_a_reply_with_other_arrays_needs_the_whole_model(tmp_path: Path, downlink: str) -> None:
    def renamed(message, context, call_next):
        reply = call_next(message, context)
        if "out" in reply.content:
            reply.content["out"] = ArrayRecord({"other": reply.content["out"]["w"]})
        return reply

    strategy = Compressed(FedAvg(), uplink="dense", downlink=downlink)
    result = run_steps(tmp_path, strategy, 1, mods=[compress_mod(), renamed])
    assert [*result.arrays] == (["other"] if downlink == "dense" else [])
    assert len(result.train_metrics_clientapp) == (downlink == "dense")


def test_float64_stays_float64() -> None:
    arrays = ArrayRecord({"w": Array(np.array([1.0, 1e-17])), "v": Array(START)})
    table = ArrayTable.of(arrays)
    again = table.record(table.vector(arrays), ArrayRecord())
    assert [again[name].data for name in again] == [arrays[name].data for name in arrays]


def damaged(reply: Message, rng: np.random.Generator) -> None:
    """Change a reply as a malicious node may."""
    record = reply.content.config_records[wire.RECORD]
    packet = bytearray(record["packets"][0])
    kind = rng.integers(6)
    if kind < 3:
        packet[rng.integers(len(packet))] ^= 1 << rng.integers(8)
        record["packets"] = [bytes(packet)]
    elif kind == 3:
        record["packets"] = [bytes(packet[: rng.integers(len(packet))])]
    elif kind == 4:
        record[str(rng.choice(["packets", "record"]))] = 5
    else:
        reply.content["out"] = ArrayRecord({"w": Array("float32", (2, 2), "numpy.ndarray", b"no array")})


def test_a_malicious_reply_is_refused_and_the_others_are_used(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def spoil(node, reply):
        if node == NODES[0] and reply.metadata.message_type == "train":
            damaged(reply, rng)
        return reply

    strategy = Compressed(FedAvg(), uplink="dense", downlink="top_k:1/2")
    result = run_steps(tmp_path, strategy, 12, spoil=spoil)
    assert sum(strategy.ledger.refused.values()) == len(strategy.ledger.refused_clients) == 12
    assert {*strategy.ledger.refused_clients} == {NODES[0]}
    expected = START + sum((STEPS[node] for node in NODES[1:]), np.zeros((20, 4)))[:12].sum(0) / 2
    np.testing.assert_allclose(result.arrays["w"].numpy().ravel(), expected, rtol=1e-3, atol=1e-3)


def test_an_old_reply_is_refused(tmp_path: Path) -> None:
    strategy = Compressed(FedAvg(), uplink="dense")
    first: list[list[bytes]] = []

    def repeat(node, reply):
        if node == NODES[0] and reply.metadata.message_type == "train":
            record = reply.content.config_records[wire.RECORD]
            first.append(list(record["packets"]))
            record["packets"] = first[0]
        return reply

    run_steps(tmp_path, strategy, 3, spoil=repeat)
    assert strategy.ledger.refused == {"stale": 2}


def test_a_message_that_is_delivered_twice_is_answered_once(tmp_path: Path) -> None:
    app, seen = step_app(compress_mod()), []

    class Twice(Grid):
        def push_messages(self, messages):
            messages = list(messages)
            copies = [(message, RecordDict({**message.content})) for message in messages]
            identifiers = super().push_messages(messages)
            for message, content in copies:
                again = Message(content, message.metadata.dst_node_id, message.metadata.message_type)
                make, config = self.nodes[message.metadata.dst_node_id]
                context = Context(1, message.metadata.dst_node_id, config, RecordDict(), {})
                seen.append(make()(again, context))
            return identifiers

    grid = Twice()
    grid.add(12, lambda: app, partition_id=0, state=str(tmp_path))
    strategy = Compressed(FedAvg(1.0, 0.0, 1, 0, 1), uplink="dense")
    result = strategy.start(grid, ArrayRecord({"w": Array(START.reshape(2, 2))}), num_rounds=3)
    assert [reply.error.reason.split(":")[0] for reply in seen] == ["stale"] * 3
    np.testing.assert_allclose(result.arrays["w"].numpy().ravel(), START + STEPS[12][:3].sum(0), rtol=1e-5)


def test_the_ledger_has_the_bytes_of_the_messages(tmp_path: Path) -> None:
    up: list[int] = []

    def spoil(node, reply):
        up.append(len(reply.content.config_records[wire.RECORD]["packets"][0]))
        return reply

    strategy = Compressed(FedAvg(), uplink="dense")
    run_steps(tmp_path, strategy, 2, spoil=spoil)
    # Twice three updates of four numbers, and twice three empty packets of evaluations.
    assert strategy.ledger.streams["up/packets"].bytes == sum(up) == 6 * (HEADER_BYTES + 16) + 6 * HEADER_BYTES
    array = 1 + len(Array(START.reshape(2, 2)).data)
    assert strategy.uncompressed.streams["up/arrays"].bytes == 6 * array
    assert strategy.uncompressed.streams["down/arrays"].bytes == 12 * array
    assert "up            12" in strategy.traffic()


def test_a_table_cannot_claim_memory(tmp_path: Path) -> None:
    values = {"run": "0", "key": "0", "record": "arrays", "uplink": "dense", "mirrored": 0, "packets": [b"short"]}
    values["table"] = '[{"name": "w", "shape": [1000000000000], "dtype": "float32"}]'
    grid = Grid()
    grid.add(12, lambda: step_app(compress_mod()), partition_id=0, state=str(tmp_path))
    content = RecordDict({"arrays": ArrayRecord(), **wire.content(**values)})
    (reply,) = grid.send_and_receive([Message(content, 12, "train")])
    assert "without the 4000000000000 bytes" in reply.error.reason
    with pytest.raises(PacketError):
        ArrayTable.parse('[{"name": "w", "shape": [-1], "dtype": "float32"}]')


def test_an_update_that_is_not_finite_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = STEPS | {NODES[0]: np.full((20, 4), np.nan, dtype=np.float32)}
    monkeypatch.setitem(globals(), "STEPS", broken)
    result = run_steps(tmp_path, Compressed(FedAvg()), 1)
    assert np.isfinite(result.arrays["w"].numpy()).all()


def test_what_cannot_work_is_said_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown compressor 'topk'"):
        Compressed(FedAvg(), uplink="topk:1/64")
    with pytest.raises(ConfigError, match="unknown compressor"):
        compress_mod("topk:1/64")
    with pytest.raises(ConfigError, match="inside another strategy"):
        Compressed(Compressed(FedAvg())).strategy.configure_train(1, ArrayRecord(), ConfigRecord(), Grid())


def test_an_app_without_the_mod_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("flwr")
    logger.addHandler(caplog.handler)
    try:
        run_steps(tmp_path, Compressed(FedAvg()), 1, mods=[])
    finally:
        logger.removeHandler(caplog.handler)
    assert "do the ClientApps have compress_mod" in caplog.text
