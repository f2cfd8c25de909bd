"""The roster: which Flower node is which client, and which clients are connected or blocked.

A client is a number, on which a run's randomness depends. A node is identified by Flower's node id, which may change. A
node reports its client number (`partition-id` in its config), or the server assigns one. A client number belongs to the
first node that has it. Another node that claims the number is rejected, unless it has the same name in its file or the same
Flower id (for authenticated nodes, the id belongs to the node's key).
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
"""The first and the longest delay, in seconds, of the exponential backoff for a rejected node."""


@dataclass(frozen=True)
class Rejection:
    """Why a node could not join, and when it is invited again."""

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
        """By client: its connected node."""
        self._invited: dict[str, tuple[int, float]] = {}
        """Unanswered invitations by message id: the node, and when the invitation expires."""
        self._rejected: dict[int, Rejection] = {}
        self._fits = fits
        """Raises `ConfigError` if the algorithm does not support clients of these sizes."""
        self._replace_nodes, self._most_examples, self._fixed_sizes = replace_nodes, most_examples, fixed_sizes
        self.owners: dict[int, tuple[str, int]] = {}
        """By client: the name in its node's file, and the Flower id of its last node."""
        self.sizes: dict[int, int] = {}
        """The number of examples of every client that has ever connected."""

    def name(self, client: int) -> str:
        """A client and its node, for the log."""
        return f"client {client} (node {self._nodes.get(client)})"

    def clients(self) -> list[int]:
        """The clients that are connected and not blocked."""
        return sorted(client for client in self._nodes if not self.blocklist.is_blocked(client))

    def node(self, client: int) -> int | None:
        """The client's node; None if it is not connected or is blocked."""
        return None if self.blocklist.is_blocked(client) else self._nodes.get(client)

    def refresh(self) -> None:
        """Update which nodes are connected, invite new ones, and read their answers, without waiting."""
        connected, now = set(self._grid.get_node_ids()), time.monotonic()
        self._drop_disconnected(connected, now)
        resting = {node for node, rejection in self._rejected.items() if now < rejection.until}
        invited = {node for node, _ in self._invited.values()}
        self._invite(sorted(connected - set(self._nodes.values()) - invited - resting), now)
        if self._invited:
            for message in self._grid.pull_messages(list(self._invited)):
                invitation = self._invited.pop(message.metadata.reply_to_message_id, None)
                if invitation is not None:
                    self._admit(invitation[0], message)

    def _drop_disconnected(self, connected: set[int], now: float) -> None:
        for client, node in list(self._nodes.items()):
            if node not in connected:
                LOG.info("laconic: client %d (node %d) has disconnected", client, node)
                del self._nodes[client]
        self._rejected = {node: rejection for node, rejection in self._rejected.items() if node in connected}
        # A node that was killed and restarted has its old id, but has lost the invitation.
        self._invited = {
            key: (node, until) for key, (node, until) in self._invited.items() if node in connected and now < until
        }

    def _invite(self, nodes: list[int], now: float) -> None:
        """Send the plan to nodes."""
        if not nodes:
            return
        plan = self.plan.model_dump_json()
        messages = [Message(wire.content(plan=plan), node, MessageType.QUERY, ttl=self._patience) for node in nodes]
        sent = zip(self._grid.push_messages(messages), nodes, strict=False)
        self._invited |= {key: (node, now + self._patience) for key, node in sent if key}

    def _admit(self, node: int, message: Message) -> None:
        """Read a node's answer to an invitation, and admit or reject it."""
        try:
            if message.has_error():
                raise PacketError("node", wire.sanitized(message.error.reason))
            record = wire.read_record(message)
            if "refused" in record:
                raise wire.refusal_error(record)
            name = wire.text(record, "name")
            client = self._number(name, wire.count(record, "client", lowest=-1), node)
            size = self._size(client, wire.count(record, "examples", lowest=1))
        except PacketError as error:
            self._reject(node, str(error))
            return
        previous = self._nodes.get(client, node)
        if previous != node:
            self._reject(previous, f"number: client {client} is node {node} now")
        self._rejected.pop(node, None)
        self.owners[client], self.sizes[client] = (name, node), size
        self._nodes[client] = node
        LOG.info("laconic: client %d has joined (node %d, %d examples)", client, node, self.sizes[client])

    def _reject(self, node: int, reason: str) -> None:
        """Reject a node, and invite it again with exponential backoff. The same reason is logged once."""
        previous = self._rejected.get(node)
        pause = FIRST_PAUSE if previous is None else min(LONGEST_PAUSE, 2 * previous.pause)
        if previous is None or previous.reason != reason:
            LOG.warning("laconic: node %d cannot take part: %s", node, reason)
        self._rejected[node] = Rejection(reason, pause, time.monotonic() + pause)

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
        # The same file under a new node id: Flower considers the old node connected for a minute after it has ended.
        moved = client in self.owners and self.owners[client][0] == name
        if self._nodes.get(client, node) != node and not moved:
            raise PacketError(
                "number", f"client {client} is node {self._nodes[client]}; every node needs its own partition-id"
            )
        if not self._replace_nodes:
            self._check_owner(client, name, node)
        return client

    def _check_owner(self, client: int, name: str, node: int) -> None:
        owner = self.owners.get(client)
        if owner is not None and name != owner[0] and node != owner[1]:
            raise PacketError("owner", f"client {client} belongs to another node; replace-nodes = true admits this one")
        other = next((number for number, (_, known) in self.owners.items() if known == node and number != client), None)
        if other is not None:
            raise PacketError("owner", f"it is client {other}, not {client}; replace-nodes = true allows the change")

    def _size(self, client: int, size: int) -> int:
        """Check the number of examples that a client reports. If it is the client's weight, it must not change."""
        if self._most_examples is not None and size > self._most_examples:
            raise PacketError("examples", f"{size} examples; most-examples = {self._most_examples}")
        if self._fixed_sizes and self.sizes.get(client, size) != size:
            raise PacketError("examples", f"client {client} had {self.sizes[client]} examples, and now reports {size}")
        try:
            self._fits(self.sizes | {client: size})
        except ConfigError as error:
            raise PacketError("examples", f"{size} examples: {error}") from None
        return size

    def invite_again(self, client: int) -> None:
        """Send the plan again to a client that has lost it."""
        self._nodes.pop(client, None)

    def disconnected(self, clients: Iterable[int]) -> set[int]:
        """Those of `clients` whose node is no longer connected."""
        connected = set(self._grid.get_node_ids())
        return {client for client in clients if self._nodes.get(client) not in connected}

    def state_dict(self) -> StateDict:
        """The state that a restarted server needs, as plain values."""
        return {
            "owners": {str(client): list(owner) for client, owner in self.owners.items()},
            "sizes": {str(client): size for client, size in self.sizes.items()},
            "blocklist": self.blocklist.state_dict(),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Restore a state that `state_dict` returned."""
        self.owners = {int(client): (name, node) for client, (name, node) in state["owners"].items()}
        self.sizes = {int(client): size for client, size in state["sizes"].items()}
        self.blocklist.load_state_dict(state["blocklist"])
