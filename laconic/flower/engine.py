"""The engine whose clients are nodes of a Flower federation: one message each way per client and exchange."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from logging import getLogger

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from laconic.core.errors import PacketError
from laconic.federation.messages import Instruction, Reply
from laconic.flower import wire
from laconic.flower.roster import Roster

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


class GridEngine:
    """Asks nodes, and waits until all have answered, enough have, or the time is up."""

    def __init__(
        self,
        grid: Grid,
        roster: Roster,
        *,
        deadline: float,
        quorum: float,
        examine: Callable[[Reply], object],
        refuse: Callable[[int, PacketError], None],
    ) -> None:
        self._grid, self._roster, self._deadline, self._quorum = grid, roster, deadline, quorum
        self._examine, self._refuse = examine, refuse
        self._late: dict[str, tuple[int, float]] = {}
        """Questions of closed exchanges that may still be answered: the client, and when Flower forgets them."""

    def run(self, instructions: Iterable[Instruction]) -> Iterator[Reply]:
        """Replies in the order of the instructions, once the exchange is over: sums run in client order.

        Those that come too late come first, for the server to refuse and to count.
        """
        waiting = iter(instructions)
        asked: dict[str, int] = {}
        while piece := list(islice(waiting, PIECE)):
            asked |= self._send(piece)
        yield from self._stragglers()
        replies = self._collect(asked)
        for client in asked.values():
            if client in replies:
                yield replies[client]

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

    def _collect(self, asked: dict[str, int]) -> dict[int, Reply]:
        """The replies by client, until the exchange closes."""
        replies: dict[int, Reply] = {}

        def take(client: int, message: Message) -> bool:
            reply = self._reply(client, message)
            if reply is not None:
                replies[client] = reply
            return reply is not None and self._counts(reply)

        self._hear(asked, take)
        return replies

    def _counts(self, reply: Reply) -> bool:
        """Whether the server will take a reply; it says itself why not, when its turn comes."""
        if self._quorum == 1:
            return True  # all are waited for anyway
        try:
            return self._examine(reply) is not None
        except PacketError:
            return False

    def _hear(self, asked: dict[str, int], take: Callable[[int, Message], bool]) -> None:
        """Until nobody is missing, enough answers count, or the time is up; `take` says of each whether it does."""
        missing, valid, enough = dict(asked), 0, math.ceil(self._quorum * len(asked))
        started = looked = time.monotonic()
        pause = FIRST_PAUSE
        while missing:
            for message in self._grid.pull_messages(list(missing)):
                client = missing.pop(message.metadata.reply_to_message_id, None)
                if client is not None:
                    valid += take(client, message)
            now = time.monotonic()
            if not missing or valid >= enough or now - started >= self._deadline:
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

    def _stragglers(self) -> Iterator[Reply]:
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

    def _reply(self, client: int, message: Message) -> Reply | None:
        """What a node has said, as far as it makes sense; None if there is no reply in it."""
        if message.has_error():
            LOG.warning("laconic: client %d did not answer: %s", client, wire.shown(message.error.reason))
            return None
        try:
            return wire.unpack_reply(wire.said(message), client)
        except PacketError as error:
            if error.reason == wire.NOT_KNOWN:
                LOG.warning("laconic: client %d does not know this run any more; it is told again", client)
                self._roster.ask_again(client)
            else:
                self._refuse(client, error)
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

        def take(client: int, message: Message) -> bool:
            try:
                found[client] = _metrics(message)
            except PacketError as error:
                LOG.warning("laconic: client %d did not evaluate: %s", client, error)
            return client in found

        self._hear(asked, take)
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
