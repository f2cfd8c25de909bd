"""Clients that do not answer, answer late or fail: they cost little time, and they never stop the others."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

import laconic
from laconic.compression.packet import Flag, Packet
from laconic.core.randomness import Randomness
from laconic.federation.sampling import participants

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import Message

from laconic.flower import reply_times, wire
from laconic.flower.absences import Absences
from laconic.flower.reply_times import ReplyTimes
from tests.flower.loopback import Filter, LoopbackGrid, failure
from tests.flower.small_federation import CLIENTS, SETTINGS, PowerCut, federation, run


@pytest.fixture(autouse=True)
def short_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("laconic.flower.training.SHORTEST_REST", 0.01)
    monkeypatch.setattr("laconic.flower.training.LONGEST_REST", 0.01)
    monkeypatch.setattr("laconic.flower.presence.POLL_EVERY", 0.01)


class Stalled(Exception):
    """The server asks for ever."""


def trained(reply: Message) -> bool:
    return reply.metadata.message_type == "train"


def asked(grid: LoopbackGrid) -> list[int]:
    """The nodes that were asked to train, in order."""
    return [node for kind, node in grid.sent if kind == "train"]


def bad_client(kind: str) -> Filter:
    """Node 101 is silent, fails, or answers with its first reply, whatever it is asked."""
    first: list[Message] = []

    def spoil(node: int, reply: Message) -> Message | None:
        if node != 101 or not trained(reply) or kind == "honest":
            return reply
        if kind == "failing":
            return failure(reply, "out of memory")
        if kind == "silent":
            return None
        first.append(reply)
        if len(first) > 1:
            reply.content = first[0].content
            return reply
        return None

    return spoil


def give_up_after(grid: LoopbackGrid, questions: int) -> None:
    def stop(messages: list[Message]) -> None:
        if len(asked(grid)) >= questions:
            raise Stalled

    grid.before_push = stop


@pytest.mark.parametrize("kind", ["silent", "failing", "stale"])
def test_one_client_that_does_not_answer_does_not_stall_the_run(tmp_path: Path, kind: str) -> None:
    grid = federation(tmp_path)
    grid.spoil = bad_client(kind)
    give_up_after(grid, 60)
    result = run(grid, tmp_path, "fed_avg", rounds=8, participants=1, deadline=0.05)
    assert [record["participants"] for record in result.history] == [1] * 8
    assert 101 in asked(grid)


def drawn(round: int, attempt: int = 0) -> int:
    (client,) = participants("uniform", CLIENTS, 1, round, Randomness(SETTINGS["seed"]), list, attempt)
    return client


def test_every_attempt_has_its_own_draw_and_the_first_is_that_of_the_round() -> None:
    draws = [[drawn(round, attempt) for attempt in range(6)] for round in range(20)]
    assert draws == [[drawn(round, attempt) for attempt in range(6)] for round in range(20)]
    assert all({*attempts} != {attempts[0]} for attempts in draws)
    # The first attempt has the numbers that it always had.
    first = participants("uniform", 1_000_000, 3, 0, Randomness(1), list, attempt=0)
    assert first == [170714, 399605, 713486]
    assert participants("uniform", 1_000_000, 3, 0, Randomness(1), list, attempt=1) != first


def test_a_server_that_dies_between_two_attempts_asks_the_same_clients(tmp_path: Path) -> None:
    def silent_at_first(grid: LoopbackGrid) -> None:
        grid.spoil = lambda node, reply: None if trained(reply) and len(asked(grid)) <= 4 else reply

    whole = federation(tmp_path / "whole")
    silent_at_first(whole)
    run(whole, tmp_path / "whole", "fed_avg", participants=1, deadline=0.05)
    grid = federation(tmp_path)
    silent_at_first(grid)

    def cut(messages: list[Message]) -> None:
        if len(asked(grid)) == 3:
            raise PowerCut

    grid.before_push = cut
    with pytest.raises(PowerCut):
        run(grid, tmp_path, "fed_avg", participants=1, deadline=0.05)
    grid.before_push = lambda messages: None
    run(grid, tmp_path, "fed_avg", participants=1, deadline=0.05)
    assert asked(grid) == asked(whole)
    assert asked(grid)[:3] == [100 + drawn(0, attempt) for attempt in range(3)]


def test_a_client_that_is_asked_in_vain_counts_as_absent_for_longer_and_longer(tmp_path: Path, caplog) -> None:
    grid = federation(tmp_path)
    grid.spoil = bad_client("silent")
    when: list[int] = []

    def note(messages: list[Message]) -> None:
        when.extend(int(m.metadata.group_id) for m in messages if m.metadata.dst_node_id == 101 and m.metadata.group_id)

    grid.before_push = note
    with caplog.at_level(logging.INFO, logger="flwr.laconic"):
        result = run(grid, tmp_path, "fed_avg", rounds=4, deadline=0.05)
        # The decision outlives the server.
        result = run(grid, tmp_path, "fed_avg", rounds=12, deadline=0.05)
    assert when == [1, 2, 3, 6, 11]
    assert [record["participants"] for record in result.history] == [2] * 12
    assert "client 1 (node 101) did not answer several times; it counts as absent for a while" in caplog.text
    # It answers again when it is asked next, and takes part from then on.
    grid.spoil = bad_client("honest")
    result = run(grid, tmp_path, "fed_avg", rounds=24, deadline=0.05)
    assert when[5:] == [20, 21, 22, 23, 24]
    assert [record["participants"] for record in result.history[19:]] == [3] * 5


def test_a_client_that_loses_its_state_for_ever_counts_as_absent(tmp_path: Path) -> None:
    layout = laconic.Layout.of(laconic.models.build("logistic", (1, 8, 8), 10))

    def lose(node: int, reply: Message) -> Message:
        if node == 101 and reply.metadata.message_type == "train":
            record = reply.content.config_records[wire.RECORD]
            packets = [Packet.parse(packet, layout) for packet in record["packets"]]
            record["packets"] = [replace(packet, flags=Flag.LOST).to_bytes() for packet in packets]
        return reply

    grid = federation(tmp_path)
    grid.spoil = lose
    result = run(grid, tmp_path, "fed_avg", rounds=12, eval_every=12)
    assert result.ledger.lost == 1
    # Once to learn that the state is lost, three times with the whole model, then less and less.
    assert asked(grid).count(101) < 8


def test_absent_clients_are_asked_when_there_are_too_few_others(tmp_path: Path) -> None:
    grid = federation(tmp_path)
    grid.spoil = bad_client("silent")
    run(grid, tmp_path, "fed_avg", rounds=5, deadline=0.05, minimum=3)
    assert asked(grid).count(101) == 5


def test_a_quorum_is_no_reason_to_count_a_slow_client_as_absent(tmp_path: Path) -> None:
    grid = federation(tmp_path)
    grid.spoil = bad_client("silent")
    run(grid, tmp_path, "fed_avg", rounds=6, deadline=5.0, quorum=0.6)
    assert asked(grid).count(101) == 6


def test_absences_double_up_to_a_limit_and_are_restored() -> None:
    absences, lengths = Absences(), []
    for _ in range(10):
        while not absences.is_absent(7):
            absences.record([], [7])
        length = 0
        while absences.is_absent(7):
            absences.record([], [])
            length += 1
            restored = Absences()
            restored.load_state_dict(absences.state_dict())
            assert restored.is_absent(7) == absences.is_absent(7)
        lengths.append(length)
    assert lengths == [2, 4, 8, 16, 32, 64, 64, 64, 64, 64]


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("laconic.flower.engine.time", clock)
    return clock


def test_a_silent_node_does_not_hold_every_round_for_the_whole_deadline(tmp_path: Path, clock: Clock) -> None:
    grid = federation(tmp_path)

    def spoil(node: int, reply: Message) -> Message | None:
        return None if node == 101 and trained(reply) and int(reply.metadata.group_id) > 2 else reply

    grid.spoil = spoil
    result = run(grid, tmp_path, "fed_avg", rounds=10, deadline=600.0)
    assert [record["participants"] for record in result.history] == [3, 3] + [2] * 8
    # It was asked in rounds 3, 4, 5 and 8, for the shortest deadline each.
    assert 120 <= clock.now - 1000 < 125


def test_the_deadline_is_fixed_if_so_wished(tmp_path: Path, clock: Clock) -> None:
    grid = federation(tmp_path)
    grid.spoil = bad_client("silent")
    run(grid, tmp_path, "fed_avg", rounds=2, deadline=600.0, adaptive_deadline=False)
    assert 1200 <= clock.now - 1000 < 1205


def test_the_deadline_follows_the_replies_of_the_phase() -> None:
    times = ReplyTimes(600.0)
    assert times.deadline(["train"]) == 600
    for _ in range(reply_times.ENOUGH):
        times.add("train", 1.0)
    assert times.deadline(["train"]) == reply_times.SHORTEST
    # Another phase may take far longer.
    assert times.deadline(["train", "anchor"]) == 600
    for _ in range(20):
        times.add("train", 50.0)
    assert times.deadline(["train"]) == pytest.approx(150)
    for _ in range(50):
        times.add("train", 500.0)
    assert times.deadline(["train"]) == 600
    times.forget(["train"])
    assert times.deadline(["train"]) == 600


def test_a_late_reply_lengthens_the_deadline(tmp_path: Path, clock: Clock) -> None:
    """All nodes become slower than the deadline that they were used to. Nobody is cut off for ever."""
    grid = federation(tmp_path)
    due: list[tuple[float, Message]] = []

    def slow(node: int, reply: Message) -> Message | None:
        if trained(reply) and int(reply.metadata.group_id) > 2:
            due.append((clock.now + 100.0, reply))
            return None
        return reply

    pulled = grid.pull_messages

    def pull(identifiers: list[str]) -> list[Message]:
        for each in [each for each in due if each[0] <= clock.now]:
            due.remove(each)
            grid.replies[each[1].metadata.reply_to_message_id] = each[1]
        return pulled(identifiers)

    grid.spoil, grid.pull_messages = slow, pull
    give_up_after(grid, 60)
    result = run(grid, tmp_path, "fed_avg", rounds=5, deadline=600.0)
    assert [record["participants"] for record in result.history] == [3] * 5
