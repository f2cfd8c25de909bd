"""The engine whose clients are nodes of a Flower federation: one message each way per client and exchange."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from logging import getLogger

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from laconic.core.errors import PacketError
from laconic.federation.engine import Engine
from laconic.federation.messages import Instruction, MalformedReply, Reply
from laconic.flower import wire
from laconic.flower.presence import Presence

LOG = getLogger("flwr.laconic")
BATCH = 16
"""The number of instructions in memory at a time: each may contain a full model."""
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 1.0
"""Seconds between two polls for replies. The pause grows during an exchange."""
CONNECTION_CHECK_EVERY = 5.0
"""Seconds between two checks of which nodes are still connected."""
MOST_METRICS, LARGEST_METRIC = 20, 1e9
"""Limits for the metrics that a client reports."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,39}")


class GridEngine(Engine):
    """Sends instructions to nodes, and waits for all replies, a quorum, or the deadline."""

    in_order = False

    def __init__(self, grid: Grid, presence: Presence, *, deadline: float, quorum: float) -> None:
        self._grid, self._presence, self._roster = grid, presence, presence.roster
        self._deadline, self._quorum = deadline, quorum
        self._enough = False
        self._late: dict[str, tuple[int, float]] = {}
        """Unanswered messages of closed exchanges, by id: the client, and when Flower discards the message."""

    def participants(self, drawn: list[int]) -> list[int]:
        """The drawn clients, or connected ones that replace them."""
        return self._presence.wait_for_any(drawn)

    def is_available(self, client: int) -> bool:
        return self._roster.node(client) is not None

    def stop_waiting(self) -> None:
        """Close the exchange with the replies that have arrived."""
        self._enough = True

    def run(self, instructions: Iterable[Instruction]) -> Iterator[Reply | MalformedReply]:
        """Yield replies as they arrive, after late replies to closed exchanges, which the server refuses and counts."""
        unsent = iter(instructions)
        sent: dict[str, int] = {}
        while batch := list(islice(unsent, BATCH)):
            sent |= self._send(batch)
        yield from self._late_replies()
        self._enough = False
        for client, message in self._receive(sent):
            reply = self._reply(client, message)
            if reply is not None:
                yield reply

    def _send(self, instructions: list[Instruction]) -> dict[str, int]:
        messages, clients = [], []
        for instruction in instructions:
            node = self._roster.node(instruction.client)
            if node is not None:
                content = wire.pack_instruction(instruction, self._roster.plan.run)
                messages.append(self._message(content, node, MessageType.TRAIN, instruction.round))
                clients.append(instruction.client)
        return self._push(messages, clients)

    def _message(self, content: RecordDict, node: int, kind: str, round: int) -> Message:
        # The message expires at the deadline: a later reply would be refused anyway.
        return Message(content, node, kind, ttl=self._deadline, group_id=str(round + 1))

    def _push(self, messages: list[Message], clients: list[int]) -> dict[str, int]:
        sent = zip(self._grid.push_messages(messages), clients, strict=False) if messages else ()
        return {identifier: client for identifier, client in sent if identifier}

    def _receive(self, sent: dict[str, int]) -> Iterator[tuple[int, Message]]:
        """Yield replies until all have arrived, `stop_waiting` was called, or the deadline has passed."""
        missing = dict(sent)
        started = checked = time.monotonic()
        pause = FIRST_PAUSE
        while missing:
            for message in self._grid.pull_messages(list(missing)):
                client = missing.pop(message.metadata.reply_to_message_id, None)
                if client is not None:
                    yield client, message
            now = time.monotonic()
            if not missing or self._enough or now - started >= self._deadline:
                break
            if now - checked >= CONNECTION_CHECK_EVERY:
                checked = now
                disconnected = self._roster.disconnected(missing.values())
                self._expect_late({key: client for key, client in missing.items() if client in disconnected}, started)
                missing = {key: client for key, client in missing.items() if client not in disconnected}
            time.sleep(min(pause, max(0.0, started + self._deadline - now)))
            pause = min(LONGEST_PAUSE, 1.5 * pause)
        if missing:
            LOG.info("laconic: continuing without %d of %d clients", len(missing), len(sent))
        self._expect_late(missing, started)

    def _expect_late(self, missing: dict[str, int], started: float) -> None:
        self._late |= {key: (client, started + self._deadline) for key, client in missing.items()}

    def _late_replies(self) -> Iterator[Reply | MalformedReply]:
        now = time.monotonic()
        self._late = {key: value for key, value in self._late.items() if value[1] > now}
        if not self._late:
            return
        for message in self._grid.pull_messages(list(self._late)):
            client, _ = self._late.pop(message.metadata.reply_to_message_id, (None, 0.0))
            reply = None if client is None else self._reply(client, message)
            if reply is not None:
                yield reply

    def _reply(self, client: int, message: Message) -> Reply | MalformedReply | None:
        """Unpack a node's message. None if the node failed, or if it has to join the run again first."""
        if message.has_error():
            LOG.warning("laconic: client %d did not answer: %s", client, wire.sanitized(message.error.reason))
            return None
        try:
            return wire.unpack_reply(wire.read_record(message), client)
        except PacketError as error:
            if error.reason != wire.UNKNOWN_RUN:
                return MalformedReply(client, error)
            LOG.warning("laconic: client %d has lost the plan of this run; it is sent again", client)
            self._roster.invite_again(client)
            return None

    def evaluate(self, packets: list[bytes], round: int) -> tuple[int, list[tuple[int, int, dict[str, float]]]]:
        """Evaluate the server's model on clients' own examples.

        Returns the number of clients asked and, for each that replied, its number, its number of examples and its metrics.
        """
        clients = self._roster.clients()
        sent: dict[str, int] = {}
        for start in range(0, len(clients), BATCH):
            batch = clients[start : start + BATCH]
            messages = []
            for client in batch:
                content = wire.content(run=self._roster.plan.run, client=client, packets=packets)
                node = self._roster.node(client)
                assert node is not None
                messages.append(self._message(content, node, MessageType.EVALUATE, round))
            sent |= self._push(messages, batch)
        results: dict[int, tuple[int, dict[str, float]]] = {}
        self._enough = False
        for client, message in self._receive(sent):
            try:
                results[client] = _metrics(message)
            except PacketError as error:
                LOG.warning("laconic: client %d did not evaluate: %s", client, error)
            self._enough = len(results) >= math.ceil(self._quorum * len(sent))
        return len(sent), [(client, *results[client]) for client in sorted(results)]


def _metrics(message: Message) -> tuple[int, dict[str, float]]:
    if message.has_error():
        raise PacketError("node", wire.sanitized(message.error.reason))
    record = wire.read_record(message)
    if "refused" in record:
        raise wire.refusal_error(record)
    names, values = record.get("names"), record.get("values")
    if not isinstance(names, list) or not isinstance(values, list) or not len(names) == len(values) <= MOST_METRICS:
        raise PacketError("record", "names and values do not match")
    metrics: dict[str, float] = {}
    for name, value in zip(names, values, strict=True):
        if not isinstance(name, str) or not NAME.fullmatch(name) or not isinstance(value, float):
            raise PacketError("record", "a metric is a name and a number")
        if not abs(value) <= LARGEST_METRIC:
            raise PacketError("not finite", f"{name} = {value:g}")
        metrics[name] = value
    return wire.count(record, "examples", lowest=1), metrics
