"""Rounds that go wrong for everybody: training that diverges, nodes that fail, and nodes that are not there."""

from __future__ import annotations

import logging
from functools import partial
from itertools import count
from pathlib import Path

import pytest
import torch

import laconic
from laconic.run.directory import RunDirectory
from laconic.run.files import load_tensors
from laconic.run.simulation import Simulation, initial_module, make_task
from laconic.run.training import Diverged

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import Message

from laconic.compression import decode_dense, encode_dense
from laconic.compression.packet import Packet
from laconic.flower import client_app, wire
from laconic.flower.server import serve
from tests.flower.loopback import LoopbackGrid, failure
from tests.flower.small_federation import (
    CLIENTS,
    SETTINGS,
    add,
    data,
    federation,
    not_a_number,
    replaced,
    run,
    simulated,
)
from tests.flower.test_process_faults import OnlyThese


@pytest.fixture(autouse=True)
def short_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("laconic.flower.training.SHORTEST_REST", 0.01)
    monkeypatch.setattr("laconic.flower.presence.POLL_EVERY", 0.01)


def trained(reply: Message) -> bool:
    return reply.metadata.message_type == "train"


def deliver_late(grid: LoopbackGrid, slow: list[Message]) -> None:
    """What is in `slow` arrives at every fourth look."""
    pulled = grid.pull_messages
    looks = count(1)

    def pull(identifiers: list[str]) -> list[Message]:
        if next(looks) % 4 == 0 and slow:
            reply = slow.pop()
            grid.replies[reply.metadata.reply_to_message_id] = reply
        return pulled(identifiers)

    grid.pull_messages = pull


def violations(folder: Path) -> dict[str, int]:
    return load_tensors(RunDirectory(folder / "run").checkpoint)[1]["roster"]["blocklist"]["violations"]


@pytest.mark.parametrize("algorithm", ["fed_avg", "fed_cams:compressor=sign", "fed_com"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_training_that_diverges_stops_and_blames_nobody(tmp_path, caplog, nodes, algorithm, monkeypatch):
    """Also if the nodes cannot compress their updates, so that they send none."""
    monkeypatch.setattr("laconic.flower.training.time", None)  # no pause: no round is repeated
    grid = LoopbackGrid()
    for client in range(nodes):
        make = partial(client_app, "mlp:8", "digits")
        grid.add(100 + client, make, partition_id=client, state=str(tmp_path / "nodes"))
    settings = {"rounds": 6, "local_lr": 1e20, "clients": nodes, "out": str(tmp_path / "run"), "deadline": 5.0}
    with (
        caplog.at_level(logging.INFO, logger="flwr.laconic"),
        pytest.raises(Diverged, match="every update in round 1 is not finite"),
    ):
        serve(grid, algorithm, "mlp:8", "digits", settings)
    assert "set aside" not in caplog.text
    reason = "" if algorithm == "fed_avg" else "unstable: "
    assert f"the reply of client 0 (node 100) was refused: {reason}not finite" in caplog.text
    assert not any(violations(tmp_path).values())
    # With a rate that works, the run must be another one; but those that were set aside may be let in again.
    with pytest.raises(laconic.ConfigError, match="resume: method"):
        serve(grid, algorithm, "mlp:8", "digits", settings | {"local_lr": 0.1})


def test_a_round_whose_step_is_not_finite_leaves_the_checkpoint_of_the_round_before(tmp_path):
    """The downlink notices it, when momentum and the clients' states have already moved."""
    label = "fed_ef_sgd:downlink=broadcast,momentum=0.9,compressor=sign"
    with pytest.raises(Diverged, match="an update is not finite in round 1"):
        run(federation(tmp_path), tmp_path, label, server_lr=3e38, local_lr=100.0)
    saved = load_tensors(RunDirectory(tmp_path / "run").checkpoint)[0]
    assert not saved["server/clients/sequences"].any() and not saved["server/optimizer/momentum"].any()


def test_one_bad_client_alone_in_a_round_does_not_stop_the_others(tmp_path, caplog):
    grid = federation(tmp_path)
    grid.spoil = lambda node, reply: not_a_number(reply) if node == 101 and trained(reply) else reply
    with caplog.at_level(logging.INFO, logger="flwr.laconic"):
        result = run(grid, tmp_path, "fed_avg", rounds=8, participants=1, max_violations=2)
    # Asked alone, it is blamed until it is blocked, and another one stands in for it.
    assert [record["participants"] for record in result.history] == [1] * 8
    assert "client 1 (node 101) is blocked after 2 refused replies" in caplog.text
    assert "no drawn client is connected; 1 others replace them" in caplog.text
    assert sum(record.get("refused", {}).get("not finite", 0) for record in result.history) == 2


def test_clients_that_diverge_one_after_the_other_are_forgiven(tmp_path):
    grid = federation(tmp_path)
    grid.spoil = lambda node, reply: not_a_number(reply) if trained(reply) else reply
    with pytest.raises(Diverged, match="every update in round 1 is not finite"):
        run(grid, tmp_path, "fed_avg", participants=1, max_violations=2)
    assert not any(violations(tmp_path).values())


def test_when_all_are_set_aside_the_server_stops_and_more_violations_let_them_in(tmp_path):
    grid = federation(tmp_path)

    def spoil(node: int, reply: Message) -> Message:
        if trained(reply):
            reply.content.clear()
        return reply

    grid.spoil = spoil
    with pytest.raises(Diverged, match="all clients are blocked after round 0"):
        run(grid, tmp_path, "fed_avg", max_violations=2)
    grid.spoil = lambda node, reply: reply
    result = run(grid, tmp_path, "fed_avg", max_violations=5)
    assert result.model_sha256 == simulated("fed_avg").model_sha256


def test_an_answer_that_is_lost_once_the_node_has_stored_its_state_counts_nowhere(tmp_path):
    grid = federation(tmp_path)
    grid.spoil = lambda node, reply: None if node == 101 and reply.metadata.group_id == "2" else reply
    result = run(grid, tmp_path, "fed_cams:compressor=sign", rounds=4)
    assert [record["participants"] for record in result.history] == [3, 2, 3, 3]
    module = initial_module(lambda: laconic.models.build("logistic", (1, 8, 8), 10), SETTINGS["seed"])
    settings = laconic.Settings(rounds=4, eval_every=4, seed=SETTINGS["seed"], numerics={"strategy": "loop"})
    algorithm = laconic.fed_cams(compressor="sign", local_steps=SETTINGS["local_steps"])
    expected = Simulation(algorithm, make_task(module, data()), data(), settings)
    everybody = {0, 1, 2}
    expected.engine = OnlyThese(expected, {0: everybody, 1: {0, 2}, 2: everybody, 3: everybody})
    list(expected.rounds())
    assert result.model_sha256 == expected.model_sha256()


@pytest.mark.parametrize("label", ["fed_cams:compressor=sign", "fed_bnlaca", "fed_amd"])
def test_a_round_in_which_everybody_fails_is_asked_again(tmp_path, caplog, label):
    grid = federation(tmp_path)
    failures = 0

    def fail(node: int, reply: Message) -> Message | None:
        nonlocal failures
        if reply.metadata.group_id == "2" and failures < 2 * CLIENTS:
            failures += 1
            # Its new state is in the node's file already: an error, or silence, is all that the server gets.
            return failure(reply, "out of memory") if node == 101 else None
        return reply

    grid.spoil = fail
    with caplog.at_level(logging.INFO, logger="flwr.laconic"):
        result = run(grid, tmp_path, label, rounds=4, deadline=0.3)
    assert caplog.text.count("round 2 has no valid reply; it is repeated in") == 2
    assert "client 1 (node 101) did not answer: failed: out of memory" in caplog.text
    assert [record["participants"] for record in result.history] == [3] * 4
    expected = simulated(label, rounds=4)
    assert result.model_sha256 == expected.model_sha256
    # What was sent but not used has crossed the network all the same.
    assert result.ledger.bytes("down") > expected.ledger.bytes("down")
    assert result.ledger.invited == expected.ledger.invited


def test_a_late_answer_to_the_first_question_does_not_pass_for_one_to_the_second(tmp_path):
    grid = federation(tmp_path)
    held: list[Message] = []

    def hold(node: int, reply: Message) -> Message | None:
        if reply.metadata.group_id == "2" and len(held) < CLIENTS:
            held.append(reply)
            return None
        return reply

    def release(messages: list[Message]) -> None:
        if len(held) == CLIENTS and messages[0].metadata.group_id == "2":
            grid.replies |= {reply.metadata.reply_to_message_id: reply for reply in held}

    grid.spoil, grid.before_push = hold, release
    # They come while the second question is under way: the deadline has passed, but Flower has them still.
    result = run(grid, tmp_path, "fed_cams:compressor=sign", rounds=4, deadline=0.3)
    assert result.model_sha256 == simulated("fed_cams:compressor=sign", rounds=4).model_sha256


def test_a_round_whose_clients_are_not_here_waits_for_them(tmp_path, caplog):
    grid = federation(tmp_path, nodes=[0])
    looked = grid.get_node_ids

    def look() -> list[int]:
        if grid.looks == 40:
            add(grid, tmp_path, 1)
            add(grid, tmp_path, 2)
        return looked()

    grid.get_node_ids = look
    settings = {"participants": 1, "rounds": 6}
    with caplog.at_level(logging.INFO, logger="flwr.laconic"):
        result = run(grid, tmp_path, first=1, deadline=60.0, **settings)
    assert "waiting: no client drawn for round" in caplog.text
    assert result.model_sha256 == simulated("fed_cams", **settings).model_sha256


def test_after_a_deadline_others_stand_in_for_clients_that_never_come(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="flwr.laconic"):
        result = run(federation(tmp_path, nodes=[0]), tmp_path, first=1, participants=1, rounds=6, deadline=0.2)
    assert [record["participants"] for record in result.history] == [1] * 6
    assert "1 others replace them" in caplog.text


def test_noise_is_added_for_those_that_are_silent(tmp_path):
    grid = federation(tmp_path)
    grid.spoil = lambda node, reply: None if trained(reply) else reply
    result = run(grid, tmp_path, "fed_avg", deadline=0.1, clip_updates=0.5, dp_noise=1.0, sampling="poisson")
    assert [record["participants"] for record in result.history] == [0] * 3


def test_only_answers_that_count_make_a_quorum(tmp_path, monkeypatch):
    grid = federation(tmp_path)
    monkeypatch.setattr("laconic.flower.engine.CONNECTION_CHECK_EVERY", 0.0)
    slow: list[Message] = []

    def spoil(node: int, reply: Message) -> Message | None:
        if not trained(reply):
            return reply
        if node == 100:
            slow.append(reply)
            return None
        if node == 101:
            return not_a_number(reply)
        return reply

    grid.spoil = spoil
    deliver_late(grid, slow)
    result = run(grid, tmp_path, "fed_avg", rounds=1, quorum=0.6, deadline=60.0)
    # The one whose update is not a number does not count, so the slow one is waited for.
    assert [record["participants"] for record in result.history] == [2]


def test_the_dead_make_no_quorum(tmp_path, monkeypatch):
    grid = federation(tmp_path)
    monkeypatch.setattr("laconic.flower.engine.CONNECTION_CHECK_EVERY", 0.0)
    slow: list[Message] = []

    def spoil(node: int, reply: Message) -> Message | None:
        if trained(reply) and node == 101:
            del grid.nodes[101]
            return None
        if trained(reply) and node == 102:
            slow.append(reply)
            return None
        return reply

    grid.spoil = spoil
    deliver_late(grid, slow)
    result = run(grid, tmp_path, "fed_avg", rounds=1, quorum=0.6, deadline=60.0)
    assert [record["participants"] for record in result.history] == [2]


def longer(reply: Message, factor: float) -> Message:
    """The reply with its update that many times as long."""
    record = reply.content.config_records[wire.RECORD]
    layout = laconic.Layout.of(laconic.models.build("logistic", (1, 8, 8), 10))
    (packet,) = [Packet.parse(each, layout) for each in record["packets"]]
    return replaced(reply, encode_dense(factor * decode_dense(packet.body, 650, torch.float32).dense()))


def test_updates_far_longer_than_others_are_refused_without_being_asked_for(tmp_path, caplog):
    grid = federation(tmp_path)
    attacks = {"3", "4", "5"}

    def spoil(node: int, reply: Message) -> Message:
        return longer(reply, 1000.0) if node == 101 and trained(reply) and reply.metadata.group_id in attacks else reply

    grid.spoil = spoil
    with caplog.at_level(logging.INFO, logger="flwr.laconic"):
        run(grid, tmp_path, "fed_avg", rounds=3, max_violations=2)
        # What honest updates look like outlives the server.
        result = run(grid, tmp_path, "fed_avg", rounds=6, max_violations=2)
    assert [record["participants"] for record in result.history] == [3, 3, 2, 2, 2, 2]
    assert [record.get("refused") for record in result.history[2:4]] == [{"exploding": 1}] * 2
    assert "the reply of client 1 (node 101) was refused: exploding: the update of client 1 has norm" in caplog.text
    assert "client 1 (node 101) is blocked after 2 refused replies" in caplog.text


@pytest.mark.parametrize("factor", [-1e6, 3e38])
def test_an_attack_in_the_first_round_does_no_harm(tmp_path, factor):
    """Nothing is known of earlier rounds: the replies of the round are compared with each other."""
    grid = federation(tmp_path)

    def spoil(node: int, reply: Message) -> Message:
        return longer(reply, factor) if node == 101 and trained(reply) and reply.metadata.group_id == "1" else reply

    grid.spoil = spoil
    result = run(grid, tmp_path, "fed_avg", rounds=8)
    assert [record.get("refused") for record in result.history] == [{"exploding": 1}] + [None] * 7
    assert result.accuracy > 0.5


def test_who_wants_long_updates_says_so(tmp_path):
    grid = federation(tmp_path)
    grid.spoil = lambda node, reply: longer(reply, 1000.0) if node == 101 and trained(reply) else reply
    result = run(grid, tmp_path, "fed_avg", rounds=4, refuse_updates="none")
    assert not any("refused" in record for record in result.history)


def test_updates_that_explode_for_everybody_are_divergence(tmp_path):
    grid = federation(tmp_path)
    grid.spoil = lambda node, reply: longer(reply, 1e6) if trained(reply) and reply.metadata.group_id == "4" else reply
    with pytest.raises(Diverged, match="every update in round 4 is exploding"):
        run(grid, tmp_path, "fed_avg", rounds=5)
    assert not any(violations(tmp_path).values())


def test_a_server_returns_to_a_round_before_one_that_was_poisoned(tmp_path, caplog):
    grid = federation(tmp_path)
    grid.spoil = lambda node, reply: (
        huge(reply) if node == 101 and trained(reply) and rounds_done(tmp_path) >= 2 else reply
    )
    poisoned = run(grid, tmp_path, "fed_ef_sgd", rounds=4, refuse_updates="none", clip_updates="none")
    assert float(poisoned.model.state_dict()["1.weight"].abs().max()) > 1e3
    grid.spoil = lambda node, reply: reply
    caplog.set_level(logging.INFO, logger="flwr.laconic")
    healed = run(grid, tmp_path, "fed_ef_sgd", rounds=5, refuse_updates="none", clip_updates="none", from_round=2)
    assert [record["round"] for record in healed.history] == [1, 2, 3, 4, 5]
    assert float(healed.model.state_dict()["1.weight"].abs().max()) < 1e2
    # The nodes are ahead of the server: they start over, which is counted, and nobody is refused.
    assert [record.get("lost", 0) for record in healed.history] == [0, 0, CLIENTS, 0, 0]
    assert f", {CLIENTS} lost state, up" in caplog.text
    assert not any("refused" in record for record in healed.history[2:])
    assert all(record["participants"] == CLIENTS for record in healed.history)
    with pytest.raises(
        laconic.ConfigError, match="from_round = 1: no such checkpoint; there are those of rounds: 5 and 4 and 3"
    ):
        run(grid, tmp_path, "fed_ef_sgd", rounds=5, refuse_updates="none", clip_updates="none", from_round=1)


def test_a_damaged_checkpoint_of_a_server_names_the_setting_that_helps(tmp_path):
    grid = federation(tmp_path)
    run(grid, tmp_path)
    path = tmp_path / "run/checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(laconic.DataError, match=r"checkpoint\.safetensors' is damaged: .*: from-round=2$"):
        run(grid, tmp_path, rounds=4)
    result = run(grid, tmp_path, rounds=4, from_round=2)
    assert [record["participants"] for record in result.history] == [CLIENTS] * 4
    with pytest.raises(laconic.ConfigError, match=r"from_round: not with defense\.noise"):
        run(grid, tmp_path / "private", dp_noise=1.0, clip_updates=1.0, from_round=0)


def huge(reply: Message) -> Message:
    return replaced(reply, encode_dense(torch.full((650,), 1e6)))


def rounds_done(folder: Path) -> int:
    return len((folder / "run/metrics.jsonl").read_bytes().splitlines())
