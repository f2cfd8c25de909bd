"""Nodes that join: what passes is tried again, the same file is the same node, and what a node says is bounded."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import pytest
import torch

import laconic

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import Message
from flwr.supercore.run import Run
from flwr.supernode.start_client_internal import FAB_VERIFICATION_ERROR

from laconic.flower import client_app, wire
from tests.flower.loopback import LoopbackGrid, failure
from tests.flower.small_federation import PowerCut, data, federation, run, simulated


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("laconic.flower.roster.FIRST_PAUSE", 0.05)
    monkeypatch.setattr("laconic.flower.presence.POLL_EVERY", 0.02)


def small_node_arrives(grid: LoopbackGrid, folder: Path, messages: list[Message]) -> None:
    """In the first round comes a third node, with ten examples."""

    def few(context):
        return laconic.data.from_arrays([data().examples.batch(torch.arange(10))], classes=10)

    if messages[0].metadata.group_id == "1":
        grid.add(102, partial(client_app, "logistic", few), partition_id=2, state=str(folder / "nodes"))


def joins(reply: Message) -> bool:
    return reply.metadata.message_type == "query"


def test_a_node_that_fails_to_join_is_told_again(tmp_path, caplog):
    grid = federation(tmp_path)
    failures = 0

    def fail(node: int, reply: Message) -> Message:
        nonlocal failures
        if node == 102 and joins(reply) and failures < 2:
            failures += 1
            return failure(reply, "out of memory\n" * 1000)
        return reply

    grid.spoil = fail
    with caplog.at_level(logging.INFO, logger="flwr.laconic"):
        result = run(grid, tmp_path, deadline=30.0)
    assert result.model_sha256 == simulated("fed_cams").model_sha256
    complaints = [record.getMessage() for record in caplog.records if "cannot take part" in record.getMessage()]
    # The same reason is said once, in one line of bounded length.
    assert len(complaints) == 1
    assert "node 102 cannot take part: failed: out of memory out of memory" in complaints[0]
    assert len(complaints[0]) < 400
    assert "\n" not in complaints[0]


def test_the_server_names_the_app_that_a_node_has_not_approved(tmp_path, caplog, monkeypatch):
    """Flower itself reports only that "the FAB could not be verified"."""
    grid = federation(tmp_path)
    digest = "1a" * 32
    monkeypatch.setattr(LoopbackGrid, "run", Run.create_empty(1))
    grid.run.fab_hash = digest
    grid.spoil = lambda node, reply: (
        failure(reply, FAB_VERIFICATION_ERROR.reason, FAB_VERIFICATION_ERROR.code) if node == 102 else reply
    )
    with caplog.at_level(logging.WARNING, logger="flwr.laconic"):
        run(grid, tmp_path, "fed_avg", rounds=1, deadline=0.5)
    (complaint,) = (record.getMessage() for record in caplog.records if "cannot take part" in record.getMessage())
    assert complaint.startswith(
        "laconic: node 102 cannot take part: failed: the node's owner has not approved this app"
    )
    assert digest in complaint and "--apps" in complaint


def test_a_node_that_comes_back_under_a_new_name_is_let_in_though_flower_has_the_old_one_still(tmp_path, caplog):
    grid = federation(tmp_path)

    def move(messages: list[Message]) -> None:
        if messages[0].metadata.group_id == "2":
            grid.before_push = lambda messages: None
            grid.add(901, partial(client_app, "logistic", "digits"), partition_id=1, state=str(tmp_path / "nodes"))
            # The old one is dead: it is in Flower's list, and says nothing.
            spoil = grid.spoil
            grid.spoil = lambda node, reply: None if node == 101 else spoil(node, reply)

    grid.before_push = move
    with caplog.at_level(logging.INFO, logger="flwr.laconic"):
        result = run(grid, tmp_path, rounds=5, deadline=0.5)
    assert "client 1 has joined (node 901" in caplog.text
    assert ("train", 901) in grid.sent
    assert [record["participants"] for record in result.history[-2:]] == [3, 3]


def test_a_number_that_becomes_free_is_given_to_who_asked_for_it(tmp_path):
    grid = federation(tmp_path, nodes=[0, 1])
    other = partial(client_app, "logistic", "digits")
    grid.add(201, other, partition_id=1, state=str(tmp_path / "other"))

    def leave(messages: list[Message]) -> None:
        if messages[0].metadata.group_id == "2":
            grid.nodes.pop(101, None)

    grid.before_push = leave
    run(grid, tmp_path, rounds=8, first=2, minimum=2, deadline=0.5, replace_nodes=True)
    assert ("train", 201) in grid.sent


def test_a_newcomer_of_another_size_does_not_stop_the_run(tmp_path, caplog):
    """Gradient tracking needs the same number of steps of all; with epochs a size decides about it."""
    grid = federation(tmp_path, nodes=[0, 1])

    grid.before_push = partial(small_node_arrives, grid, tmp_path)
    with caplog.at_level(logging.INFO, logger="flwr.laconic"):
        result = run(grid, tmp_path, "fed_gate", first=2, local_steps=None, local_epochs=1)
    assert "node 102 cannot take part: examples: 10 examples: method.local_epochs = 1" in caplog.text
    assert [record["participants"] for record in result.history] == [2] * 3


def test_sizes_of_late_joiners_count_for_weighted_sampling(tmp_path, monkeypatch):
    from laconic.federation.server import Server

    seen = []
    sizes = Server.client_sizes

    def looked(self):
        found = sizes(self)
        seen.append(found.tolist())
        return found

    monkeypatch.setattr(Server, "client_sizes", looked)
    grid = federation(tmp_path, nodes=[0, 1])

    grid.before_push = partial(small_node_arrives, grid, tmp_path)
    run(grid, tmp_path, "fed_avg", first=2, sampling="weighted", participants=2, rounds=3, deadline=0.2)
    assert seen[0][2] > 10
    assert seen[-1][2] == 10


@pytest.mark.parametrize(
    ("name", "value"), [("accuracy", 1e300), ("accuracy", float("nan")), ("an\x1b[31m evil name", 1.0), ("x" * 99, 1.0)]
)
def test_an_evaluation_that_makes_no_sense_is_left_out(tmp_path, caplog, name, value):
    grid = federation(tmp_path)

    def boast(node: int, reply: Message) -> Message:
        if node == 101 and reply.metadata.message_type == "evaluate":
            record = reply.content.config_records[wire.RECORD]
            record["names"], record["values"], record["examples"] = [name], [value], 2**52
        return reply

    grid.spoil = boast
    with caplog.at_level(logging.INFO, logger="flwr.laconic"):
        result = run(grid, tmp_path, "fed_avg", rounds=1, client_eval_every=1)
    assert "client 1 did not evaluate" in caplog.text
    assert {key for key in result.history[-1] if key.startswith("clients_")} == {"clients_accuracy", "clients_loss"}


def test_a_client_speaks_for_no_more_examples_than_it_has(tmp_path):
    grid = federation(tmp_path)

    def boast(node: int, reply: Message) -> Message:
        if node == 101 and reply.metadata.message_type == "evaluate":
            record = reply.content.config_records[wire.RECORD]
            record["names"], record["values"], record["examples"] = ["accuracy", "odd"], [0.0, 1.0], 2**52
        return reply

    grid.spoil = boast
    found = run(grid, tmp_path, "fed_avg", rounds=1, client_eval_every=1).history[-1]
    assert found["clients_accuracy"] > 0.01
    assert "clients_odd" not in found


def test_a_crash_while_clients_evaluate_costs_no_round(tmp_path):
    grid = federation(tmp_path)

    def cut(messages: list[Message]) -> None:
        if messages[0].metadata.message_type == "evaluate":
            raise PowerCut

    grid.before_push = cut
    with pytest.raises(PowerCut):
        run(grid, tmp_path, "fed_avg", client_eval_every=2)
    trained = grid.sent.count(("train", 100))
    assert trained == 2
    grid.before_push = lambda messages: None
    result = run(grid, tmp_path, "fed_avg", client_eval_every=2)
    # The second round was not run again.
    assert grid.sent.count(("train", 100)) == 3
    assert result.model_sha256 == simulated("fed_avg").model_sha256


def test_epsilon_is_in_the_log(tmp_path, caplog):
    private = {"clip_updates": 0.5, "dp_noise": 1.0, "sampling": "poisson", "eval_every": 1, "rounds": 1}
    with caplog.at_level(logging.INFO, logger="flwr.laconic"):
        result = run(federation(tmp_path), tmp_path, "fed_avg", **private)
    assert f"epsilon {result.history[-1]['epsilon']:.4g}, up" in caplog.text


def test_another_node_cannot_take_a_clients_number(tmp_path, caplog):
    def nodes(second: int, folder: str) -> LoopbackGrid:
        grid = federation(tmp_path, nodes=[0])
        grid.add(second, partial(client_app, "logistic", "digits"), partition_id=1, state=str(tmp_path / folder))
        return grid

    run(nodes(101, "nodes"), tmp_path, rounds=1, first=2)
    thief = nodes(666, "elsewhere")
    with caplog.at_level(logging.INFO, logger="flwr.laconic"):
        run(thief, tmp_path, rounds=2, first=2)
    assert "node 666 cannot take part: owner: client 1 belongs to another node" in caplog.text
    assert ("train", 666) not in thief.sent
    # With its file it is the same node, whatever Flower calls it; under its old name it is too, though its file is lost.
    for rounds, folder in ((3, "nodes"), (4, "lost")):
        known = nodes(7, folder)
        run(known, tmp_path, rounds=rounds, first=2)
        assert ("train", 7) in known.sent
    replaced = nodes(8, "another machine")
    run(replaced, tmp_path, rounds=5, first=2, replace_nodes=True)
    assert ("train", 8) in replaced.sent


def test_a_client_cannot_make_itself_heavier(tmp_path, caplog):
    grid = federation(tmp_path)

    def boast(node: int, reply: Message) -> Message:
        if node == 101 and reply.metadata.message_type == "train":
            reply.content.config_records[wire.RECORD]["examples"] = 10**9
        return reply

    grid.spoil = boast
    with caplog.at_level(logging.INFO, logger="flwr.laconic"):
        result = run(grid, tmp_path, "fed_avg", weighting="size", rounds=4, max_violations=2)
    assert [record["participants"] for record in result.history] == [2] * 4
    assert "reports 1000000000" in caplog.text

    def more(context):
        everything = data()
        return laconic.data.from_arrays([everything.examples.batch(torch.arange(1000))], classes=10)

    # Nor when it comes back.
    grid.add(102, partial(client_app, "logistic", more), partition_id=2, state=str(tmp_path / "nodes"))
    with caplog.at_level(logging.INFO, logger="flwr.laconic"):
        run(grid, tmp_path, "fed_avg", weighting="size", rounds=5, max_violations=2, first=1)
    assert "and now reports 1000" in caplog.text


def test_a_node_that_says_it_has_far_too_much_is_turned_away(tmp_path, caplog):
    grid = federation(tmp_path)

    def own(context):
        return laconic.data.from_arrays([data().examples.batch(torch.arange(1000))], classes=10)

    grid.add(102, partial(client_app, "logistic", own), partition_id=2, state=str(tmp_path / "nodes"))
    with caplog.at_level(logging.INFO, logger="flwr.laconic"):
        result = run(grid, tmp_path, "fed_avg", weighting="size", first=2, most_examples=900)
    assert "node 102 cannot take part: examples: 1,000 examples; most-examples = 900" in caplog.text
    assert [record["participants"] for record in result.history] == [2] * 3


@pytest.mark.parametrize("labels", [None, [*"0123456789"[:-1], "nine"]])
def test_text_labels_need_the_list_of_all_of_them(tmp_path, caplog, labels):
    """A node that has nines and zeros only would call nine its class 1."""

    def two_classes(context):
        inputs, targets = data().examples.batch(torch.arange(len(data().examples)))
        kept = [place for place, target in enumerate(targets.tolist()) if target in (0, 9)]
        return laconic.data.from_arrays(
            [(inputs[kept], ["nine" if targets[place] else "0" for place in kept])], classes=10, labels=labels
        )

    grid = federation(tmp_path, nodes=[0, 1])
    grid.add(102, partial(client_app, "logistic", two_classes), partition_id=2, state=str(tmp_path / "nodes"))
    with caplog.at_level(logging.INFO, logger="flwr.laconic"):
        result = run(grid, tmp_path, "fed_avg", first=2, quorum=0.5, rounds=1, deadline=1)
    assert ("other nodes may number them differently" in caplog.text) == (labels is None)
    assert result.history[-1]["participants"] == (2 if labels is None else 3)
