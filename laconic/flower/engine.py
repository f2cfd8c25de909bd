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
PIECE = 16
"""Instructions that are in memory at a time: each may hold a whole model."""
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 1.0
"""Seconds between two looks for replies: short rounds are short, and long ones are not asked about all the time."""
LOOK_AROUND = 5.0
"""Seconds between two looks at who is still connected."""
MOST_METRICS, LARGEST_METRIC = 20, 1e9
"""What a client may say of an evaluation."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,39}")


class GridEngine(Engine):
    """Asks nodes, and waits until all have answered, the round has enough replies, or the time is up."""

    in_order = False

    def __init__(self, grid: Grid, presence: Presence, *, deadline: float, quorum: float) -> None:
        self._grid, self._presence, self._roster = grid, presence, presence.roster
        self._deadline, self._quorum = deadline, quorum
        self._enough = False
        self._late: dict[str, tuple[int, float]] = {}
        """Questions of closed exchanges that may still be answered: the client, and when Flower forgets them."""

    def participants(self, drawn: list[int]) -> list[int]:
        """The drawn clients, or others that stand in for them."""
        return self._presence.wait_for_any(drawn)

    def is_available(self, client: int) -> bool:
        """Whether the client's node is connected."""
        return self._roster.node(client) is not None

    def stop_waiting(self) -> None:
        """End the exchange with the replies that are here."""
        self._enough = True

    def run(self, instructions: Iterable[Instruction]) -> Iterator[Reply | MalformedReply]:
        """Replies as they arrive. Late replies to closed exchanges come first: the server refuses and counts them."""
        waiting = iter(instructions)
        asked: dict[str, int] = {}
        while piece := list(islice(waiting, PIECE)):
            asked |= self._send(piece)
        yield from self._stragglers()
        self._enough = False
        for client, message in self._hear(asked):
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
        # Whoever fetches it after the deadline would work in vain, so it lives no longer.
        return Message(content, node, kind, ttl=self._deadline, group_id=str(round + 1))

    def _push(self, messages: list[Message], clients: list[int]) -> dict[str, int]:
        sent = zip(self._grid.push_messages(messages), clients, strict=False) if messages else ()
        return {identifier: client for identifier, client in sent if identifier}

    def _hear(self, asked: dict[str, int]) -> Iterator[tuple[int, Message]]:
        """Messages by client, until nobody is missing, enough have come, or the time is up."""
        missing = dict(asked)
        started = looked = time.monotonic()
        pause = FIRST_PAUSE
        while missing:
            for message in self._grid.pull_messages(list(missing)):
                client = missing.pop(message.metadata.reply_to_message_id, None)
                if client is not None:
                    yield client, message
            now = time.monotonic()
            if not missing or self._enough or now - started >= self._deadline:
                break
            if now - looked >= LOOK_AROUND:
                looked = now
                gone = self._roster.gone(missing.values())
                self._remember({key: client for key, client in missing.items() if client in gone}, started)
                missing = {key: client for key, client in missing.items() if client not in gone}
            time.sleep(min(pause, max(0.0, started + self._deadline - now)))
            pause = min(LONGEST_PAUSE, 1.5 * pause)
        if missing:
            LOG.info("laconic: going on without %d of %d clients", len(missing), len(asked))
        self._remember(missing, started)

    def _remember(self, missing: dict[str, int], started: float) -> None:
        self._late |= {key: (client, started + self._deadline) for key, client in missing.items()}

    def _stragglers(self) -> Iterator[Reply | MalformedReply]:
        """What has come since to questions of closed exchanges."""
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
        """What a node has said, as far as it makes sense; None if there is no reply in it."""
        if message.has_error():
            LOG.warning("laconic: client %d did not answer: %s", client, wire.shown(message.error.reason))
            return None
        try:
            return wire.unpack_reply(wire.said(message), client)
        except PacketError as error:
            if error.reason != wire.NOT_KNOWN:
                return MalformedReply(client, error)
            LOG.warning("laconic: client %d does not know this run any more; it is told again", client)
            self._roster.ask_again(client)
            return None

    def evaluate(self, packets: list[bytes], round: int) -> tuple[int, list[tuple[int, int, dict[str, float]]]]:
        """The server's model on clients' own examples: how many were asked; who answered, with how many, and the metrics."""
        clients = self._roster.clients()
        asked: dict[str, int] = {}
        for start in range(0, len(clients), PIECE):
            piece = clients[start : start + PIECE]
            messages = []
            for client in piece:
                content = wire.content(run=self._roster.plan.run, client=client, packets=packets)
                node = self._roster.node(client)
                assert node is not None
                messages.append(self._message(content, node, MessageType.EVALUATE, round))
            asked |= self._push(messages, piece)
        found: dict[int, tuple[int, dict[str, float]]] = {}
        self._enough = False
        for client, message in self._hear(asked):
            try:
                found[client] = _metrics(message)
            except PacketError as error:
                LOG.warning("laconic: client %d did not evaluate: %s", client, error)
            self._enough = len(found) >= math.ceil(self._quorum * len(asked))
        return len(asked), [(client, *found[client]) for client in sorted(found)]


def _metrics(message: Message) -> tuple[int, dict[str, float]]:
    if message.has_error():
        raise PacketError("node", wire.shown(message.error.reason))
    record = wire.said(message)
    if "refused" in record:
        raise wire.refused(record)
    names, values = record.get("names"), record.get("values")
    if not isinstance(names, list) or not isinstance(values, list) or not len(names) == len(values) <= MOST_METRICS:
        raise PacketError("record", "names and values do not match")
    found: dict[str, float] = {}
    for name, value in zip(names, values, strict=True):
        if not isinstance(name, str) or not NAME.fullmatch(name) or not isinstance(value, float):
            raise PacketError("record", "a metric is a name and a number")
        if not abs(value) <= LARGEST_METRIC:
            raise PacketError("not finite", f"{name} = {value:g}")
        found[name] = value
    return wire.count(record, "examples", lowest=1), found
