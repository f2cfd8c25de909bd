"""What nodes claim about themselves is bounded, and what the server refuses is in the metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

import laconic

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import ConfigRecord, Context, Message, RecordDict

from laconic.algorithms.methods.received import Received
from laconic.compression.packet import Packet
from laconic.flower import client_app, server_app, wire
from laconic.flower.server import serve
from laconic.run.records import metrics_of
from tests.flower.joining import Nodes, roster
from tests.flower.loopback import LoopbackGrid, failure
from tests.flower.small_federation import CLIENTS, SETTINGS, add, data, federation, run, simulated


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("laconic.flower.roster.FIRST_PAUSE", 0.02)
    monkeypatch.setattr("laconic.flower.training.SHORTEST_REST", 0.01)
    monkeypatch.setattr("laconic.flower.presence.POLL_EVERY", 0.01)


def of(message: Message) -> ConfigRecord:
    return message.content.config_records[wire.RECORD]


def saying(grid: LoopbackGrid, node: int, kinds: tuple[str, ...], **values: object) -> None:
    """Let a node say something else in its messages of these kinds."""

    def spoil(sender: int, reply: Message) -> Message:
        if sender == node and reply.metadata.message_type in kinds:
            for name, value in values.items():
                of(reply)[name] = value
        return reply

    grid.spoil = spoil


def small(context: Context) -> laconic.ClientData:
    return laconic.data.from_arrays([data().examples.batch(torch.arange(10))], classes=10)


def add_small(grid: LoopbackGrid, folder: Path) -> None:
    grid.add(100, partial(client_app, "logistic", small), partition_id=0, state=str(folder / "nodes"))


def asked(grid: LoopbackGrid) -> list[int]:
    return [node for kind, node in grid.sent if kind == "train"]


@pytest.mark.parametrize("algorithm", ["fed_gate", "scaffold"])
@pytest.mark.parametrize("alone", [False, True])
def test_the_first_node_does_not_decide_which_sizes_are_allowed(tmp_path, caplog, algorithm, alone):
    """Both methods need the same number of steps of all clients; with epochs it follows from the size."""
    grid = LoopbackGrid()
    add_small(grid, tmp_path)

    def arrive(messages: list[Message]) -> None:
        if messages[0].metadata.message_type == "train":
            add(grid, tmp_path, 1)
            add(grid, tmp_path, 2)

    if alone:
        grid.before_push = arrive
    else:
        add(grid, tmp_path, 1)
        add(grid, tmp_path, 2)
    settings = {"local_steps": None, "local_epochs": 1, "rounds": 5, "deadline": 0.2}
    result = run(grid, tmp_path, algorithm, first=1 if alone else 2, **settings)
    assert "node 100 cannot take part: examples: 10 examples: method.local_epochs = 1" in caplog.text
    assert [record["participants"] for record in result.history[2:]] == [2] * 3
    assert {*asked(grid)[-6:]} == {101, 102}


def test_the_number_of_examples_has_a_limit(tmp_path, caplog):
    grid = federation(tmp_path)
    saying(grid, 101, ("query",), examples=2**52)
    result = run(grid, tmp_path, "fed_avg", rounds=1, first=2)
    assert (
        "node 101 cannot take part: examples: 4,503,599,627,370,496 examples; most-examples = 4294967296" in caplog.text
    )
    assert result.history[-1]["participants"] == 2


def test_a_client_that_claims_to_be_huge_does_not_own_the_model(tmp_path, monkeypatch):
    grid = federation(tmp_path)
    saying(grid, 101, ("query", "train"), examples=2**31)
    weights: list[float] = []
    add_weighted = Received.add

    def record(self, stream, payload, weight, factor):
        weights.append(weight)
        add_weighted(self, stream, payload, weight, factor)

    monkeypatch.setattr(Received, "add", record)
    run(grid, tmp_path, "fed_avg", rounds=1, weighting="size")
    assert weights == [480, 5 * 480, 479]
    weights.clear()
    run(grid, tmp_path / "other", "fed_avg", rounds=1, weighting="size", largest_weight=2.0)
    assert weights == [480, 2 * 480, 479]


@pytest.mark.parametrize("clients", [CLIENTS, 2])
def test_a_client_that_claims_to_be_huge_does_not_lengthen_the_steps(tmp_path, clients):
    """With `noise_limit` and epochs, the length of a step follows from the number of local steps."""
    settings = {"local_steps": None, "local_epochs": 2, "rounds": 2, "noise_limit": 0.01, "clients": clients}
    honest = run(federation(tmp_path / "honest", range(clients)), tmp_path / "honest", "fed_laconic", **settings)
    grid = federation(tmp_path, range(clients))
    saying(grid, 101, ("query",), examples=2**24)
    assert run(grid, tmp_path, "fed_laconic", **settings).model_sha256 == honest.model_sha256


def test_a_client_that_claims_to_be_huge_is_not_always_drawn(tmp_path):
    grid = federation(tmp_path)
    saying(grid, 101, ("query", "train"), examples=2**31)
    run(grid, tmp_path, "fed_avg", rounds=20, sampling="weighted", participants=1)
    assert 0 < asked(grid).count(101) < 20


def test_a_client_that_claims_to_be_huge_does_not_own_the_evaluation(tmp_path):
    grid = federation(tmp_path)

    def boast(node: int, reply: Message) -> Message:
        if node == 101 and reply.metadata.message_type in ("query", "evaluate"):
            of(reply)["examples"] = 2**31
        if node == 101 and reply.metadata.message_type == "evaluate":
            of(reply)["names"], of(reply)["values"] = ["accuracy", "loss"], [0.0, 0.0]
        return reply

    honest = run(federation(tmp_path / "honest"), tmp_path / "honest", "fed_avg", rounds=1, client_eval_every=1)
    grid.spoil = boast
    found = run(grid, tmp_path, "fed_avg", rounds=1, client_eval_every=1).history[-1]
    # Two of seven parts of the weight are honest.
    assert found["clients_loss"] == pytest.approx(2 / 7 * honest.history[-1]["clients_loss"], rel=0.02)


def test_data_of_very_different_sizes_keep_their_weights_below_the_limit(tmp_path):
    result = run(federation(tmp_path), tmp_path, "fed_avg", weighting="size")
    assert result.model_sha256 == simulated("fed_avg", weighting="size").model_sha256


def metrics(folder: Path) -> Iterator[dict]:
    """The metrics, as strict JSON has them: no infinity, no NaN."""

    def never(constant: str) -> None:
        raise AssertionError(constant)

    for line in (folder / "run" / "metrics.jsonl").read_text().splitlines():
        yield json.loads(line, parse_constant=never)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("gradients", 2**52, "count"),
        ("gradients", 65, "count"),
        ("samples", 2**52, "count"),
        ("samples", 480_001, "count"),
        ("examples", 2**52, "record"),
        ("counted", 1.5, "record"),
        ("counted", float("nan"), "record"),
        ("examples", 2**32, "count"),
        ("loss", 1e300, None),
        ("loss", -1e300, None),
        ("loss", float("inf"), None),
    ],
)
def test_numbers_beyond_reason_do_not_get_into_the_metrics(tmp_path, name, value, reason):
    grid = federation(tmp_path)
    saying(grid, 101, ("train",), **{name: value})
    result = run(grid, tmp_path, "fed_avg", rounds=2, weighting="uniform")
    lines = [*metrics(tmp_path)]
    assert [line.get("refused") for line in lines] == [{reason: 1} if reason else None] * 2
    assert [line["participants"] for line in lines] == [2 if reason else 3] * 2
    assert all(0 < line["training_loss"] < 10 for line in lines)
    assert result.ledger.gradients == result.ledger.samples == 2 * 2 * 32 * (2 if reason else 3)


@pytest.mark.parametrize(
    "claims", [{"loss": 9e8}, {"loss": 9e8, "samples": 470_000}, {"loss": -9e8, "samples": 470_000}]
)
def test_one_client_does_not_own_the_training_loss(tmp_path, claims):
    honest = run(federation(tmp_path / "honest"), tmp_path / "honest", "fed_avg", rounds=7)
    grid = federation(tmp_path)
    saying(grid, 101, ("train",), **claims)
    result = run(grid, tmp_path, "fed_avg", rounds=7)
    for line, expected in zip(metrics(tmp_path), honest.history, strict=True):
        # Five of seven parts of the weight, and at most 20 times the median client's loss.
        assert abs(line["training_loss"]) < 15 * expected["training_loss"]
    assert not any("collapsed" in record for record in result.history)


def test_one_client_does_not_own_the_evaluation(tmp_path):
    honest = run(federation(tmp_path / "honest"), tmp_path / "honest", "fed_avg", rounds=1, client_eval_every=1)
    for sign in (1, -1):
        grid = federation(tmp_path / str(sign))
        saying(grid, 101, ("evaluate",), names=["accuracy", "loss"], values=[sign * 9e8] * 2)
        found = run(grid, tmp_path / str(sign), "fed_avg", rounds=1, client_eval_every=1).history[-1]
        assert abs(found["clients_loss"]) < 7.5 * honest.history[-1]["clients_loss"]
        assert 0 <= found["clients_accuracy"] <= 1


def test_refused_evaluations_are_in_the_metrics(tmp_path):
    grid = federation(tmp_path)
    saying(grid, 101, ("evaluate",), names=["accuracy", "loss"], values=[1.0])
    (record,) = run(grid, tmp_path, "fed_avg", rounds=1, client_eval_every=1).history
    assert record["evaluations_refused"] == 1
    assert "clients_accuracy" in metrics_of(record) and "evaluations_refused" not in metrics_of(record)


def test_refused_joins_are_in_the_metrics(tmp_path):
    grid = federation(tmp_path)
    saying(grid, 101, ("query",), name="a" * 65)
    (record,) = run(grid, tmp_path, "fed_avg", rounds=1, minimum=2).history
    assert record["refused"]["join"] >= 1 and record["participants"] == 2


def test_a_huge_client_counts_in_the_metrics_with_a_limited_size(tmp_path):
    grid = federation(tmp_path)
    saying(grid, 101, ("query", "train"), examples=2**31, gradients=2**31)
    result = run(grid, tmp_path, "fed_avg", rounds=1, weighting="uniform", local_steps=None, local_epochs=1)
    assert result.history[0]["participants"] == 3
    assert result.ledger.gradients < 480 + 479 + 2 * 5 * 480 + 64


@pytest.mark.parametrize(("sequence", "accepted"), [(2**20, True), (2**22, False), (2**24 - 1, False)])
def test_sequence_numbers_that_the_protocol_cannot_reach_are_refused(tmp_path, sequence, accepted):
    grid = federation(tmp_path)
    layout = laconic.Layout.of(laconic.models.build("logistic", (1, 8, 8), 10))

    def jump(node: int, reply: Message) -> Message:
        if node == 101 and reply.metadata.group_id == "1":
            packets = [Packet.parse(packet, layout) for packet in of(reply)["packets"]]
            of(reply)["packets"] = [replace(packet, sequence=sequence).to_bytes() for packet in packets]
        return reply

    grid.spoil = jump
    result = run(grid, tmp_path, "fed_avg", rounds=1)
    assert result.history[0].get("refused") == (None if accepted else {"sequence": 1})


def test_a_process_that_fails_is_in_the_metrics_and_is_no_violation(tmp_path):
    grid = federation(tmp_path)
    grid.spoil = lambda node, reply: (
        failure(reply, "out of memory") if node == 101 and reply.metadata.group_id else reply
    )
    result = run(grid, tmp_path, "fed_avg", rounds=3, max_violations=1)
    assert [record.get("refused") for record in result.history] == [{"failed": 1}] * 3
    assert result.ledger.refused == {"failed": 3}


def test_a_node_does_not_choose_the_reasons_in_the_metrics(tmp_path):
    """Reasons such as "not finite" have consequences, and every new one is a key in the metrics."""
    grid = federation(tmp_path)

    def refuse(node: int, reply: Message) -> Message:
        if node != 100 and reply.metadata.group_id:
            reply.content = wire.refusal("not finite" if node == 101 else f"{reply.metadata.group_id} \x1b[31m", "no")
        return reply

    grid.spoil = refuse
    # A node that reports an error of its own, such as a full disk, is no attacker: it is not blocked.
    result = run(grid, tmp_path, "fed_avg", rounds=2, max_violations=1)
    assert [record.get("refused") for record in result.history] == [{"failed": 1, "unstable": 1}] * 2


def unreadable(grid: LoopbackGrid, node: int) -> None:
    """Let Flower fail as it does for a message whose objects make no sense: it drops it, and all that it had pulled."""
    pulled, bad = grid.pull_messages, set[str]()

    def spoil(sender: int, reply: Message) -> Message:
        if sender == node and reply.metadata.group_id:
            bad.add(reply.metadata.reply_to_message_id)
        return reply

    def pull(identifiers: list[str]) -> list[Message]:
        messages = pulled(identifiers)
        if any(message.metadata.reply_to_message_id in bad for message in messages):
            raise KeyError("NoSuchClass")
        return messages

    grid.spoil, grid.pull_messages = spoil, pull


def test_a_message_that_flower_cannot_read_does_not_stop_the_server(tmp_path, caplog):
    grid = federation(tmp_path)
    unreadable(grid, 101)
    result = run(grid, tmp_path, "fed_avg", rounds=5, max_violations=3, deadline=0.2)
    assert "a message is unreadable for Flower: KeyError('NoSuchClass')" in caplog.text
    # The first time Flower loses the others with it, and the round is repeated. From then on it is alone.
    assert [record["participants"] for record in result.history] == [2] * 5
    assert [record.get("refused") for record in result.history] == [{"record": 1}] * 3 + [None] * 2


def test_joining_takes_a_number_of_operations_that_grows_with_the_number_of_nodes():
    scanned = 0

    class Counted(dict):
        """A table that counts how many of its entries are looked at one after the other."""

        def __iter__(self):
            nonlocal scanned
            scanned += len(self)
            return super().__iter__()

        def items(self):
            nonlocal scanned
            scanned += len(self)
            return super().items()

    def fits(sizes) -> None:
        nonlocal scanned
        scanned += len([*sizes])

    table = roster(Nodes(500), fits)
    table.owners = Counted()
    while len(table.clients()) < 500:
        table.refresh()
    assert {*table.owners} == {*range(500)}
    assert scanned < 10 * 500


class Progress(laconic.Callback):
    def __init__(self, last: int) -> None:
        self.last, self.seen = last, []

    def on_run_start(self, run) -> None:
        self.seen.append("start")

    def on_round_end(self, run, record) -> None:
        self.seen.append(record["round"])
        if record["round"] == self.last:
            run.stop("enough")

    def on_run_end(self, run, outcome) -> None:
        self.seen.append(outcome)


def test_a_server_takes_callbacks(tmp_path):
    own = {"clients": CLIENTS, "out": str(tmp_path / "run"), "deadline": 0.5} | SETTINGS
    progress = Progress(2)
    app = server_app("fed_avg", "logistic", "digits", callbacks=[progress], **own)
    app(federation(tmp_path), Context(1, 1, {}, RecordDict(), {}))
    assert progress.seen == ["start", 1, 2, "finished"]


def test_what_is_no_callback_is_refused(tmp_path):
    own = {"clients": CLIENTS, "out": str(tmp_path / "run"), "deadline": 0.5} | SETTINGS
    with pytest.raises(laconic.ConfigError, match=r"callbacks: .* is not a laconic\.Callback"):
        serve(federation(tmp_path), "fed_avg", "logistic", "digits", own, [print])


def test_too_few_participants_for_the_defenses_are_named_at_the_start(tmp_path, caplog):
    run(federation(tmp_path), tmp_path, "fed_avg", rounds=1, participants=2, refuse_updates="auto")
    assert "with 2 participants in a round, defenses that compare clients protect the model poorly" in caplog.text
    caplog.clear()
    off = {"refuse_updates": "none", "clip_updates": "none"}
    run(federation(tmp_path / "plain"), tmp_path / "plain", "fed_avg", rounds=1, **off)
    assert "protect the model" not in caplog.text
