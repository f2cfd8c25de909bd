"""Rounds over Flower's messages end with the model of a simulation, and what goes wrong does no harm."""

from __future__ import annotations

import logging
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch

import laconic
from laconic.algorithms.recipes import RECIPES
from laconic.compression import HEADER_BYTES

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import Context, Message, RecordDict

from laconic.flower import client_app, server_app, wire
from tests.flower.loopback import LoopbackGrid
from tests.flower.small_federation import (
    CLIENTS,
    PowerCut,
    add,
    data,
    federation,
    not_a_number,
    run,
    simulated,
)

TWO_WAYS = [
    "fed_cams:compressor=sign",
    "fed_comgate",
    "fed_bnlaca",
    "fed_amd",
    "fed_cams:uplink=shifted,compressor=eden,downlink=broadcast",
]
LINKS = [
    TWO_WAYS[-1],
    "fed_cams:uplink=shifted,compressor=stochastic:1/8",
    "fed_cams:compressor=eden:1/4@chunk:64",
    "fed_cams:compressor=natural,downlink=mirrored",
]


@pytest.mark.parametrize("name", [*sorted(RECIPES), *LINKS])
def test_every_recipe_gives_the_model_of_a_simulation(tmp_path, name):
    steps = {} if "local_steps" in RECIPES[name.split(":")[0]]().method.parameters() else {"local_steps": None}
    # Five rounds, so that clients are judged by the lengths of what came before.
    federated, expected = run(federation(tmp_path), tmp_path, name, rounds=5, **steps), simulated(name, rounds=5)
    assert federated.model_sha256 == expected.model_sha256
    assert federated.ledger.state_dict() == expected.ledger.state_dict()
    assert federated.metrics == expected.metrics


def test_nodes_train_in_the_precision_of_the_plan(tmp_path):
    federated = run(federation(tmp_path), tmp_path, dtype="bfloat16", rounds=2)
    assert federated.model_sha256 == simulated("fed_cams", dtype="bfloat16", rounds=2).model_sha256
    assert federated.model_sha256 != simulated("fed_cams", rounds=2).model_sha256


@pytest.mark.parametrize("every", [None, 2])
@pytest.mark.parametrize("label", TWO_WAYS)
def test_nodes_train_in_the_subspaces_of_the_plan(tmp_path, monkeypatch, label, every):
    monkeypatch.setattr("laconic.core.subspace.SMALLEST", 64)
    given = {"rounds": 5, "subspace": 0.25, "subspace_every": every}
    federated, expected = run(federation(tmp_path), tmp_path, label, **given), simulated(label, **given)
    assert federated.model_sha256 == expected.model_sha256
    assert federated.ledger.state_dict() == expected.ledger.state_dict()
    assert federated.metrics == expected.metrics
    # Only a redrawn subspace has a base to send, and the packets of both are shorter than the model.
    assert ("down/base" in federated.ledger.streams) == (every is not None)
    assert federated.ledger.bytes("up") < 0.6 * 5 * CLIENTS * 4 * 650


def test_a_run_with_new_subspaces_is_resumed_and_evaluated_on_nodes(tmp_path, monkeypatch):
    monkeypatch.setattr("laconic.core.subspace.SMALLEST", 64)
    given = {"subspace": 0.25, "subspace_every": 2}
    grid = federation(tmp_path)
    run(grid, tmp_path, "fed_bnlaca", rounds=3, **given)
    resumed = run(grid, tmp_path, "fed_bnlaca", rounds=5, client_eval_every=5, **given)
    assert resumed.model_sha256 == simulated("fed_bnlaca", rounds=5, **given).model_sha256
    assert resumed.history[-1]["clients_loss"] > 0


@pytest.mark.parametrize("label", TWO_WAYS)
@pytest.mark.parametrize(
    "after", [pytest.param(2, marks=pytest.mark.long), 3, pytest.param(4, marks=pytest.mark.long), 6]
)
def test_a_server_that_dies_in_any_exchange_goes_on_bit_for_bit(tmp_path, label, after):
    grid = federation(tmp_path)
    pushes = 0

    def cut(messages: list[Message]) -> None:
        nonlocal pushes
        pushes += 1
        if pushes == after:
            # The first node still hears the question, works, and keeps what the server will never have asked.
            grid.before_push = lambda messages: None
            grid.push_messages(messages[:1])
            raise PowerCut

    grid.before_push = cut
    with pytest.raises(PowerCut):
        run(grid, tmp_path, label, rounds=5)
    assert run(grid, tmp_path, label, rounds=5).model_sha256 == simulated(label, rounds=5).model_sha256


def test_more_rounds_may_be_asked_for_later_but_nothing_else_may_change(tmp_path):
    grid = federation(tmp_path)
    run(grid, tmp_path, rounds=2)
    assert run(grid, tmp_path, rounds=4).model_sha256 == simulated("fed_cams", rounds=4).model_sha256
    with pytest.raises(laconic.ConfigError, match="resume: seed = 6"):
        run(grid, tmp_path, seed=6)


def test_a_directory_with_another_run_is_refused_in_one_line_that_says_what_to_do(tmp_path, caplog):
    grid = federation(tmp_path)
    run(grid, tmp_path, rounds=2)
    settings = {"clients": CLIENTS, "out": str(tmp_path / "run"), "strategy": "loop", "seed": 5, "local_steps": 2}
    context = Context(1, 0, {}, RecordDict(), {"rounds": 3, "eval-every": 3})
    sent = len(grid.sent)

    def complaint(label: str, **changes: object) -> str:
        caplog.clear()
        with pytest.raises(laconic.ConfigError, match="resume: "):
            server_app(label, "logistic", "digits", **settings | changes)(grid, context)
        (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        return line

    where = f"but the run in '{tmp_path / 'run'}' was started with"
    line = complaint("scaffold")
    assert f"resume: algorithm = 'scaffold', {where} algorithm = 'fed_cams'; resume it with" in line
    assert "or give another out" in line
    line = complaint("fed_cams", local_lr=0.5, seed=6)
    assert f"resume: method.local_lr = 0.5, seed = 6, {where} method.local_lr = 0.05, seed = 5;" in line
    assert len(grid.sent) == sent, "nobody was asked anything"


@pytest.mark.parametrize("label", TWO_WAYS)
@pytest.mark.parametrize("injected", ["lost", "old copy"])
def test_a_node_without_its_file_is_brought_back(tmp_path, label, injected):
    grid = federation(tmp_path)
    file = tmp_path / "nodes" / "node-1.sqlite"
    done = set()

    def meddle(messages: list[Message]) -> None:
        round = messages[0].metadata.group_id
        if round == "3" and round not in done:
            shutil.copy(file, tmp_path / "copy")
        if round == "5" and round not in done:
            file.unlink()
            if injected == "old copy":
                shutil.copy(tmp_path / "copy", file)
        done.add(round)

    grid.before_push = meddle
    result = run(grid, tmp_path, label, rounds=8)
    # The server has noticed, once; told about the run again where that was lost, the node takes part again.
    assert grid.sent.count(("query", 101)) == (2 if injected == "lost" else 1)
    assert [record["participants"] for record in result.history[-2:]] == [3, 3]
    assert sum(record.get("lost", 0) for record in result.history) == 1
    assert bool(torch.isfinite(laconic.Layout.of(result.model).flatten(result.model)).all())


def without_packets(reply: Message) -> Message:
    del reply.content.config_records[wire.RECORD]["packets"]
    return reply


def without_anything(reply: Message) -> Message:
    reply.content.clear()
    return reply


@pytest.mark.parametrize("harm", [not_a_number, without_packets, without_anything])
def test_a_client_that_sends_nonsense_is_named_and_set_aside(tmp_path, caplog, harm):
    grid = federation(tmp_path)
    grid.spoil = lambda node, reply: harm(reply) if node == 101 and reply.metadata.message_type == "train" else reply
    with caplog.at_level(logging.INFO, logger="flwr.laconic"):
        result = run(grid, tmp_path, "fed_avg", rounds=6, max_violations=2)
    assert [record["participants"] for record in result.history] == [2] * 6
    assert grid.sent.count(("train", 101)) == 2
    assert "client 1 (node 101) is blocked after 2 refused replies" in caplog.text
    # It stays so when the server starts again.
    run(grid, tmp_path, "fed_avg", rounds=7, max_violations=2, first=2)
    assert grid.sent.count(("train", 101)) == 2


def test_a_round_closes_at_the_quorum_and_what_comes_later_is_refused(tmp_path, caplog):
    grid = federation(tmp_path)
    held: list[Message] = []

    def delay(node: int, reply: Message) -> Message | None:
        if node == 102 and reply.metadata.message_type == "train" and not held:
            held.append(reply)
            return None
        return reply

    grid.spoil = delay
    released = []

    def release(messages: list[Message]) -> None:
        if held and not released and messages[0].metadata.group_id == "2":
            released.append(True)
            grid.replies[held[0].metadata.reply_to_message_id] = held[0]

    grid.before_push = release
    with caplog.at_level(logging.INFO, logger="flwr.laconic"):
        result = run(grid, tmp_path, rounds=4, quorum=0.6, deadline=30.0)
    assert [record["participants"] for record in result.history] == [2, 3, 3, 3]
    assert result.history[1]["refused"] == {"stale": 1}
    assert "client 2 (node 102) answered late" in caplog.text
    assert "set aside" not in caplog.text


def test_a_round_closes_at_the_deadline(tmp_path):
    grid = federation(tmp_path)
    grid.spoil = lambda node, reply: None if node == 100 and reply.metadata.message_type == "train" else reply
    result = run(grid, tmp_path, deadline=0.3)
    assert [record["participants"] for record in result.history] == [2, 2, 2]


def test_a_node_that_joins_in_the_middle_gets_what_it_needs(tmp_path):
    grid = federation(tmp_path, nodes=[0, 1])

    def arrive(messages: list[Message]) -> None:
        if messages[0].metadata.group_id == "3":
            grid.before_push = lambda messages: None
            add(grid, tmp_path, 2)

    grid.before_push = arrive
    result = run(grid, tmp_path, "fed_bnlaca", rounds=6, first=2)
    assert [record["participants"] for record in result.history] == [2, 2, 2, 3, 3, 3]


def test_too_few_nodes_are_waited_for(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("laconic.flower.presence.POLL_EVERY", 0.01)
    grid = federation(tmp_path, nodes=[0])
    looked = grid.get_node_ids

    def look() -> list[int]:
        if grid.looks == 30:
            add(grid, tmp_path, 1)
        return looked()

    grid.get_node_ids = look
    with caplog.at_level(logging.INFO, logger="flwr.laconic"):
        result = run(grid, tmp_path, first=1, minimum=2, deadline=0.05)
    assert "waiting for nodes: 1 of 2 have joined" in caplog.text
    assert [record["participants"] for record in result.history] == [2, 2, 2]


def test_a_node_with_another_model_or_another_nodes_number_is_turned_away(tmp_path, caplog):
    grid = federation(tmp_path, nodes=[0, 1])
    grid.add(201, partial(client_app, "logistic", "digits"), partition_id=1, state=str(tmp_path / "other"))
    grid.add(202, partial(client_app, "mlp:4", "digits"), partition_id=2, state=str(tmp_path / "other"))
    grid.add(203, partial(client_app, "logistic", "digits"), partition_id=7, state=str(tmp_path / "other"))
    with caplog.at_level(logging.INFO, logger="flwr.laconic"):
        run(grid, tmp_path, first=2)
    assert "client 1 is node 101; every node needs its own partition-id" in caplog.text
    assert "parameters do not have the shapes of the server's" in caplog.text
    assert "partition-id = 7: 0 to 2 is allowed" in caplog.text
    assert not {node for kind, node in grid.sent if kind == "train"} - {100, 101}


def test_nodes_without_numbers_keep_those_they_are_given(tmp_path):
    def nodes(numbers: dict[int, str]) -> LoopbackGrid:
        grid = LoopbackGrid()
        for node, folder in numbers.items():
            grid.add(node, partial(client_app, "logistic", own), state=str(tmp_path / folder))
        return grid

    def own(context):
        folder = Path(context.node_config["state"]).name
        examples = data()
        chosen = examples.clients["abc".index(folder)]
        batch = examples.examples.batch(torch.from_numpy(chosen))
        return laconic.data.from_arrays([batch], classes=10)

    run(nodes({5: "a", 6: "b", 7: "c"}), tmp_path, rounds=2)
    # After a restart Flower calls them by other names, in another order.
    result = run(nodes({8: "c", 9: "a", 10: "b"}), tmp_path, rounds=4)
    assert result.model_sha256 == simulated("fed_cams", rounds=4).model_sha256


def test_a_node_that_never_heard_the_plan_is_told_again(tmp_path):
    grid = federation(tmp_path)
    lost = []

    def lose(node: int, reply: Message) -> Message | None:
        if node == 102 and not lost:
            lost.append(reply)
            return None
        return reply

    grid.spoil = lose
    result = run(grid, tmp_path, first=3, deadline=0.4)
    assert grid.sent.count(("query", 102)) >= 2
    assert result.history[-1]["participants"] == 3


def test_a_second_server_on_the_same_run_stops(tmp_path, monkeypatch):
    monkeypatch.setattr("laconic.run.directory.PATIENCE", 0.5)
    grid = federation(tmp_path)
    seen = []

    def another(messages: list[Message]) -> None:
        if not seen:
            seen.append(True)
            with pytest.raises(laconic.ConfigError, match="another process is writing to this run"):
                run(grid, tmp_path)

    grid.before_push = another
    assert len(run(grid, tmp_path).history) == 3
    assert seen


def test_clients_evaluate_on_their_own_examples(tmp_path):
    result = run(federation(tmp_path), tmp_path, "fed_avg", client_eval_every=2)
    assert ["clients_loss" in record for record in result.history] == [False, True, False]
    assert result.ledger.streams["down/evaluation"].bytes == CLIENTS * (HEADER_BYTES + 4 * 650)
    expected = laconic.simulate(
        laconic.fed_avg(local_steps=2), "logistic", data(), rounds=2, seed=5, numerics={"strategy": "loop"}
    )
    together = data().examples.batch(torch.arange(len(data().examples)))
    with torch.no_grad():
        right = (expected.model(together[0]).argmax(-1) == together[1]).double().mean()
    assert result.history[1]["clients_accuracy"] == pytest.approx(float(right), abs=1e-6)


def test_a_median_over_nodes_is_that_of_a_simulation(tmp_path):
    federated = run(federation(tmp_path), tmp_path, "fed_avg", aggregate="median")
    assert federated.model_sha256 == simulated("fed_avg", defense={"aggregate": "median"}).model_sha256
    assert federated.model_sha256 != simulated("fed_avg").model_sha256


@pytest.mark.parametrize("label", TWO_WAYS)
def test_what_travels_in_flowers_messages_is_what_the_ledger_counts(tmp_path, label):
    grid = federation(tmp_path)
    moved = {"up": 0, "down": 0}

    def weigh(way: str, message: Message) -> Message:
        record = message.content.config_records[wire.RECORD]
        if message.metadata.message_type == "train":
            moved[way] += sum(map(len, record["packets"]))
            # Beside its packets a message has a few numbers: nothing of the model's size.
            assert sum(len(str(value)) for name, value in record.items() if name != "packets") < 300
        return message

    grid.before_push = lambda messages: [weigh("down", message) for message in messages] and None
    grid.spoil = lambda node, reply: weigh("up", reply)
    ledger = run(grid, tmp_path, label, rounds=4).ledger
    assert moved == {"up": ledger.bytes("up"), "down": ledger.bytes("down")}
