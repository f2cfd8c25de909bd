"""Which node is which client: who is here, who is new, who was blocked.

A client is a number, and all randomness of a run is keyed by it; a node is whatever Flower calls it at the moment. A node
says its number (`partition-id` in its config), or the server gives it one. Whoever has a number once keeps it: another node
that claims it is turned away, unless it has the same name in its file, or is the same to Flower, whose numbers of
authenticated nodes belong to their keys.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from logging import getLogger

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from laconic.core.errors import ConfigError, PacketError
from laconic.core.state_dict import StateDict
from laconic.federation.blocklist import Blocklist
from laconic.flower import wire
from laconic.flower.plan import Plan

LOG = getLogger("flwr.laconic")
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0
"""Seconds before a node that could not join is told about the run again: twice as long each time, up to a limit."""


@dataclass(frozen=True)
class TurnedAway:
    """A node that could not join: it may be better off later."""

    reason: str
    pause: float
    until: float


class Roster:
    """The nodes of a run, by client."""

    def __init__(
        self,
        grid: Grid,
        plan: Plan,
        *,
        max_violations: int,
        patience: float,
        replace_nodes: bool = False,
        most_examples: int | None = None,
        fixed_sizes: bool = False,
        fits: Callable[[Mapping[int, int]], None] = lambda sizes: None,
    ) -> None:
        self._grid, self.plan, self._patience = grid, plan, patience
        self.blocklist = Blocklist(max_violations, LOG, self.name)
        self._nodes: dict[int, int] = {}
        """By client: its node."""
        self._asked: dict[str, tuple[int, float]] = {}
        """By message: the node that was told about the run and has not answered yet, and when to tell it again."""
        self._turned_away: dict[int, TurnedAway] = {}
        self._fits = fits
        """Raises `ConfigError` where clients of such sizes cannot train together."""
        self._replace_nodes, self._most_examples, self._fixed_sizes = replace_nodes, most_examples, fixed_sizes
        self.owners: dict[int, tuple[str, int]] = {}
        """By client: the name in its node's file, and what Flower called the node when it was last here."""
        self.sizes: dict[int, int] = {}
        """Examples of every client that was ever here."""

    def name(self, client: int) -> str:
        """A client, for a log."""
        return f"client {client} (node {self._nodes.get(client)})"

    def clients(self) -> list[int]:
        """Those that can be asked now."""
        return sorted(client for client in self._nodes if not self.blocklist.is_blocked(client))

    def node(self, client: int) -> int | None:
        """Where a client is; None if it is not here, or was blocked."""
        return None if self.blocklist.is_blocked(client) else self._nodes.get(client)

    def refresh(self) -> None:
        """See which nodes are connected, tell new ones about the run, and read their answers; never waits."""
        present, now = set(self._grid.get_node_ids()), time.monotonic()
        self._drop_absent(present, now)
        resting = {node for node, each in self._turned_away.items() if now < each.until}
        asked = {node for node, _ in self._asked.values()}
        self._invite(sorted(present - set(self._nodes.values()) - asked - resting), now)
        if self._asked:
            for message in self._grid.pull_messages(list(self._asked)):
                question = self._asked.pop(message.metadata.reply_to_message_id, None)
                if question is not None:
                    self._hear(question[0], message)

    def _drop_absent(self, present: set[int], now: float) -> None:
        """Forget nodes that have left, and questions that nobody will answer."""
        for client, node in list(self._nodes.items()):
            if node not in present:
                LOG.info("laconic: client %d (node %d) has left", client, node)
                del self._nodes[client]
        self._turned_away = {node: each for node, each in self._turned_away.items() if node in present}
        # A node that was killed comes back under its old id and does not know the question.
        self._asked = {
            key: (node, until) for key, (node, until) in self._asked.items() if node in present and now < until
        }

    def _invite(self, nodes: list[int], now: float) -> None:
        """Tell nodes about the run."""
        if not nodes:
            return
        plan = self.plan.model_dump_json()
        messages = [Message(wire.content(plan=plan), node, MessageType.QUERY, ttl=self._patience) for node in nodes]
        sent = zip(self._grid.push_messages(messages), nodes, strict=False)
        self._asked |= {key: (node, now + self._patience) for key, node in sent if key}

    def _hear(self, node: int, message: Message) -> None:
        try:
            if message.has_error():
                raise PacketError("node", wire.shown(message.error.reason))
            record = wire.said(message)
            if "refused" in record:
                raise wire.refused(record)
            name = wire.text(record, "name")
            client = self._number(name, wire.count(record, "client", lowest=-1), node)
            size = self._size(client, wire.count(record, "examples", lowest=1))
        except PacketError as error:
            self._turn_away(node, str(error))
            return
        before = self._nodes.get(client, node)
        if before != node:
            self._turn_away(before, f"number: client {client} is node {node} now")
        self._turned_away.pop(node, None)
        self.owners[client], self.sizes[client] = (name, node), size
        self._nodes[client] = node
        LOG.info("laconic: client %d is here (node %d, %d examples)", client, node, self.sizes[client])

    def _turn_away(self, node: int, reason: str) -> None:
        """Reject a node, and ask it again with exponential backoff. The same reason is logged once."""
        before = self._turned_away.get(node)
        pause = FIRST_PAUSE if before is None else min(LONGEST_PAUSE, 2 * before.pause)
        if before is None or before.reason != reason:
            LOG.warning("laconic: node %d cannot take part: %s", node, reason)
        self._turned_away[node] = TurnedAway(reason, pause, time.monotonic() + pause)

    def _number(self, name: str, wanted: int, node: int) -> int:
        named = {owner: client for client, (owner, _) in self.owners.items()}
        client = wanted if wanted >= 0 else named.get(name, -1)
        if client < 0:
            taken = {*self.owners, *self._nodes}
            client = next((number for number in range(self.plan.clients) if number not in taken), -1)
            if client < 0:
                raise PacketError("full", f"all {self.plan.clients} clients of this run have a node")
        if client >= self.plan.clients:
            raise PacketError("number", f"partition-id = {client}: 0 to {self.plan.clients - 1} is allowed")
        # The same file under a new name: Flower takes a node for connected for a minute after it has gone.
        moved = client in self.owners and self.owners[client][0] == name
        if self._nodes.get(client, node) != node and not moved:
            raise PacketError(
                "number", f"client {client} is node {self._nodes[client]}; each node needs its own partition-id"
            )
        if not self._replace_nodes:
            self._check_owner(client, name, node)
        return client

    def _check_owner(self, client: int, name: str, node: int) -> None:
        owner = self.owners.get(client)
        if owner is not None and name != owner[0] and node != owner[1]:
            raise PacketError(
                "owner", f"client {client} belongs to another node; replace-nodes = true lets this one in"
            )
        other = next((number for number, (_, known) in self.owners.items() if known == node and number != client), None)
        if other is not None:
            raise PacketError("owner", f"it is client {other}, and not {client}; replace-nodes = true lets it be")

    def _size(self, client: int, said: int) -> int:
        """A client's number of examples; where it is its weight, it is said once."""
        if self._most_examples is not None and said > self._most_examples:
            raise PacketError("examples", f"{said} examples; most-examples = {self._most_examples}")
        if self._fixed_sizes and self.sizes.get(client, said) != said:
            raise PacketError("examples", f"client {client} had {self.sizes[client]} examples, and now says {said}")
        try:
            self._fits(self.sizes | {client: said})
        except ConfigError as error:
            raise PacketError("examples", f"{said} examples: {error}") from None
        return said

    def ask_again(self, client: int) -> None:
        """A node does not know the run any more: it is told once more."""
        self._nodes.pop(client, None)

    def gone(self, clients: Iterable[int]) -> set[int]:
        """Those of `clients` whose node is not connected any more."""
        present = set(self._grid.get_node_ids())
        return {client for client in clients if self._nodes.get(client) not in present}

    def state_dict(self) -> StateDict:
        """What must outlive the server, as plain values."""
        return {
            "owners": {str(client): list(owner) for client, owner in self.owners.items()},
            "sizes": {str(client): size for client, size in self.sizes.items()},
            "blocklist": self.blocklist.state_dict(),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Replace everything by what `state_dict` returned."""
        self.owners = {int(client): (name, node) for client, (name, node) in state["owners"].items()}
        self.sizes = {int(client): size for client, size in state["sizes"].items()}
        self.blocklist.load_state_dict(state["blocklist"])
