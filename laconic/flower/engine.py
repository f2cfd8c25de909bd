"""The engine whose clients are nodes of a Flower federation: one message each way per client and exchange."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from logging import getLogger

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from laconic.core.errors import PacketError
from laconic.federation.engine import Engine
from laconic.federation.messages import Instruction, MalformedReply, Reply
from laconic.flower import wire
from laconic.flower.deployment import Deployment
from laconic.flower.inbox import Inbox
from laconic.flower.presence import Presence
from laconic.flower.reply_times import ReplyTimes

LOG = getLogger("flwr.laconic")
BATCH = 16
"""The number of instructions in memory at a time: each may contain a full model."""
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 1.0
"""Seconds between two polls for replies. The pause grows during an exchange."""
CONNECTION_CHECK_EVERY = 5.0
"""Seconds between two checks of which nodes are still connected."""
MOST_METRICS, LARGEST_METRIC = 20, 1e9
"""Limits for the metrics that a client reports."""
EVALUATION = "evaluation"
"""The phase under which the times of evaluations are kept."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,39}")


@dataclass(frozen=True)
class Sent:
    """A message that a client has not answered yet."""

    client: int
    phase: str
    when: float


class GridEngine(Engine):
    """Sends instructions to nodes, and waits for all replies, a quorum, or the deadline."""

    in_order = False

    def __init__(self, grid: Grid, presence: Presence, deployment: Deployment) -> None:
        self._grid, self._inbox, self._presence, self._roster = grid, Inbox(grid), presence, presence.roster
        self._deadline, self._quorum = deployment.deadline, deployment.quorum
        self._adaptive = deployment.adaptive_deadline
        self._times = ReplyTimes(deployment.deadline)
        self._enough = False
        self._late: dict[str, Sent] = {}
        """Unanswered messages of closed exchanges, by id. Flower discards them at the longest deadline."""

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
        sent: dict[str, Sent] = {}
        while batch := list(islice(unsent, BATCH)):
            sent |= self._send(batch)
        yield from self._late_replies()
        self._enough = False
        for client, message in self._receive(sent):
            reply = self._reply(client, message)
            if reply is not None:
                yield reply

    def _send(self, instructions: list[Instruction]) -> dict[str, Sent]:
        messages, asked = [], []
        for instruction in instructions:
            node = self._roster.node(instruction.client)
            if node is not None:
                content = wire.pack_instruction(instruction, self._roster.plan.run)
                messages.append(self._message(content, node, MessageType.TRAIN, instruction.round))
                asked.append((instruction.client, instruction.phase))
        return self._push(messages, asked)

    def _message(self, content: RecordDict, node: int, kind: str, round: int) -> Message:
        # The message expires at the longest deadline. A reply after an earlier one is refused, but its time counts.
        return Message(content, node, kind, ttl=self._deadline, group_id=str(round + 1))

    def _push(self, messages: list[Message], asked: list[tuple[int, str]]) -> dict[str, Sent]:
        identifiers, now = self._grid.push_messages(messages) if messages else (), time.monotonic()
        return {key: Sent(*whom, now) for key, whom in zip(identifiers, asked, strict=False) if key}

    def _receive(self, sent: dict[str, Sent]) -> Iterator[tuple[int, Message | PacketError]]:
        """Yield replies until all have arrived, `stop_waiting` was called, or the deadline has passed."""
        missing, phases = dict(sent), {message.phase for message in sent.values()}
        deadline = self._times.deadline(phases) if self._adaptive else self._deadline
        started = checked = time.monotonic()
        pause = FIRST_PAUSE
        while missing:
            yield from self._arrived(missing)
            now = time.monotonic()
            if not missing or self._enough or now - started >= deadline:
                break
            if now - checked >= CONNECTION_CHECK_EVERY:
                checked, missing = now, self._connected(missing)
            time.sleep(min(pause, max(0.0, started + deadline - now)))
            pause = min(LONGEST_PAUSE, 1.5 * pause)
        if missing:
            seconds = time.monotonic() - started
            LOG.info("laconic: continuing without %d of %d clients after %.3g s", len(missing), len(sent), seconds)
        if len(missing) == len(sent):
            self._times.forget(phases)
        self._late |= missing

    def _connected(self, missing: dict[str, Sent]) -> dict[str, Sent]:
        """The messages to nodes that are still connected. Replies of the others may only come late."""
        disconnected = self._roster.disconnected(message.client for message in missing.values())
        self._late |= {key: message for key, message in missing.items() if message.client in disconnected}
        return {key: message for key, message in missing.items() if message.client not in disconnected}

    def _arrived(self, missing: dict[str, Sent]) -> Iterator[tuple[int, Message | PacketError]]:
        """Replies to messages in `missing`, which are removed from it."""
        for identifier, message in self._inbox.pull(list(missing)):
            sent = missing.pop(identifier, None)
            if sent is not None:
                self._times.add(sent.phase, time.monotonic() - sent.when)
                yield sent.client, message

    def _late_replies(self) -> Iterator[Reply | MalformedReply]:
        expired = time.monotonic() - self._deadline
        self._late = {key: sent for key, sent in self._late.items() if sent.when > expired}
        for client, message in self._arrived(self._late) if self._late else ():
            reply = self._reply(client, message)
            if reply is not None:
                yield reply

    def _reply(self, client: int, message: Message | PacketError) -> Reply | MalformedReply | None:
        """Unpack a node's message. None if the node has to join the run again first."""
        try:
            return wire.unpack_reply(wire.read_answer(message), client)
        except PacketError as error:
            if error.reason != wire.UNKNOWN_RUN:
                return MalformedReply(client, error)
            LOG.warning("laconic: client %d has lost the plan of this run; it is sent again", client)
            self._roster.invite_again(client)
            return None

    def evaluate(self, packets: list[bytes], round: int) -> tuple[int, int, list[tuple[int, float, dict[str, float]]]]:
        """Evaluate the server's model on clients' own examples.

        Returns the number of clients asked, the number of refused replies and, for each client that replied, its number,
        its weight and its metrics. The weight is the number of examples, times the share of their targets that count.
        """
        clients = self._roster.clients()
        sent: dict[str, Sent] = {}
        for start in range(0, len(clients), BATCH):
            batch = clients[start : start + BATCH]
            messages = []
            for client in batch:
                content = wire.content(run=self._roster.plan.run, client=client, packets=packets)
                node = self._roster.node(client)
                assert node is not None
                messages.append(self._message(content, node, MessageType.EVALUATE, round))
            sent |= self._push(messages, [(client, EVALUATION) for client in batch])
        results: dict[int, tuple[float, dict[str, float]]] = {}
        refused, self._enough = 0, False
        for client, message in self._receive(sent):
            try:
                results[client] = _metrics(message)
            except PacketError as error:
                refused += 1
                LOG.warning("laconic: client %d did not evaluate: %s", client, error)
            self._enough = len(results) >= math.ceil(self._quorum * len(sent))
        return len(sent), refused, [(client, *results[client]) for client in sorted(results)]


def _metrics(message: Message | PacketError) -> tuple[float, dict[str, float]]:
    """The number of examples, times the share of their targets that count, and the metrics."""
    record = wire.read_answer(message)
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
    return wire.count(record, "examples", lowest=1) * wire.counted_of(record), metrics
